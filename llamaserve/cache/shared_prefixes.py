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
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from llamaserve._hot import common_prefix
from llamaserve.cache.instability import InstabilityWatch
from llamaserve.cache.prefix_index import PrefixIndex, Victim
from llamaserve.cache.prefix_memory import CaughtUp, Holder, PrefixCounters, PrefixGauges
from llamaserve.cache.prompt import TOKEN_TYPE, Prompt
from llamaserve.cache.saved_prefix import SavedPrefix
from llamaserve.cache.tiers import Tiers
from llamaserve.engine.port import Engine
from llamaserve.errors import EngineDown, EngineError

LEAST_TO_FOLLOW = 32
"""Tokens another must be about to compute of a prompt before it waits for them: what a step takes is not worth less."""

N_LATEST = 4
"""Texts parked last that a prompt with no cached prefix is compared with."""

_logger = logging.getLogger(__name__)


class _Running:
    """A slot's sequence, as far as prefixes go."""

    __slots__ = ("adopted_from", "leader", "n_computed", "n_led", "prompt")

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.n_computed = 0
        """Tokens of the prompt it holds."""
        self.adopted_from: int | None = None
        self.leader: _Running | None = None
        """Who computes what comes next of this prompt."""
        self.n_led = 0
        """Tokens it has in common with the leader."""


class SharedPrefixes:
    """A ``PrefixMemory`` for an engine that ``can_share``."""

    def __init__(self, engine: Engine, tiers: Tiers) -> None:
        info = engine.info
        self.counters = PrefixCounters()
        self._engine = engine
        self._tiers = tiers
        self._index = PrefixIndex()
        self._free_ids = list(range(engine.n_ids - 1, info.n_slots - 1, -1))
        self._n_slots = info.n_slots
        self._n_ctx = info.n_ctx
        self._running: dict[int, _Running] = {}
        self._sessions: OrderedDict[tuple[str, str], int] = OrderedDict()
        """What the last request of a session left, by scope and session; used longest ago first."""
        self._session_of: dict[int, tuple[str, str]] = {}
        self._watch = InstabilityWatch(self.counters)
        self._latest: deque[int] = deque(maxlen=N_LATEST)

    # Coming in.

    def choose_slot(self, prompt: Prompt, idle: Sequence[int]) -> int:
        """All idle slots are alike: that used longest ago (S29)."""
        del prompt
        return idle[0]

    def enter(self, seq_id: int, prompt: Prompt) -> int:
        """Adopt the longest prefix that a holder has, or that the tiers can bring back."""
        running = self._running[seq_id] = _Running(prompt)
        if not prompt.is_cached:
            return 0
        n_held, source = self._index.match(prompt.scope, prompt.tokens, prompt.n_reusable)
        n_before = n_held
        n_held, source = self._bring_back(prompt, n_held, source)
        if source is not None and not self._adopt(seq_id, source, n_held):
            n_held, source = 0, None
        self._index.add(seq_id, prompt.scope, prompt.tokens, n_held, n_tokens=n_held)
        self._index.set_busy(seq_id, True)
        running.n_computed = n_held
        running.adopted_from = source
        self._follow(running)
        self._count_entry(prompt, min(n_before, n_held), n_held)
        if running.leader is None:
            self._watch_stability(prompt, n_held)
        return n_held

    def _count_entry(self, prompt: Prompt, n_from_cells: int, n_held: int) -> None:
        counters = self.counters
        counters.tokens_queried += len(prompt.tokens)
        counters.tokens_from_cells += n_from_cells
        if n_held:
            counters.hits += 1
        else:
            counters.misses += 1

    def _watch_stability(self, prompt: Prompt, n_held: int) -> None:
        if 2 * n_held >= len(prompt.tokens):
            return
        left = None if prompt.session is None else self._sessions.get((prompt.scope, prompt.session))
        if left is not None:
            self._watch.compare_session(prompt.tokens, n_held, self._index.tokens(left))
            return
        for holder in self._latest:
            is_there = holder in self._index and self._index.scope(holder) == prompt.scope
            if is_there and self._watch.compare_recent(prompt.tokens, n_held, self._index.tokens(holder)):
                return

    def _adopt(self, seq_id: int, source: int, n_tokens: int) -> bool:
        try:
            self._engine.adopt(seq_id, source, n_tokens)
        except EngineDown:
            raise
        except EngineError as error:  # a sliding window that is gone, for instance
            _logger.info("sequence %d does not adopt %d tokens of %d: %s", seq_id, n_tokens, source, error)
            return False
        return True

    # Following: a prefix that somebody computes right now.

    def _follow(self, running: _Running) -> None:
        """Choose whom to wait for: who is about to compute most of what comes next in this prompt."""
        running.leader = None
        running.n_led = 0
        prompt = running.prompt
        for other in self._running.values():
            n_theirs = len(other.prompt.tokens)
            if other is running or other.n_computed >= n_theirs or not other.prompt.is_cached:
                continue
            if other.prompt.scope != prompt.scope or self._leads_to(other, running):
                continue
            n_common = min(common_prefix(prompt.tokens, other.prompt.tokens), prompt.n_reusable)
            is_ahead = n_common > other.n_computed >= running.n_computed
            if is_ahead and n_common - running.n_computed >= LEAST_TO_FOLLOW and n_common > running.n_led:
                running.leader, running.n_led = other, n_common

    @staticmethod
    def _leads_to(other: _Running, running: _Running) -> bool:
        """Whether the other waits, directly or not, for this one."""
        leader = other.leader
        while leader is not None:
            if leader is running:
                return True
            leader = leader.leader
        return False

    def catch_up(self, seq_id: int) -> CaughtUp:
        """Wait for the leader, then adopt; with a leader that is gone, whatever is there, and look for another."""
        running = self._running[seq_id]
        leader = running.leader
        if leader is None or seq_id not in self._index:
            return CaughtUp(running.n_computed, waits=False)
        if leader in self._running.values() and leader.n_computed < running.n_led:
            return CaughtUp(running.n_computed, waits=True)
        n_before = running.n_computed
        prompt = running.prompt
        n_held, source = self._index.match(prompt.scope, prompt.tokens, prompt.n_reusable)
        if source is not None and n_held > n_before and self._adopt(seq_id, source, n_held):
            self._index.rebase(seq_id, prompt.tokens, n_held, n_tokens=n_held)
            running.n_computed = n_held
            running.adopted_from = source
            self.counters.tokens_from_cells += n_held - n_before
            if n_before == 0:
                self.counters.hits += 1
                self.counters.misses -= 1
        self._follow(running)
        return CaughtUp(running.n_computed, waits=running.leader is not None)

    # Going on.

    def piece_ends(self, prompt: Prompt) -> Sequence[int]:
        """Anywhere is well."""
        del prompt
        return ()

    def advance(self, seq_id: int, n_computed: int) -> None:
        """Its prompt is in memory up to there."""
        running = self._running[seq_id]
        if running.prompt.is_cached and seq_id in self._index:
            self._index.extend(seq_id, running.prompt.tokens[running.n_computed : n_computed])
        running.n_computed = n_computed

    def grow(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Its text is in memory so far."""
        is_known = seq_id in self._index and self._index.length(seq_id) >= len(self._running[seq_id].prompt.tokens)
        if is_known:  # else it came back with cells of its own, which are not in the index
            self._index.extend(seq_id, array(TOKEN_TYPE, tokens))

    # Leaving.

    def leave(self, seq_id: int, tokens: array[int] | None) -> None:
        """Park what a request computed, or forget it."""
        running = self._running.pop(seq_id, None)
        try:
            if running is not None and tokens and seq_id in self._index:
                self._park(seq_id, running, tokens)
        finally:
            if seq_id in self._index:
                self._index.remove(seq_id)
            self._engine.close(seq_id)

    def _park(self, seq_id: int, running: _Running, tokens: array[int]) -> None:
        prompt = running.prompt
        n_tokens = len(tokens)
        n_in_memory = self._engine.length(seq_id)
        if n_in_memory != n_tokens:  # K108, K147: never give out cells whose tokens are not known
            _logger.error("sequence %d holds %d tokens, not %d: not kept", seq_id, n_in_memory, n_tokens)
            return
        index = self._index
        index.extend(seq_id, tokens[index.length(seq_id) :])
        n_indexed = index.length(seq_id)
        n_known, source = index.match(prompt.scope, tokens, n_tokens)
        is_copy = n_indexed < n_tokens  # others computed the same tokens, further than the part it has in the index
        if n_known == n_tokens and (is_copy or index.covered_by_others(seq_id)):
            holder = source if source is not None and source >= self._n_slots else None
        else:
            holder = self._park_as(seq_id, tokens, n_known, source if is_copy else None)
            if holder is None:
                return
            index.add(holder, prompt.scope, tokens, n_known)
            self.counters.parked += 1
            self._latest.append(holder)
        if is_copy:
            self.counters.merged_tokens += n_known - n_indexed
        self._hand_session_over(prompt, holder)
        if running.adopted_from != holder:
            self._drop_if_useless(running.adopted_from)

    def _park_as(self, seq_id: int, tokens: array[int], n_known: int, source: int | None) -> int | None:
        """Give the cells to a parked id: those that ``source`` has too from there, the rest from the slot."""
        holder = self._take_id()
        if holder is None:
            return None
        has_copied = source is None or n_known == 0 or self._adopt(holder, source, n_known)
        if has_copied and self._adopt(holder, seq_id, len(tokens)):
            return holder
        self._forget_cells(holder)
        self._free_ids.append(holder)
        return None

    def _hand_session_over(self, prompt: Prompt, holder: int | None) -> None:
        """A session keeps what its last request left, and no more."""
        if prompt.session is None:
            return
        session = (prompt.scope, prompt.session)
        before = self._sessions.pop(session, None)
        if before is not None:
            self._unpin(before)
        if holder is not None and holder not in self._session_of:  # else another session keeps it
            self._sessions[session] = holder
            self._session_of[holder] = session
            self._index.pin(holder, True)
            self._limit_pins()
        if before != holder:
            self._drop_if_useless(before)

    def _limit_pins(self) -> None:
        """Sessions keep half of the cells from others at most."""
        n_pinned = sum(self._index.length(holder) for holder in self._sessions.values())
        while n_pinned > self._n_ctx // 2 and len(self._sessions) > 1:
            _, holder = self._sessions.popitem(last=False)
            n_pinned -= self._index.length(holder)
            self._unpin(holder)

    def _unpin(self, holder: int) -> None:
        self._session_of.pop(holder, None)
        if holder in self._index:
            self._index.pin(holder, False)

    def _drop_if_useless(self, holder: int | None) -> None:
        """A parked sequence all of whose cells others hold gives nothing that they do not give."""
        is_parked = holder is not None and holder >= self._n_slots and holder in self._index
        if (
            holder is not None
            and is_parked
            and holder not in self._session_of
            and self._index.covered_by_others(holder)
        ):
            self._forget(holder)

    def lose(self, seq_id: int) -> None:
        """Its cells are gone."""
        if seq_id in self._index:
            self._index.remove(seq_id)

    # Giving up a place, and coming back.

    def suspend(self, seq_id: int) -> None:
        """The engine has closed it."""
        self._running.pop(seq_id, None)
        if seq_id in self._index:
            self._index.remove(seq_id)

    def resume(self, seq_id: int, prompt: Prompt) -> None:
        """It is back with cells of its own; they are merged with others' when it is parked."""
        running = self._running[seq_id] = _Running(prompt)
        running.n_computed = len(prompt.tokens)
        if prompt.is_cached:
            self._index.add(seq_id, prompt.scope, array(TOKEN_TYPE), 0)
            self._index.set_busy(seq_id, True)

    # Making room.

    @property
    def n_evictable(self) -> int:
        """Cells only parked sequences hold."""
        return self._index.n_cells_idle

    def make_room(self, n_cells: int) -> bool:
        """Evict the runs of cells used longest ago until the engine has room."""
        while self._n_ctx - self._engine.used_cells() < n_cells:
            victim = self._index.victim()
            if victim is None:
                return False
            self._evict(victim)
        return True

    def _evict(self, victim: Victim) -> None:
        holder = victim.holders[0]
        if self._tiers.offer(self._index.scope(holder), self._index.tokens(holder), victim.n_tokens, holder):
            self.counters.saves += 1
        self.counters.evictions += 1
        self.counters.evicted_tokens += victim.n_cells
        for holder in victim.holders:
            self._index.trim(holder, victim.n_tokens)
            if victim.n_tokens == 0 or self._index.covered_by_others(holder):
                self._forget(holder)
            elif not self._engine.trim(holder, victim.n_tokens):
                _logger.error("parked sequence %d could not be cut to %d tokens", holder, victim.n_tokens)
                self._forget(holder)

    def _forget(self, holder: int) -> None:
        """Free a parked id."""
        session = self._session_of.pop(holder, None)
        if session is not None:
            self._sessions.pop(session, None)
        self._index.remove(holder)
        self._forget_cells(holder)
        self._free_ids.append(holder)

    def _forget_cells(self, seq_id: int) -> None:
        try:
            self._engine.trim(seq_id, 0)
        except EngineDown:
            raise
        except Exception:
            _logger.exception("sequence %d could not be forgotten", seq_id)

    def _take_id(self) -> int | None:
        """An id to park under; the parked sequence used longest ago gives its own up when all are taken."""
        if not self._free_ids:
            oldest = next(iter(self._index.purge_order()), None)
            if oldest is None:
                return None
            tokens = self._index.tokens(oldest)
            if self._tiers.offer(self._index.scope(oldest), tokens, self._index.shared_length(oldest), oldest):
                self.counters.saves += 1
            self._forget(oldest)
        return self._free_ids.pop()

    def purge_order(self) -> Sequence[int]:
        """Parked ids, those used longest ago first, sessions last."""
        return self._index.purge_order()

    def purged(self, seq_ids: Sequence[int]) -> None:
        """The engine has forgotten these."""
        for holder in seq_ids:
            if holder in self._index:
                self.counters.evictions += 1
                self.counters.evicted_tokens += self._index.length(holder) - self._index.shared_length(holder)
                self._forget(holder)

    # Copies outside the cache.

    def prefetch(self, request_id: str, prompt: Prompt, done: Callable[[], None]) -> None:
        """Read what only the disk has of the prompt."""
        if prompt.is_cached and self._tiers.has_disk:
            n_held, _ = self._index.peek(prompt.scope, prompt.tokens, prompt.n_reusable)
            self._tiers.prefetch(request_id, prompt, n_held, done)

    def is_fetching(self, request_id: str) -> bool:
        """Whether the disk is being read for it."""
        return self._tiers.is_fetching(request_id)

    def drop_fetch(self, request_id: str) -> None:
        """It will not begin."""
        self._tiers.drop_fetch(request_id)

    def _bring_back(self, prompt: Prompt, n_held: int, source: int | None) -> tuple[int, int | None]:
        """Restore saved runs of cells as long as they carry the prompt further; what is held then, and by whom."""
        while (hit := self._tiers.best(prompt.scope, prompt.tokens, n_held, prompt.n_reusable)) is not None:
            saved = hit.saved
            if not self.make_room(len(saved.tokens) - saved.start):
                break
            n_held, source = self._index.match(prompt.scope, prompt.tokens, prompt.n_reusable)
            if n_held < saved.start:  # making room took what it goes on from
                break
            holder = self._restore(saved, hit.n_tokens, n_held, source)
            if holder is None:
                self._tiers.discard(hit)
                break
            self._index.add(holder, prompt.scope, prompt.tokens, n_held, n_tokens=hit.n_tokens)
            self._tiers.took(hit)
            self._count_restored(hit.n_tokens - n_held, is_from_disk=hit.is_from_disk)
            n_held, source = hit.n_tokens, holder
        return n_held, source

    def _count_restored(self, n_tokens: int, *, is_from_disk: bool) -> None:
        self.counters.restores += 1
        if is_from_disk:
            self.counters.tokens_from_disk += n_tokens
        else:
            self.counters.tokens_from_ram += n_tokens

    def _restore(self, saved: SavedPrefix, n_tokens: int, n_held: int, source: int | None) -> int | None:
        """A parked id with the first ``n_tokens`` of a saved prefix, of which ``source`` has ``n_held``; None where
        that fails."""
        holder = self._take_id()
        if holder is None:
            return None
        has_start = saved.start == 0 or (source is not None and self._adopt(holder, source, saved.start))
        if has_start and self._put_back(holder, saved):
            if n_held == saved.start:
                if self._engine.trim(holder, n_tokens):
                    return holder
            elif source is not None:
                merged = self._merge(holder, source, n_held, n_tokens)
                if merged is not None:
                    return merged
        self._forget_cells(holder)
        self._free_ids.append(holder)
        return None

    def _put_back(self, holder: int, saved: SavedPrefix) -> bool:
        try:
            return self._engine.restore(holder, saved.state)
        except EngineDown:
            raise
        except Exception:
            _logger.exception("a saved prefix could not be restored")
            return False

    def _merge(self, holder: int, source: int, n_held: int, n_tokens: int) -> int | None:
        """A parked id with the source's first ``n_held`` tokens and then those of ``holder``, which is freed; None
        where that fails, and ``holder`` is as it was."""
        merged = self._take_id()
        if merged is None:
            return None
        if self._adopt(merged, source, n_held) and self._adopt(merged, holder, n_tokens):
            self._forget_cells(holder)
            self._free_ids.append(holder)
            return merged
        self._forget_cells(merged)
        self._free_ids.append(merged)
        return None

    # The end, and looking in.

    def clear(self) -> None:
        """The engine is down."""
        self._index = PrefixIndex()
        self._running.clear()
        self._sessions.clear()
        self._session_of.clear()
        self._free_ids = list(range(self._engine.n_ids - 1, self._n_slots - 1, -1))

    def close(self) -> None:
        """Have the disk keep what is parked, that used last first."""
        for holder in reversed(self._index.purge_order()):
            self._tiers.keep(self._index.scope(holder), self._index.tokens(holder), holder)
        self._tiers.close()

    def gauges(self) -> PrefixGauges:
        """Numbers as they are now."""
        n_parked = self._engine.n_ids - self._n_slots - len(self._free_ids)
        return PrefixGauges(
            parked_sequences=n_parked,
            parked_cells=self._index.n_cells_idle,
            ram_entries=self._tiers.ram_entries,
            ram_bytes=self._tiers.ram_bytes,
            disk_entries=self._tiers.disk_entries,
            disk_bytes=self._tiers.disk_bytes,
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
        session = self._session_of.get(holder)
        is_parked = holder >= self._n_slots
        return Holder(holder, n_tokens, n_shared, None if session is None else session[1], is_parked=is_parked)
