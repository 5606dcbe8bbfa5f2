"""Prefixes in an engine whose sequences can share cells: computed once, parked when their request is done.

A request that ends leaves its cells to an id that no slot has (it is *parked*): metadata, whatever its length. A
request that begins adopts the longest prefix anybody holds: parked, prefilling or generating. One whose prefix another
request is just computing waits for it (it *follows* the other) and adopts it then. Tokens that two sequences computed
alike are merged when one of them is parked: the copy's cells are freed. So each node of the index is a run of cells
that exists once.

Scheduler thread only, but for ``gauges`` and ``holders``.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from llamaserve.cache.eviction import Eviction
from llamaserve.cache.following import RunningPrompt, choose_leader, waits
from llamaserve.cache.instability import InstabilityWatch
from llamaserve.cache.parked_cells import ParkedCells
from llamaserve.cache.prefix_index import PrefixIndex
from llamaserve.cache.prefix_memory import CaughtUp, Holder, PrefixGauges
from llamaserve.cache.private_scopes import PrivateScopes
from llamaserve.cache.prompt import TOKEN_TYPE, Prompt
from llamaserve.cache.restoring import Restorer
from llamaserve.cache.session_pins import SessionPins
from llamaserve.cache.tiers import Tiers
from llamaserve.engine.port import Engine

N_LATEST = 4
"""Texts parked last that a prompt with little in the cache is compared with."""

_logger = logging.getLogger(__name__)


class SharedPrefixes:
    """A ``PrefixMemory`` for an engine that ``can_share``."""

    def __init__(self, engine: Engine, tiers: Tiers, *, most_parked: int) -> None:
        """``most_parked``: cells only parked sequences hold beyond which ``spill`` moves them to RAM."""
        self.counters = tiers.counters
        self._engine = engine
        self._tiers = tiers
        self._index = index = PrefixIndex()
        self._parked = ParkedCells(engine, index)
        self._pins = SessionPins(index, most_cells=engine.info.n_ctx // 2)
        self._private = PrivateScopes()
        self._eviction = Eviction(
            self._parked, self._pins, tiers, self.counters, self._private, most_parked=most_parked
        )
        self._restorer = Restorer(self._parked, self._eviction, tiers, self.counters)
        self._running: dict[int, RunningPrompt] = {}
        self._watch = InstabilityWatch(self.counters)
        self._latest: deque[int] = deque(maxlen=N_LATEST)

    # Coming in.

    def choose_slot(self, prompt: Prompt, idle: Sequence[int]) -> int:
        """All idle slots are alike: that used longest ago (S29)."""
        del prompt
        return idle[0]

    def enter(self, seq_id: int, prompt: Prompt) -> int:
        """Adopt the longest prefix that a holder has, or that the tiers can bring back."""
        running = self._running[seq_id] = RunningPrompt(seq_id, prompt)
        self._private.enter(prompt)
        if not prompt.is_cached:
            return 0
        in_cells = self._index.match(prompt.scope, prompt.tokens, prompt.n_reusable)
        n_held, source = self._restorer.bring_back(prompt, in_cells)
        if source is not None and not self._parked.adopt(seq_id, source, n_held):
            n_held, source = 0, None
        if n_held == 0:
            self._index.add(seq_id, prompt.scope, array(TOKEN_TYPE), 0)
        else:
            self._index.add(seq_id, prompt.scope, prompt.tokens, n_held, n_tokens=n_held)
        self._index.set_busy(seq_id, True)
        running.n_computed = n_held
        running.adopted_from = source
        self.counters.tokens_queried += len(prompt.tokens)
        self.counters.tokens_from_cells += min(in_cells.n_tokens, n_held)
        choose_leader(running, self._leaders())
        if running.leader is None:
            self._watch_stability(prompt, n_held)
        return n_held

    def _watch_stability(self, prompt: Prompt, n_held: int) -> None:
        if 2 * n_held >= len(prompt.tokens):
            return
        left = None if prompt.session is None else self._pins.holder_of((prompt.scope, prompt.session))
        if left is not None:
            self._watch.compare_session(prompt.tokens, n_held, self._index.tokens(left))
            return
        for holder in self._latest:
            is_there = holder in self._index and self._index.scope(holder) == prompt.scope
            if is_there and self._watch.compare_recent(prompt.tokens, n_held, self._index.tokens(holder)):
                return

    # Following: a prefix that somebody computes right now.

    def _leaders(self) -> Iterator[RunningPrompt]:
        """Those whose cells, all of them, others can adopt."""
        for running in self._running.values():
            is_candidate = running.is_at_it and running.prompt.is_cached
            if is_candidate and self._n_indexed(running.seq_id) == running.n_computed:
                yield running

    def _n_indexed(self, seq_id: int) -> int:
        return self._index.length(seq_id) if seq_id in self._index else -1

    def catch_up(self, seq_id: int) -> CaughtUp:
        """Wait for the leader, then adopt; with a leader that is gone, whatever is there, and look for another."""
        running = self._running[seq_id]
        leader = running.leader
        if leader is None or seq_id not in self._index:
            return CaughtUp(running.n_computed, waits=False)
        is_live = self._running.get(leader.seq_id) is leader
        if is_live and waits(running, leader):
            return CaughtUp(running.n_computed, waits=True)
        self._adopt_more(running)
        is_stuck = is_live and leader.n_computed < running.n_led
        choose_leader(running, () if is_stuck else self._leaders())
        return CaughtUp(running.n_computed, waits=running.leader is not None)

    def _adopt_more(self, running: RunningPrompt) -> None:
        prompt, n_before = running.prompt, running.n_computed
        n_held, source = self._index.match(prompt.scope, prompt.tokens, prompt.n_reusable)
        if source is not None and n_held > n_before and self._parked.adopt(running.seq_id, source, n_held):
            self._index.rebase(running.seq_id, prompt.tokens, n_held, n_tokens=n_held)
            running.n_computed = n_held
            running.adopted_from = source
            self.counters.tokens_from_cells += n_held - n_before

    # Going on.

    def piece_ends(self, prompt: Prompt) -> Sequence[int]:
        """Anywhere is well."""
        del prompt
        return ()

    def advance(self, seq_id: int, n_computed: int) -> None:
        """Its prompt is in memory up to there."""
        running = self._running[seq_id]
        self._count(running)
        if seq_id in self._index:
            self._index.extend(seq_id, running.prompt.tokens[running.n_computed : n_computed])
        running.n_computed = n_computed

    def _count(self, running: RunningPrompt) -> None:
        """A hit or a miss, when it is known what it reuses: before it has computed anything."""
        if running.is_counted or not running.prompt.is_cached:
            return
        running.is_counted = True
        if running.n_computed:
            self.counters.hits += 1
        else:
            self.counters.misses += 1

    def grow(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Its text is in memory so far."""
        # One that came back with cells of its own is not in the index before it is parked.
        if self._n_indexed(seq_id) >= len(self._running[seq_id].prompt.tokens):
            self._index.extend(seq_id, array(TOKEN_TYPE, tokens))

    # Leaving.

    def leave(self, seq_id: int, tokens: array[int] | None) -> None:
        """Park what a request computed, or forget it."""
        running = self._running.pop(seq_id, None)
        ended = None if running is None else self._private.leave(running.prompt)
        try:
            if running is not None:
                self._count(running)
                if tokens and seq_id in self._index and ended is None:
                    self._park(running, tokens)
        finally:
            if seq_id in self._index:
                self._index.remove(seq_id)
            if not self._engine.close(seq_id):  # it was never opened, and may have adopted something
                self._engine.trim(seq_id, 0)
            self._forget_scope(ended)

    def _forget_scope(self, scope: str | None) -> None:
        """Nobody is left who could use what is parked there."""
        if scope is not None:
            for holder in [holder for holder in self._index.holders() if self._index.scope(holder) == scope]:
                self._eviction.forget(holder)

    def _park(self, running: RunningPrompt, tokens: array[int]) -> None:
        seq_id, index = running.seq_id, self._index
        n_in_memory = self._engine.length(seq_id)
        if n_in_memory != len(tokens):  # K108, K147: never give out cells whose tokens are not known
            _logger.error("sequence %d holds %d tokens, not %d: not kept", seq_id, n_in_memory, len(tokens))
            return
        index.extend(seq_id, tokens[index.length(seq_id) :])
        spare = self._eviction.take_id()  # before any look at who holds what: it may cost a parked sequence
        holder = self._settle(running, tokens, spare)
        if spare is not None and holder != spare:
            self._parked.give_back(spare)
        if holder is not None and holder == spare:
            self.counters.parked += 1
            self._latest.append(holder)
            self._eviction.may_spill_again()
        self._hand_session_over(running.prompt, holder)
        if running.adopted_from != holder:
            self._eviction.drop_if_useless(running.adopted_from)

    def _settle(self, running: RunningPrompt, tokens: array[int], spare: int | None) -> int | None:
        """Take the slot's sequence out of the index, with ``spare`` in its place if nobody else holds all of its
        tokens; the parked sequence that holds them then."""
        seq_id, index, prompt = running.seq_id, self._index, running.prompt
        n_tokens, n_indexed = len(tokens), index.length(seq_id)
        if n_indexed == n_tokens and not index.covered_by_others(seq_id):
            if spare is None or not self._parked.adopt(spare, seq_id, n_tokens):
                return None
            index.add(spare, prompt.scope, tokens, n_tokens)
            index.remove(seq_id)
            return spare
        index.remove(seq_id)  # others have all that is indexed of it
        n_known, source = index.match(prompt.scope, tokens, n_tokens)
        self.counters.merged_tokens += n_known - n_indexed
        if source is not None and n_known == n_tokens:
            return source if self._parked.is_parked(source) else None
        if spare is None or (source is not None and not self._parked.adopt(spare, source, n_known)):
            return None
        if not self._parked.adopt(spare, seq_id, n_tokens):
            return None
        index.add(spare, prompt.scope, tokens, n_known)
        return spare

    def _hand_session_over(self, prompt: Prompt, holder: int | None) -> None:
        """A session keeps what its last request left, and no more."""
        if prompt.session is not None:
            before = self._pins.hand_over((prompt.scope, prompt.session), holder)
            if before != holder:
                self._eviction.drop_if_useless(before)

    def lose(self, seq_id: int) -> None:
        """Its cells are gone."""
        if seq_id in self._index:
            self._index.remove(seq_id)

    # Giving up a place, and coming back.

    def suspend(self, seq_id: int) -> None:
        """The engine has closed it."""
        running = self._running.pop(seq_id, None)
        self.lose(seq_id)
        if running is not None:
            self._forget_scope(self._private.leave(running.prompt))

    def resume(self, seq_id: int, prompt: Prompt) -> None:
        """It is back with cells of its own; they are merged with others' when it is parked."""
        running = self._running[seq_id] = RunningPrompt(seq_id, prompt)
        running.n_computed = len(prompt.tokens)
        running.is_counted = True
        self._private.enter(prompt)
        if prompt.is_cached:
            self._index.add(seq_id, prompt.scope, array(TOKEN_TYPE), 0)
            self._index.set_busy(seq_id, True)

    # Making room.

    @property
    def n_evictable(self) -> int:
        """Cells only parked sequences hold."""
        return self._index.n_cells_idle

    def make_room(self, n_cells: int) -> bool:
        """Evict what was used longest ago."""
        return self._eviction.make_room(n_cells)

    @property
    def n_surplus(self) -> int:
        """Parked cells beyond those that may stay."""
        return self._eviction.n_surplus

    def spill(self) -> None:
        """Move some of them to RAM."""
        self._eviction.spill()

    def purge_order(self) -> Sequence[int]:
        """Parked ids, those used longest ago first, sessions last."""
        return self._index.purge_order()

    def purged(self, seq_ids: Sequence[int]) -> None:
        """The engine has forgotten these."""
        self._eviction.purged(seq_ids)

    # Copies outside the cache.

    def prefetch(self, request_id: str, prompt: Prompt, done: Callable[[], None]) -> None:
        """Read what only the disk has of the prompt."""
        self._private.wait(request_id, prompt)
        if prompt.is_kept and self._tiers.has_disk:
            n_held, _ = self._index.peek(prompt.scope, prompt.tokens, prompt.n_reusable)
            self._tiers.prefetch(request_id, prompt, n_held, done)

    def is_fetching(self, request_id: str) -> bool:
        """Whether the disk is being read for it."""
        return self._tiers.is_fetching(request_id)

    def drop_fetch(self, request_id: str) -> None:
        """It has begun, or will not."""
        self._tiers.drop_fetch(request_id)
        self._forget_scope(self._private.end_wait(request_id))

    # The end, and looking in.

    def clear(self) -> None:
        """The engine is down."""
        self._running.clear()
        self._private.clear()
        for holder in self._index.holders():
            self._pins.forget(holder)
            self._index.remove(holder)
        self._tiers.close()

    def close(self) -> None:
        """Have the disk keep what is parked, that used last first."""
        try:
            for holder in reversed(self._index.purge_order()):
                if self._index.scope(holder) not in self._private:
                    self._tiers.keep(self._index.scope(holder), self._index.tokens(holder), holder)
        finally:
            self._tiers.close()

    def gauges(self) -> PrefixGauges:
        """Numbers as they are now."""
        return self._tiers.gauges(
            parked_sequences=self._parked.n_parked,
            parked_cells=self._index.n_cells_idle,
            shares=True,
        )

    def holders(self) -> Sequence[Holder]:
        """Slots with a request, then parked sequences."""
        views = (self._view(holder) for holder in sorted(self._index.holders()))
        return [view for view in views if view is not None]

    def _view(self, holder: int) -> Holder | None:
        """None when the scheduler has just dropped it."""
        try:
            n_tokens, n_shared = self._index.length(holder), self._index.shared_length(holder)
        except KeyError:
            return None
        session = self._pins.session_of(holder)
        scope, name = ("", None) if session is None else session
        is_parked = self._parked.is_parked(holder)
        return Holder(holder, n_tokens, n_shared, name, is_parked=is_parked, session_scope=scope)
