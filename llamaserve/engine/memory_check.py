"""Whether a context fits into memory, asked before llama.cpp allocates it. Any thread; pure but for reading the system.

An allocation larger than memory succeeds on Linux and the process is killed when the pages are touched, so the check
comes first.
"""

from __future__ import annotations

import os
from pathlib import Path

from llamaserve.errors import ConfigError

_GIB = 1024**3
_USABLE_PARTS, _PARTS = 19, 20  # a twentieth is left for compute buffers and everybody else


def available_bytes() -> int | None:
    """Memory this process may still take, by the system and by its cgroup; None where it cannot be told."""
    limits = [limit for limit in (_system_available(), _cgroup_available()) if limit is not None]
    return min(limits) if limits else None


def check_context_fits(n_ctx: int, bytes_per_token: int, available: int | None) -> None:
    """Raise ConfigError when ``n_ctx`` tokens of ``bytes_per_token`` do not fit into ``available`` bytes."""
    needed = n_ctx * bytes_per_token
    if available is None:
        return
    usable = available * _USABLE_PARTS // _PARTS
    if needed <= usable:
        return
    raise ConfigError(
        f"n_ctx is {n_ctx}: its KV cache needs {needed / _GIB:.1f} GiB, {usable / _GIB:.1f} GiB are available; "
        f"at most {usable // bytes_per_token} tokens fit"
    )


def _system_available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _cgroup_available() -> int | None:
    root = Path("/sys/fs/cgroup")
    try:
        limit = int((root / "memory.max").read_text(encoding="ascii"))
        used = int((root / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (root / "memory.stat").read_text(encoding="ascii").splitlines())
        reclaimable = int(stat.get("inactive_file", 0))  # file cache, such as of a model that was just written
        return max(0, limit - used + reclaimable)
    except (OSError, ValueError):  # no cgroup v2, or "max": no limit
        return None
