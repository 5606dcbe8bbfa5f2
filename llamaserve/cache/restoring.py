"""Saved prefixes come back: into parked sequences, which whoever wants them adopts. Scheduler thread only.

Raises EngineDown; any other failure means that the tokens are computed.
"""

from __future__ import annotations

import logging

from llamaserve.cache.eviction import Eviction
from llamaserve.cache.parked_cells import ParkedCells
from llamaserve.cache.prefix_index import Match
from llamaserve.cache.prefix_memory import PrefixCounters
from llamaserve.cache.prompt import Prompt
from llamaserve.cache.tiers import TierHit, Tiers
from llamaserve.errors import EngineDown, EngineError

_logger = logging.getLogger(__name__)


class Restorer:
    """Carries what is held of a prompt further with copies from the tiers."""

    def __init__(self, parked: ParkedCells, eviction: Eviction, tiers: Tiers, counters: PrefixCounters) -> None:
        self._engine = parked.engine
        self._index = parked.index
        self._parked = parked
        self._eviction = eviction
        self._tiers = tiers
        self._counters = counters

    def bring_back(self, prompt: Prompt, held: Match) -> Match:
        """Restore saved runs as long as they carry the prompt further; what is held then, and by whom."""
        while (hit := self._tiers.best(prompt.scope, prompt.tokens, held.n_tokens, prompt.n_reusable)) is not None:
            restored = self._carry(prompt, hit, held)
            if restored is None:
                break
            before, held = held.holder, restored
            self._eviction.drop_if_useless(before)
        return held

    def _carry(self, prompt: Prompt, hit: TierHit, held: Match) -> Match | None:
        """Restore one run behind what is held; what is held then, None where that fails and nothing has changed."""
        is_idle = held.holder is not None and self._parked.is_parked(held.holder)
        if held.holder is not None and is_idle:  # room must not be made of what the run goes on from
            self._index.set_busy(held.holder, True)
        ids: list[int | None] = []
        restored = None
        try:
            n_wanted = len(hit.saved.tokens) - hit.saved.start
            if self._eviction.can_make_room(n_wanted) and self._eviction.make_room(n_wanted):
                ids = [self._eviction.take_id(), self._eviction.take_id()]
                if ids[0] is not None and ids[1] is not None:
                    restored = self._restore(hit, held, ids[0], ids[1])
        finally:
            for unused in ids:
                if unused is not None and unused != restored:
                    self._parked.give_back(unused)
            if held.holder is not None and is_idle:
                self._index.set_busy(held.holder, False)
        if restored is None:
            return None
        self._index.add(restored, prompt.scope, prompt.tokens, held.n_tokens, n_tokens=hit.n_tokens)
        self._tiers.took(hit)
        self._count(hit.n_tokens - held.n_tokens, is_from_disk=hit.is_from_disk)
        return Match(hit.n_tokens, restored)

    def _restore(self, hit: TierHit, held: Match, holder: int, merged: int) -> int | None:
        """The id, of these two, that holds the first ``hit.n_tokens`` tokens now, in the cells that are there and then
        in new ones; None where that fails."""
        saved = hit.saved
        if saved.start and (held.holder is None or not self._parked.adopt(holder, held.holder, saved.start)):
            return None
        if not self._put_back(holder, hit):
            return None
        if held.holder is None or held.n_tokens == saved.start:
            return holder if self._engine.trim(holder, hit.n_tokens) else None
        has_start = self._parked.adopt(merged, held.holder, held.n_tokens)  # its copy of these is not needed
        return merged if has_start and self._parked.adopt(merged, holder, hit.n_tokens) else None

    def _put_back(self, holder: int, hit: TierHit) -> bool:
        """False where there is no room, and where the engine refuses the copy, which is of no use then."""
        try:
            return self._engine.restore(holder, hit.saved.state)
        except EngineDown:
            raise
        except EngineError as error:
            _logger.warning("a saved prefix cannot be restored: %s", error)
            self._tiers.discard(hit)
            return False

    def _count(self, n_tokens: int, *, is_from_disk: bool) -> None:
        self._counters.restores += 1
        if is_from_disk:
            self._counters.tokens_from_disk += n_tokens
        else:
            self._counters.tokens_from_ram += n_tokens
