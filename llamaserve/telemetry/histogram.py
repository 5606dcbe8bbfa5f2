"""A histogram in Prometheus' sense: how many observations were at most each of some bounds, and their sum.

An observation costs a binary search and two additions. One thread observes; any thread reads.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from llamaserve.errors import ConfigError, shown


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """A histogram at one moment."""

    bounds: tuple[float, ...]
    """Upper bounds, inclusive and ascending, without the infinite one."""
    counts: tuple[int, ...]
    """Observations in each bucket, not cumulative; one more than there are bounds."""
    total: float
    """The sum of what was observed."""

    @property
    def n_observed(self) -> int:
        """Observations in all buckets."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Each bound and how many observations were at most that; the last bound is infinite."""
        return list(zip((*self.bounds, math.inf), accumulate(self.counts), strict=True))

    def coarsened(self, bounds: Sequence[float]) -> HistogramSnapshot:
        """The same observations with fewer bounds: exactly what a histogram with these would have counted.

        Raises ConfigError when one of them is not a bound of this one.
        """
        below = dict(self.cumulative())
        try:
            reached = [below[bound] for bound in bounds]
        except KeyError as error:
            raise ConfigError(f"bounds has {shown(error.args[0])}: it must be one of {self.bounds}") from None
        ends = [0, *reached, self.n_observed]
        counts = tuple(end - start for start, end in pairwise(ends))
        return HistogramSnapshot(tuple(bounds), counts, self.total)


class Histogram:
    """Counts observations by bucket.

    ``observe``: one thread at a time. ``snapshot``: any thread; the sum it finds may be one observation apart from the
    counts, which are consistent with each other.
    """

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Raises ConfigError when there is no bound, or they are not finite and ascending."""
        self._bounds = tuple(bounds)
        is_ascending = all(low < high for low, high in pairwise(self._bounds))
        if not self._bounds or not is_ascending or not all(map(math.isfinite, self._bounds)):
            raise ConfigError(
                f"bounds is {shown(list(bounds))}: it must have finite numbers, each above the one before"
            )
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count a value. What a clock that goes wrong gives, below 0 or no number, counts as 0: nothing else would keep
        the sum a counter."""
        if not value > 0.0:
            value = 0.0
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> HistogramSnapshot:
        """All numbers as they are now."""
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._total)
