"""Masks of several answers computed at once. Scheduler thread only."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from llguidance import LLExecutor

from llamaserve.constraint import TokenConstraint
from llamaserve.grammar.lazy import LazyMatcher
from llamaserve.grammar.matcher import GrammarMatcher


class ParallelFiller:
    """A MaskFiller over llguidance's threads, which sleep while there is nothing to do."""

    def __init__(self, n_threads: int, n_mask_bytes: int) -> None:
        """``n_mask_bytes`` as llguidance's tokenizer has it."""
        self._executor = LLExecutor(n_threads)
        self._n_mask_bytes = n_mask_bytes

    def fill(self, constraints: Sequence[TokenConstraint]) -> None:
        """The masks of those that are under a grammar already."""
        rows = [row for row in map(_running, constraints) if row is not None and not row.has_mask]
        if len(rows) < 2:
            return
        masks = (ctypes.c_char * (len(rows) * self._n_mask_bytes))()
        self._executor.unsafe_compute_mask_ptr(
            [(row.matcher, index) for index, row in enumerate(rows)],
            ctypes.addressof(masks),
            self._n_mask_bytes,
            len(rows),
        )
        computed = bytes(masks)
        for index, row in enumerate(rows):
            row.keep_mask(computed[index * self._n_mask_bytes : (index + 1) * self._n_mask_bytes])


def _running(constraint: TokenConstraint) -> GrammarMatcher | None:
    """What says a constraint's mask now."""
    if isinstance(constraint, LazyMatcher):
        return constraint.running
    return constraint if isinstance(constraint, GrammarMatcher) else None
