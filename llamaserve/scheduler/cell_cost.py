"""What an attended cell adds to a step's time: least squares with forgetting. Scheduler thread only."""

from __future__ import annotations

import math

KEEP = 0.998
"""What is left of the sums after a step: they reach back some 500 steps."""

STANDARD_ERRORS = 2.0
"""How far the estimate has to stand above 0 to count: with 1, noise of the first large pieces passed for a cost."""


class CellCost:
    """The normal equation of seconds over attended cells.

    It is fed how far a step was from the means of its size class, so that what the size itself costs stays out, and all
    as parts of the expected time, since long steps vary more than short ones. What does not stand out of the noise
    counts as 0: a slope seen over short contexts is not drawn out to long ones.
    """

    __slots__ = ("_cells2", "_cells_s", "_noise", "_weight")

    def __init__(self) -> None:
        self._cells2 = self._cells_s = self._noise = self._weight = 0.0

    def add(self, cells: float, seconds: float, error: float) -> None:
        """A step with so many cells more than its class, which took so much longer; ``error`` is its distance from what
        was expected."""
        self._cells2 = KEEP * self._cells2 + cells * cells
        self._cells_s = KEEP * self._cells_s + cells * seconds
        self._noise = KEEP * self._noise + error * error
        self._weight = KEEP * self._weight + 1.0

    def seconds(self, guess: float = 0.0) -> float:
        """For one cell, less ``STANDARD_ERRORS``, never below 0; ``guess`` while that would be lost in the error."""
        if self._cells2 == 0.0:
            return guess
        error_s = STANDARD_ERRORS * math.sqrt(self._noise / self._weight / self._cells2)
        known = max(0.0, self._cells_s / self._cells2 - error_s)
        return max(known, guess) if error_s > guess else known
