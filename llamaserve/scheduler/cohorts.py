"""Which neighbours in a prefill window may share a native call (T9). Pure.

llama.cpp computes rows that begin at different positions in one batch, so by default only adapters divide a window:
they belong to the context, not to a row.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple


class WindowRow(NamedTuple):
    """A prompt of the window."""

    n_tokens: int
    offset: int = 0
    """Position of its first token: above 0 behind a reused prefix."""
    has_embeddings: bool = False
    """Whether it is fed vectors, not tokens."""
    adapters: Hashable = None
    """The adapters it runs with, compared by value; None = nobody knows, a class of its own."""


class Cohort(NamedTuple):
    """Neighbours, as indices into the window."""

    rows: tuple[int, ...]
    is_batched: bool
    """One call for all; else one for each."""


def share_adapters(first: Hashable, second: Hashable, *, is_partitioned: bool = True) -> bool:
    """Whether two rows run with equal adapters; always, where nothing is partitioned."""
    return not is_partitioned or first == second


def split_cohorts(
    rows: Sequence[WindowRow],
    *,
    can_batch: bool = True,
    needs_zero_offset: bool = False,
    needs_equal_lengths: bool = False,
    is_partitioned: bool = True,
) -> list[Cohort]:
    """Cut a window into cohorts without changing its order.

    At least two neighbours make a batched cohort. What stays alone is joined with neighbours that stay alone too.
    """
    cohorts: list[Cohort] = []
    for run in _alike(rows, needs_zero_offset, needs_equal_lengths, is_partitioned):
        is_batched = can_batch and len(run) >= 2
        is_joined = not is_batched and bool(cohorts) and not cohorts[-1].is_batched
        before = cohorts.pop().rows if is_joined else ()
        cohorts.append(Cohort((*before, *run), is_batched))
    return cohorts


def _alike(
    rows: Sequence[WindowRow], needs_zero_offset: bool, needs_equal_lengths: bool, is_partitioned: bool
) -> list[tuple[int, ...]]:
    """Runs of neighbours that could share a call; a row that could not with any is a run of one."""
    runs: list[tuple[int, ...]] = []
    for index, row in enumerate(rows):
        before = rows[index - 1] if index else None
        if (
            before is not None
            and _is_cold(before, needs_zero_offset)
            and _is_cold(row, needs_zero_offset)
            and (not needs_equal_lengths or row.n_tokens == before.n_tokens)
            and share_adapters(row.adapters, before.adapters, is_partitioned=is_partitioned)
        ):
            runs[-1] = (*runs[-1], index)
        else:
            runs.append((index,))
    return runs


def _is_cold(row: WindowRow, needs_zero_offset: bool) -> bool:
    return not row.has_embeddings and (row.offset == 0 or not needs_zero_offset)
