"""What a step costs in seconds, learned from the steps that ran. Scheduler thread only; has no clock.

A step's time is modelled as

    time(decode rows + prompt tokens) + cell_s(decode rows + prompt tokens) * attended cells

``time`` is no line: a machine may compute pieces of 16 tokens at the rate of 512 and lose a third at 8. It is a table
over size classes (1, 2-3, 4-7, 8-15, ...): a class keeps recent means of what its steps held and took, and between
these means the table is straight (``time_table``).

Nor is ``cell_s`` a constant. llama.cpp's flash attention on a CPU has another kernel from 64 rows on, which reads a
cell once for all of them: 64 tokens behind a long context may take less time than 32. So it has two values, and a
class begins at 64.

Against steps that took long because the machine was busy: a step counts as at most 1.5 times of what was expected, a
much faster one is believed at once.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from typing import NamedTuple

from llamaserve.scheduler.cell_cost import CellCost
from llamaserve.scheduler.time_table import LEAST_PART, SizeClass, time_table

N_CLASSES = 16
"""Size classes; the last has all steps of 2**15 tokens and more."""
MEAN_WEIGHT = 0.1
"""Part of a class's means that the newest step makes, once it has seen 10."""
LONG_WEIGHT = 0.005
"""The same for the means that the cost of cells is measured from: contexts grow slowly."""
MOST_SLOWER = 1.5
"""A step counts at most as this multiple of the expected time."""
MUCH_FASTER = 0.5
"""A step below this part of the expected time shows that the means are wrong: they go half of the way."""
FIRST_SPREAD = 0.1
SPREAD_WEIGHT = 0.05
TILE_ROWS = 64
"""Rows from which on a CPU's attention reads cells once for so many of them, and computes with tiles of so many rows
even where they are not full (ggml-cpu/ops.cpp, the flash attention's Q tile)."""
LARGE_GUESS = 0.25
"""What a cell costs in a large step as a part of a small one's, before it is known: little enough to try one."""
MOST_SPREAD = 0.25
"""How far off a step counts as at most, as a part of what was expected."""


class StepShape(NamedTuple):
    """What a step holds."""

    n_rows: int
    """Decode rows."""
    n_prompt: int
    """Tokens of all prompt pieces."""
    n_attended: int
    """Cells looked at, summed over all its tokens: each has its own position as a context."""


def piece_cells(n_held: int, n_tokens: int) -> int:
    """Cells that a piece of ``n_tokens`` behind ``n_held`` ones looks at."""
    return n_tokens * n_held + n_tokens * (n_tokens + 1) // 2


class StepCostModel:
    """Predicts the seconds of a step; ``observe`` every step that ran to its end."""

    def __init__(self) -> None:
        self._by_class: list[SizeClass | None] = [None] * N_CLASSES
        self._classes: list[SizeClass] = []
        """Those that have seen a step, by size."""
        self._cells = (CellCost(), CellCost())
        """Of small steps and of large ones."""
        self._spread = FIRST_SPREAD
        self._n_steps = 0
        self._is_stale = True
        self._refresh()

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from a step. One without tokens, or of 0 seconds, was not measured and teaches nothing.

        Raises ValueError when ``seconds`` is negative or not finite.
        """
        if not 0.0 <= seconds < math.inf:
            raise ValueError(f"a step took {seconds} seconds: it must be 0 or more, and finite")
        n_tokens = shape[0] + shape[1]
        if n_tokens == 0 or seconds == 0.0:
            return
        index = _class_of(n_tokens)
        seen = self._by_class[index]
        if seen is None:
            seen = self._by_class[index] = SizeClass(n_tokens, shape[2], seconds)
            self._classes = [known for known in self._by_class if known is not None]
        else:
            self._learn(seen, n_tokens, shape[2], seconds)
        self._n_steps += 1
        seen.seen_at = self._n_steps
        self._is_stale = True

    def seconds(self, shape: StepShape) -> float:
        """The expected time of a step; above 0 unless it has no tokens."""
        if self._is_stale:
            self._refresh()
        n_rows, n_prompt, n_attended = shape
        n_tokens = n_rows + n_prompt
        if n_tokens == 0:
            return 0.0
        return self._time(n_tokens) + self._cell_s(n_tokens) * n_attended

    @property
    def spread(self) -> float:
        """Mean distance between steps and what was expected of them, as a part of it: 0 to 0.25."""
        return self._spread

    @property
    def largest_seen(self) -> float:
        """Tokens of the largest steps observed; 0 before the first."""
        return self._classes[-1].tokens if self._classes else 0.0

    def most_tokens(self, rows: StepShape, *, n_held: int, limit_s: float) -> int:
        """Tokens of the largest piece behind ``n_held`` ones with which a step of decode ``rows`` is expected to take
        at most ``limit_s`` seconds; 0 when no piece is that short."""
        if self._is_stale:
            self._refresh()
        n_rows, _, n_attended = rows
        tokens, times = self._starts
        fits = segment = 0
        for index, start in enumerate(tokens):  # the last that begins within the limit
            size = start - n_rows
            cells = n_attended + (size * (n_held + (size + 1.0) / 2) if size > 0.0 else 0.0)
            if times[index] + self._cell_s(start) * cells <= limit_s:
                segment, fits = index, max(0, int(size))
            elif start >= TILE_ROWS:  # before, a larger one may take less time
                break
        # Within it the time is a parabola of the size: what is left over a piece of 0 tokens, its slope and its bend.
        cell_s = self._cell_s(tokens[segment])
        token_s = self._slope(bisect_right(self._tokens, tokens[segment]) - 1)
        left_s = limit_s - cell_s * n_attended - times[segment] - token_s * (n_rows - tokens[segment])
        slope = token_s + cell_s * (n_held + 0.5)
        root = slope + math.sqrt(slope * slope + 2.0 * cell_s * max(left_s, 0.0))
        end = math.ceil(tokens[segment + 1]) - 1 - n_rows if segment + 1 < len(tokens) else sys.maxsize
        if left_s < 0.0:
            return fits
        return max(fits, min(int(2.0 * left_s / root + 1e-9), end) if root > 0.0 else end)

    def least_seconds(self, rows: StepShape, size: int, *, n_held: int) -> float:
        """The time of a step of ``rows`` and a piece of ``size`` tokens behind ``n_held`` ones; or the least it can be
        where no step of about its size was seen: no less than a smaller one, and a token no less than in a larger."""
        if self._is_stale:
            self._refresh()
        n_tokens = rows[0] + size
        cells_s = self._cell_s(n_tokens) * (rows[2] + piece_cells(n_held, size))
        if self._by_class[_class_of(n_tokens)] is not None:
            return self._time(n_tokens) + cells_s
        above = bisect_right(self._tokens, n_tokens)
        least = self._times[above - 1] if above else 0.0
        nearest = min(above, len(self._tokens) - 1)
        return max(least, self._times[nearest] * n_tokens / self._tokens[nearest]) + cells_s

    def _learn(self, seen: SizeClass, n_tokens: int, n_attended: int, seconds: float) -> None:
        time = self._time(n_tokens)
        tokens, cells = n_tokens - seen.tokens, n_attended - seen.attended
        expected = seen.seconds + (time - self._time(seen.tokens) if tokens else 0.0) + self._cell_s(n_tokens) * cells
        expected = max(expected, LEAST_PART * seen.seconds)
        taken = min(seconds, MOST_SLOWER * expected)
        error_s = taken - expected
        self._spread += SPREAD_WEIGHT * (min(abs(error_s) / expected, MOST_SPREAD) - self._spread)
        seen.n_seen += 1
        weight = max(1.0 / seen.n_seen, MEAN_WEIGHT)
        if seconds < MUCH_FASTER * expected:
            weight = max(weight, 0.5)
        seen.tokens += weight * tokens
        seen.attended += weight * cells
        seen.seconds += weight * (taken - seen.seconds)
        # The same against the long means, where slow growth stands out.
        tokens, cells, more_s = n_tokens - seen.long_tokens, n_attended - seen.long_attended, taken - seen.long_seconds
        by_cells = more_s - (time - self._time(seen.long_tokens) if tokens else 0.0)
        cost = self._cells[n_tokens >= TILE_ROWS]
        cost.add(cells / expected, by_cells / expected, error_s / expected)
        weight = max(1.0 / seen.n_seen, LONG_WEIGHT)
        seen.long_tokens += weight * tokens
        seen.long_attended += weight * cells
        seen.long_seconds += weight * more_s

    def _time(self, n_tokens: float) -> float:
        """Seconds by size alone."""
        index = max(bisect_right(self._tokens, n_tokens) - 1, 0)
        return self._times[index] + self._slope(index) * (n_tokens - self._tokens[index])

    def _slope(self, index: int) -> float:
        """Seconds a token adds from a point of the table to the next; behind the last all tokens cost the same."""
        tokens, times = self._tokens, self._times
        if index + 1 < len(tokens):
            return (times[index + 1] - times[index]) / (tokens[index + 1] - tokens[index])
        return times[index] / tokens[index]

    def _cell_s(self, n_tokens: float) -> float:
        """Seconds of an attended cell in a step of so many tokens."""
        return self._cells_s[n_tokens >= TILE_ROWS]

    def _refresh(self) -> None:
        """The tables anew from what was seen."""
        self._is_stale = False
        small_s = self._cells[0].seconds()
        self._cells_s = (small_s, self._cells[1].seconds(LARGE_GUESS * small_s))
        self._tokens, self._times = time_table(self._classes, self._cell_s, self._n_steps)
        starts = sorted({*self._tokens, float(TILE_ROWS)})
        self._starts = starts, [self._time(start) for start in starts]


def _class_of(n_tokens: int) -> int:
    return min(n_tokens.bit_length(), N_CLASSES) - 1
