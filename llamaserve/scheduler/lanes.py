"""The three lanes of the queue in their order, and how a client names one. Any thread."""

from __future__ import annotations

from llamaserve.errors import BadRequest, shown
from llamaserve.request import Lane

LANES: tuple[Lane, ...] = tuple(Lane)
"""Most urgent first."""

_NAMES = {lane.value: lane for lane in Lane}


def parse_header(text: str | None) -> Lane:
    """The lane an ``X-Priority`` header names, in any case and with spaces around it; Normal for everything else, a
    missing header too (K142)."""
    return _NAMES.get((text or "").strip().lower(), Lane.NORMAL)


def parse_field(value: object) -> Lane:
    """The lane a body's ``priority`` names; Normal for None. Raises BadRequest for anything but the three words."""
    if value is None:
        return Lane.NORMAL
    lane = _NAMES.get(value) if isinstance(value, str) else None
    if lane is None:
        raise BadRequest(f"priority is {shown(value)}: it must be one of {', '.join(_NAMES)}", "priority")
    return lane
