"""How much of the machine others had while a scenario ran: a result from a busy machine says so itself. Linux."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")


@dataclass(frozen=True)
class LoadSnapshot:
    """Processor seconds since boot, of all cores together, at one moment."""

    at: float
    """``time.monotonic()``."""
    busy: float
    stolen: float
    """By the host, for other guests."""
    own: float
    """Of this process and of those it started that have ended."""

    @classmethod
    def now(cls) -> LoadSnapshot | None:
        """None where there is no /proc."""
        if not STAT.exists():
            return None
        ticks = [int(field) for field in STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
        user, nice, system, _idle, _iowait, irq, softirq, stolen = (tick / os.sysconf("SC_CLK_TCK") for tick in ticks)
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(usage.ru_utime + usage.ru_stime for usage in used)
        return cls(time.monotonic(), user + nice + system + irq + softirq, stolen, own)


def others_text(start: LoadSnapshot | None, end: LoadSnapshot | None) -> str | None:
    """A sentence on what others had between two moments; None where that is not known."""
    if start is None or end is None or end.at <= start.at:
        return None
    capacity = (end.at - start.at) * (os.cpu_count() or 1)
    others = max(0.0, (end.busy - start.busy) - (end.own - start.own)) / capacity
    stolen = (end.stolen - start.stolen) / capacity
    return f"Meanwhile other processes had {others:.0%} of the machine, and the host gave {stolen:.0%} to other guests."
