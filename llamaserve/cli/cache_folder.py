"""The value of ``--cache-disk``: a folder and how much it may hold. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from llamaserve.config import DEFAULT_CACHE_DISK_GIB


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """``DIR`` or ``DIR,GiB``."""

    path: Path
    gib: float

    @classmethod
    def parse(cls, text: str) -> CacheFolder:
        """Read a flag's value; the size is what stands behind the last comma. Raises typer.BadParameter."""
        folder, comma, size = text.rpartition(",")
        if not comma:
            folder, size = text, f"{DEFAULT_CACHE_DISK_GIB}"
        if not folder:
            raise typer.BadParameter(f"{text!r} names no folder: it must be DIR or DIR,GiB")
        try:
            gib = float(size)
        except ValueError:
            raise typer.BadParameter(
                f"{size!r} is no number of GiB: it must be DIR or DIR,GiB, and DIR,GiB if DIR has a comma in its name"
            ) from None
        if not 0 < gib < float("inf"):
            raise typer.BadParameter(f"{size} GiB: the size must be above 0")
        return cls(Path(folder), gib)
