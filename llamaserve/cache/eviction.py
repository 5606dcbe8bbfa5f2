"""Parked sequences give way: to requests that want cells or an id, and to those that run and look at fewer cells then.

Scheduler thread only. Raises EngineDown.
"""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.cache.parked_cells import ParkedCells
from llamaserve.cache.prefix_index import Victim
from llamaserve.cache.prefix_memory import PrefixCounters
from llamaserve.cache.private_scopes import PrivateScopes
from llamaserve.cache.saved_prefix import MIN_TOKENS
from llamaserve.cache.session_pins import SessionPins
from llamaserve.cache.tiers import Tiers

LEAST_TO_EVICT = 128
"""Tokens of a run that go together, if it has so many: the next steps need room too."""
MOST_TO_SPILL = 1024
"""Most tokens moved to RAM between two steps: about 6 ms for the default model, less than a step."""


def _cut_place(victim: Victim, n_goes: int) -> int:
    """Where to cut a run so that ``n_goes`` tokens of it go. No piece that is too short for a copy stays: the copies of
    what came after it would have nothing to go on from."""
    n_stays = victim.n_cells - n_goes
    return victim.n_tokens + (n_stays if n_stays >= MIN_TOKENS else 0)


class Eviction:
    """What goes first, and where it goes."""

    def __init__(
        self,
        parked: ParkedCells,
        pins: SessionPins,
        tiers: Tiers,
        counters: PrefixCounters,
        private: PrivateScopes,
        *,
        most_parked: int,
    ) -> None:
        self._engine = parked.engine
        self._n_ctx = parked.engine.info.n_ctx
        self._index = parked.index
        self._parked = parked
        self._pins = pins
        self._tiers = tiers
        self._counters = counters
        self._private = private
        self._most_parked = most_parked
        self._may_spill = True
        """RAM took the last run it was given."""

    @property
    def n_free(self) -> int:
        """Cells nobody holds."""
        return self._n_ctx - self._engine.used_cells()

    def can_make_room(self, n_cells: int) -> bool:
        """Whether so many cells would be free if all went that may go."""
        return n_cells <= self.n_free + self._index.n_cells_idle

    def make_room(self, n_cells: int) -> bool:
        """Evict the runs used longest ago, from their ends, until so many cells are free; whether they are."""
        while (n_missing := n_cells - self.n_free) > 0:
            victim = self._index.victim()
            if victim is None:
                return False
            self._evict(victim.holders, _cut_place(victim, max(n_missing, LEAST_TO_EVICT)))
        return True

    def take_id(self) -> int | None:
        """An id to park under; the parked sequence used longest ago gives its own up when all are taken."""
        if not self._parked.free_ids:
            oldest = self._index.oldest_idle()
            if oldest is not None:
                self._evict([oldest], min(self._index.shared_length(oldest), self._index.length(oldest) - 1))
                if oldest in self._index:
                    self.forget(oldest)
        return self._parked.free_ids.pop() if self._parked.free_ids else None

    def forget(self, holder: int) -> None:
        """A parked sequence is not kept any more."""
        self._pins.forget(holder)
        self._parked.forget(holder)

    def drop_if_useless(self, holder: int | None) -> None:
        """A parked sequence all of whose cells others hold gives nothing that they do not give, unless it is a
        session's."""
        if holder is None or holder not in self._index or not self._parked.is_parked(holder):
            return
        if self._pins.session_of(holder) is None and self._index.covered_by_others(holder):
            self.forget(holder)

    def purged(self, seq_ids: Sequence[int]) -> None:
        """The engine has forgotten these."""
        for holder in seq_ids:
            if holder in self._index:
                self._counters.evictions += 1
                self._counters.evicted_tokens += self._index.length(holder) - self._index.shared_length(holder)
                self.forget(holder)

    # Out of the way of those that run.

    @property
    def n_surplus(self) -> int:
        """Parked cells beyond those that may stay, while RAM takes them."""
        return max(0, self._index.n_cells_idle - self._most_parked) if self._may_spill else 0

    def may_spill_again(self) -> None:
        """Something else was parked: RAM may take that."""
        self._may_spill = True

    def spill(self) -> None:
        """Move some of the parked run used longest ago to RAM; what is private just goes."""
        victim = self._index.victim()
        if victim is None:
            return
        holder = victim.holders[0]
        tokens = self._index.tokens(holder)
        start = _cut_place(victim, MOST_TO_SPILL)
        scope = self._index.scope(holder)
        self._may_spill = scope in self._private or self._tiers.take_over(scope, tokens, start, holder, self._n_ctx)
        if self._may_spill:
            self._cut(victim.holders, start)

    def _evict(self, holders: Sequence[int], n_tokens: int) -> None:
        """Free the cells of parked sequences, which hold the same, behind their first ``n_tokens``."""
        holder = holders[0]
        scope = self._index.scope(holder)
        if scope not in self._private:
            self._tiers.offer(scope, self._index.tokens(holder), n_tokens, holder)
        self._cut(holders, n_tokens)

    def _cut(self, holders: Sequence[int], n_tokens: int) -> None:
        self._counters.evictions += 1
        self._counters.evicted_tokens += self._index.length(holders[0]) - n_tokens
        for holder in holders:
            self._parked.cut(holder, n_tokens)
            if holder not in self._index:
                self._pins.forget(holder)
