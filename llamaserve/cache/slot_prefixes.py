"""Prefixes in an engine whose sequences cannot share cells: what a request leaves stays in its slot.

For split KV, recurrent, hybrid and sliding-window memory. The next request that begins in a slot goes on from what both
have in common (S27): ``slot_pick`` says which slot that is, ``slot_cells`` what becomes of its cells. Where memory
cannot be cut anywhere, checkpoints are made while prompts are computed.

Scheduler thread only, but for ``gauges`` and ``holders``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from llamaserve._hot import common_prefix
from llamaserve.cache.checkpoints import checkpoint_positions
from llamaserve.cache.instability import InstabilityWatch
from llamaserve.cache.prefix_memory import CaughtUp, Holder, PrefixGauges, is_one_pool
from llamaserve.cache.prompt import Prompt
from llamaserve.cache.slot_cells import SlotCells
from llamaserve.cache.slot_pick import SlotView, choose_slot
from llamaserve.cache.tiers import Tiers
from llamaserve.engine.port import Engine
from llamaserve.errors import EngineDown

SessionKey = tuple[str, str]
"""Scope and session."""


class _Slot:
    """Who uses a slot, and whose it was."""

    __slots__ = ("checkpoint_at", "last_used", "n_computed", "prompt", "session")

    def __init__(self) -> None:
        self.prompt: Prompt | None = None
        """Of the request that has it; None while it is idle."""
        self.n_computed = 0
        """Tokens it has of that prompt."""
        self.checkpoint_at: tuple[int, ...] = ()
        self.session: SessionKey | None = None
        """Of the last request."""
        self.last_used = 0


class SlotPrefixes:
    """A ``PrefixMemory`` for an engine that cannot share cells.

    ``similarity`` is the part of a prompt a slot must have for the prompt to begin there, 0 = slots are not compared.
    ``checkpoint_bytes`` is the most RAM that the checkpoints of all slots take together. Raises ValueError when that is
    negative.
    """

    def __init__(self, engine: Engine, tiers: Tiers, *, similarity: float, checkpoint_bytes: int) -> None:
        info = engine.info
        self.counters = tiers.counters
        self._engine = engine
        self._tiers = tiers
        self._similarity = similarity
        self._n_ctx = info.n_ctx
        self._n_ctx_seq = info.n_ctx_seq
        self._is_one_pool = is_one_pool(info)
        self._cells = SlotCells(
            engine, tiers, self.counters, checkpoint_bytes=checkpoint_bytes, make_room=self._make_room_in
        )
        self._slots = [_Slot() for _ in range(info.n_slots)]
        self._sessions: dict[SessionKey, int] = {}
        """The slot each session was in last, until another request begins there; so at most one a slot."""
        self._compared: tuple[Prompt, dict[int, int]] | None = None
        """What a prompt has in common with slots; valid until one of them changes."""
        self._n_uses = 0
        self._watch = InstabilityWatch(self.counters)

    # Coming in.

    def choose_slot(self, prompt: Prompt, idle: Sequence[int]) -> int:
        """As ``slot_pick`` says. Raises ValueError when ``idle`` is empty."""
        session = _session_of(prompt)
        session_slot = None if session is None else self._sessions.get(session)
        compares = prompt.is_kept and self._similarity > 0 and session_slot not in idle
        views = [
            SlotView(
                seq_id,
                len(self._cells.tokens(seq_id)),
                self._n_usable(seq_id, prompt) if compares else 0,
                self._is_pinned(seq_id) and self._slots[seq_id].session != session,
            )
            for seq_id in idle
        ]
        chosen = choose_slot(views, len(prompt.tokens), similarity=self._similarity, session_slot=session_slot)
        if chosen is None:
            raise ValueError("no slot is idle")
        return chosen

    def enter(self, seq_id: int, prompt: Prompt) -> int:
        """Have the slot go on from what it holds, from a checkpoint or from a copy; or empty it."""
        n_held = 0
        if prompt.is_kept:
            n_common = self._n_common(seq_id, prompt)
            left = self._left_by_session(prompt)
            recent = self._latest_text(prompt.scope) if left is None else None
            n_held = self._cells.reuse(seq_id, prompt, n_common)
            self._count_entry(prompt, n_held)
            if left is not None:
                self._watch.compare_session(prompt.tokens, n_held, left)
            elif recent is not None:
                self._watch.compare_recent(prompt.tokens, n_held, recent)
        else:
            self._cells.empty(seq_id)
        self._begin(seq_id, prompt, n_held)
        return n_held

    def _begin(self, seq_id: int, prompt: Prompt, n_held: int) -> None:
        """The slot is the prompt's now; the session before loses it, unless that has moved on itself."""
        slot = self._slots[seq_id]
        if slot.session is not None and self._is_pinned(seq_id):
            del self._sessions[slot.session]
        slot.session = _session_of(prompt)
        if slot.session is not None:
            self._sessions[slot.session] = seq_id
        slot.prompt = prompt
        slot.n_computed = n_held
        slot.checkpoint_at = self.piece_ends(prompt)
        self._cells.lend(seq_id)
        self._use(seq_id)

    def _use(self, seq_id: int) -> None:
        self._compared = None
        self._n_uses += 1
        self._slots[seq_id].last_used = self._n_uses

    def _count_entry(self, prompt: Prompt, n_held: int) -> None:
        self.counters.tokens_queried += len(prompt.tokens)
        if n_held:
            self.counters.hits += 1
        else:
            self.counters.misses += 1

    def _left_by_session(self, prompt: Prompt) -> array[int] | None:
        """What the session's last request left, if that is still there."""
        session = _session_of(prompt)
        seq_id = None if session is None else self._sessions.get(session)
        return None if seq_id is None else self._cells.tokens(seq_id) or None

    def _latest_text(self, scope: str) -> array[int] | None:
        kept = [seq_id for seq_id in self._kept() if self._cells.scope(seq_id) == scope]
        latest = max(kept, key=lambda seq_id: self._slots[seq_id].last_used, default=None)
        return None if latest is None else self._cells.tokens(latest)

    # What a slot and a prompt have in common.

    def _n_common(self, seq_id: int, prompt: Prompt) -> int:
        """Tokens, but for the prompt's last; compared once for an admission, never across scopes (K40, K45)."""
        if self._compared is None or self._compared[0] is not prompt:
            self._compared = (prompt, {})
        known = self._compared[1]
        if seq_id not in known:
            known[seq_id] = self._compare(seq_id, prompt)
        return known[seq_id]

    def _compare(self, seq_id: int, prompt: Prompt) -> int:
        tokens = self._cells.tokens(seq_id)
        is_ours = len(tokens) > 0 and self._cells.scope(seq_id) == prompt.scope
        return common_prefix(prompt.tokens, tokens, limit=prompt.n_reusable) if is_ours else 0

    def _n_usable(self, seq_id: int, prompt: Prompt) -> int:
        return self._cells.n_usable(seq_id, self._n_common(seq_id, prompt))

    # Going on.

    def piece_ends(self, prompt: Prompt) -> tuple[int, ...]:
        """Where a piece of the prompt must end for a checkpoint to be made; none where memory can be cut anywhere."""
        return checkpoint_positions(prompt) if prompt.is_kept and not self._cells.can_trim else ()

    def advance(self, seq_id: int, n_computed: int) -> None:
        """Its prompt is in memory up to there: a place for a checkpoint, perhaps. Raises nothing."""
        slot = self._slots[seq_id]
        slot.n_computed = n_computed
        if n_computed in slot.checkpoint_at:
            self._cells.make_checkpoint(seq_id)

    def grow(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Nobody can use them before ``leave``, which has them all."""

    def catch_up(self, seq_id: int) -> CaughtUp:
        """Nothing can be adopted from others."""
        return CaughtUp(self._slots[seq_id].n_computed, waits=False)

    # Leaving.

    def leave(self, seq_id: int, tokens: array[int] | None) -> None:
        """Keep what a request computed in its slot, or nothing (S17); an idle slot is emptied. Raises nothing."""
        slot = self._slots[seq_id]
        prompt, slot.prompt = slot.prompt, None
        slot.n_computed = 0
        self._cells.give_back(seq_id)
        self._use(seq_id)
        keeps = prompt is not None and prompt.is_kept and tokens is not None and len(tokens) > 0
        self._engine.close(seq_id, keep=keeps)
        try:
            if prompt is None or tokens is None or not keeps:
                self._cells.empty(seq_id)
            elif self._cells.keep(seq_id, prompt.scope, tokens):
                self.counters.parked += 1
        except EngineDown:
            self._cells.lost(seq_id)

    # Giving up a place, and coming back.

    def lose(self, seq_id: int) -> None:
        """It is broken; its checkpoints are of no use."""
        self._slots[seq_id].n_computed = 0
        self._cells.lost(seq_id)

    def suspend(self, seq_id: int) -> None:
        """The engine has closed it."""
        slot = self._slots[seq_id]
        slot.prompt = None
        slot.n_computed = 0
        self._cells.give_back(seq_id)
        self._cells.lost(seq_id)
        self._use(seq_id)

    def resume(self, seq_id: int, prompt: Prompt) -> None:
        """It is back, with all its cells; its checkpoints are not."""
        self._cells.lost(seq_id)
        self._begin(seq_id, prompt, len(prompt.tokens))

    # Making room.

    @property
    def n_evictable(self) -> int:
        """Cells of idle slots. Where each slot has cells of its own they are as good as free: only who begins in the
        slot needs them."""
        return sum(len(self._cells.tokens(seq_id)) for seq_id in self._kept())

    def make_room(self, n_cells: int) -> bool:
        """Empty idle slots, those used longest ago first, sessions last, where all slots take from the same cells."""
        if not self._is_one_pool:
            return self._n_free + self.n_evictable >= n_cells
        for seq_id in self.purge_order():
            if self._n_free >= n_cells:
                return True
            self._cells.empty(seq_id)
            self._compared = None
        return self._n_free >= n_cells

    def _make_room_in(self, seq_id: int, n_cells: int) -> bool:
        """As ``SlotCells`` wants it."""
        if n_cells > self._n_ctx_seq or not self._is_one_pool:
            return n_cells <= self._n_ctx_seq
        n_wanted = n_cells - len(self._cells.tokens(seq_id))
        others = [other for other in self.purge_order() if other != seq_id]
        if self._n_free + sum(len(self._cells.tokens(other)) for other in others) < n_wanted:
            return False
        for other in others:
            if self._n_free >= n_wanted:
                break
            self._cells.empty(other)
            self._compared = None
        return True

    @property
    def _n_free(self) -> int:
        return self._n_ctx - self._engine.used_cells()

    @property
    def n_surplus(self) -> int:
        """None."""
        return 0

    def spill(self) -> None:
        """What a slot keeps is in nobody's way."""

    def purge_order(self) -> Sequence[int]:
        """Idle slots, those used longest ago first, sessions last; none where that would make no room for others."""
        if not self._is_one_pool:
            return ()
        return sorted(self._kept(), key=lambda seq_id: (self._is_pinned(seq_id), self._slots[seq_id].last_used))

    def purged(self, seq_ids: Sequence[int]) -> None:
        """The engine has forgotten these."""
        for seq_id in seq_ids:
            self._cells.purged(seq_id)
        self._compared = None

    def _kept(self) -> list[int]:
        """Idle slots that hold something."""
        return [seq_id for seq_id in range(len(self._slots)) if self._cells.tokens(seq_id)]

    def _is_pinned(self, seq_id: int) -> bool:
        """Whether a session would come back to the slot (S31)."""
        session = self._slots[seq_id].session
        return session is not None and self._sessions.get(session) == seq_id

    # Copies on disk.

    def prefetch(self, request_id: str, prompt: Prompt, done: Callable[[], None]) -> None:
        """Read what only the disk has of the prompt."""
        if prompt.is_kept and self._tiers.has_disk:
            usable = [self._cells.n_usable(seq_id, self._compare(seq_id, prompt)) for seq_id in self._kept()]
            self._tiers.prefetch(request_id, prompt, max(usable, default=0), done)

    def is_fetching(self, request_id: str) -> bool:
        """Whether the disk is being read for it."""
        return self._tiers.is_fetching(request_id)

    def drop_fetch(self, request_id: str) -> None:
        """It has begun, or was cancelled."""
        self._tiers.drop_fetch(request_id)

    # The end, and looking in.

    def clear(self) -> None:
        """The engine is down."""
        for seq_id, slot in enumerate(self._slots):
            self._cells.give_back(seq_id)
            self._cells.lost(seq_id)
            slot.prompt = slot.session = None
            slot.n_computed = 0
        self._sessions.clear()
        self._compared = None
        self._tiers.close()

    def close(self) -> None:
        """Have the disk keep what slots hold, that used last first."""
        for seq_id in sorted(self._kept(), key=lambda seq_id: -self._slots[seq_id].last_used):
            self._tiers.keep(self._cells.scope(seq_id), self._cells.tokens(seq_id), seq_id)
        self._tiers.close()

    def gauges(self) -> PrefixGauges:
        """Numbers as they are now."""
        lengths = [len(self._cells.tokens(seq_id)) for seq_id in self._kept()]
        return self._tiers.gauges(
            parked_sequences=len(lengths),
            parked_cells=sum(lengths),
            shares=False,
        )

    def holders(self) -> Sequence[Holder]:
        """Slots that hold something; of one in use, what it has of its prompt."""
        found = []
        for seq_id, slot in enumerate(self._slots):
            n_tokens = slot.n_computed or len(self._cells.tokens(seq_id))
            if n_tokens:
                session = slot.session  # read once: it may change meanwhile
                scope, name = ("", None) if session is None else session
                is_parked = slot.prompt is None
                found.append(Holder(seq_id, n_tokens, 0, name, is_parked=is_parked, session_scope=scope))
        return found


def _session_of(prompt: Prompt) -> SessionKey | None:
    return None if prompt.session is None else (prompt.scope, prompt.session)
