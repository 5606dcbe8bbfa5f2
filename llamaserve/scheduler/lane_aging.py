"""Which lane has its turn. Pure.

The most urgent lane goes first, but one that waits is skipped a bounded number of times (K103, K104): Normal twice, so
a lasting flood of High leaves it every third admission; Low six times. Where both are due Normal goes first, which
delays Low by one more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from llamaserve.request import Lane

SKIP_CAPS: Mapping[Lane, int] = {Lane.NORMAL: 2, Lane.LOW: 6}
"""Admissions from other lanes after which a lane that waits is due, more urgent ones first; 2 is the skip cap of G2."""

LANE_BOUNDS: Mapping[Lane, int] = {Lane.HIGH: 3, Lane.NORMAL: 3, Lane.LOW: 8}
"""A lane in which somebody waits has at least one of so many admissions in a row, whatever comes."""

Skips = Mapping[Lane, int]
"""Admissions from other lanes since a lane had one, or since somebody waits in it; a lane that is not in it has 0."""


def lane_order(skips: Skips, waiting: Sequence[Lane], *, ages: bool = True) -> list[Lane]:
    """Lanes in which somebody waits, that whose turn it is first; the others follow for the case that nobody there can
    begin. ``waiting`` has them most urgent first, as they are without ``ages``: then a flood of High starves the rest.
    """
    if not ages or len(waiting) < 2:
        return list(waiting)
    due = [lane for lane, cap in SKIP_CAPS.items() if skips.get(lane, 0) >= cap and lane in waiting]
    return [*due, *(lane for lane in waiting if lane not in due)] if due else list(waiting)


def skips_after(skips: Skips, admitted: Lane, waiting: Collection[Lane]) -> dict[Lane, int]:
    """Skips after an admission from a lane; ``waiting`` are the lanes in which somebody waited before it."""
    return {lane: skips.get(lane, 0) + 1 for lane in waiting if lane is not admitted}
