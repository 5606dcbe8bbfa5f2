"""Copies of cells in RAM: what was evicted from the KV cache comes back faster than it is computed.

Scheduler thread only, but for ``n_bytes`` and ``n_entries``.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from llamaserve.cache.saved_index import SavedIndex
from llamaserve.cache.saved_prefix import SavedPrefix


class RamHit(NamedTuple):
    """The copy that brings most."""

    saved: SavedPrefix
    n_tokens: int
    """Tokens of the prompt there are when it is restored and the rest of it is trimmed."""


class RamTier:
    """Saved prefixes, at most ``max_bytes`` of them (0 = off): those used longest ago go first (K5).

    Stored: state and tokens. Keyed: by scope and tokens. A hit counts as use and leaves the copy where it is. One copy
    stands in for another, which is not kept then, if it has all its positions and could be restored in its place.
    Without ``can_trim`` the engine can use a state as a whole only. Raises ValueError for a negative budget.
    """

    def __init__(self, max_bytes: int, *, can_trim: bool = True) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes is {max_bytes}: it must be at least 0")
        self.max_bytes = max_bytes
        self._index: SavedIndex[SavedPrefix] = SavedIndex(can_trim=can_trim)

    @property
    def n_bytes(self) -> int:
        """Bytes of all copies. Any thread."""
        return self._index.n_bytes

    @property
    def n_entries(self) -> int:
        """Any thread."""
        return len(self._index)

    def entries(self) -> tuple[SavedPrefix, ...]:
        """All copies, those used longest ago first."""
        return tuple(self._index)

    def has(self, scope: str, tokens: array[int], start: int) -> bool:
        """Whether a copy that is here brings all that one of these tokens from ``start`` on would bring; to be asked
        before the cells are copied (S36)."""
        return self._index.is_covered(scope, tokens, start)

    def goes_on(self, scope: str, tokens: array[int], start: int) -> bool:
        """Whether a copy that is here is of no use without these tokens from ``start`` on: it begins among them or at
        their end."""
        return self._index.goes_on(scope, tokens, start)

    def put(self, saved: SavedPrefix) -> list[SavedPrefix]:
        """Keep a copy, drop those it stands in for, and evict others until all fit.

        Returns what was evicted, for a tier that has more room: also the copy itself, if it alone is over the budget.
        One that another stands in for is dropped.
        """
        if saved.n_bytes > self.max_bytes:
            return [saved]
        if self.has(saved.scope, saved.tokens, saved.start):
            return []
        for copy in self._index.covered_by(saved.scope, saved.tokens, saved.start):
            self._index.discard(copy)
        evicted = []
        while self._index.n_bytes + saved.n_bytes > self.max_bytes and (oldest := self._index.oldest()) is not None:
            self._index.discard(oldest)
            evicted.append(oldest)
        self._index.add(saved)
        return evicted

    def best(
        self, scope: str, tokens: array[int], n_have: int, limit: int, least_gain: int | None = None
    ) -> RamHit | None:
        """The copy that gives a prompt, of which ``n_have`` tokens are there, most of its first ``limit``; the smallest
        of equal ones. None if none is worth restoring: ``is_worth_restoring`` has the rule, and ``least_gain``.

        The caller trims the sequence to ``saved.start`` tokens, restores, and trims to ``n_tokens``; then it may ask
        again, for a piece that goes on from there.
        """
        found = self._index.best(scope, tokens, n_have, limit, least_gain)
        if found is None:
            return None
        self._index.touch(found.copy)
        return RamHit(found.copy, found.n_tokens)

    def discard(self, saved: SavedPrefix) -> None:
        """Forget a copy, if it is here: it could not be restored."""
        self._index.discard(saved)
