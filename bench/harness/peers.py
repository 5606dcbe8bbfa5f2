"""llama.cpp's own programs, as ``make bench-peers`` builds them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "build" / "peers" / "bin"


def peer(name: str) -> Path:
    """The program of that name. Raises RuntimeError when it was not built."""
    path = PEERS / name
    if not path.exists():
        raise RuntimeError(f"{name} is missing: run 'make bench-peers'")
    return path
