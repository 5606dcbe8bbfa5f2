"""A slot memory under random requests, failures and pressure."""

from __future__ import annotations

import logging

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llamaserve.cache.prompt import Prompt
from llamaserve.engine.fake import FakeEngine
from tests.unit.cache.slot_rig import Rig, WindowEngine, cold, recurrent_engine, split_engine, text

N_CTX = 400
"""Cells of all slots together; one request takes up to 150."""
PARTS = tuple(text(length, seed) for length, seed in ((40, 1), (40, 2), (33, 3), (5, 4), (1, 5), (70, 6)))
"""Prompts are made of these, so that many have a beginning in common."""


def engine_of(kind: str) -> FakeEngine:
    """Three slots of each kind of memory; a pool has cells for some of them only."""
    if kind == "split":
        return split_engine(n_ctx_seq=N_CTX)
    return WindowEngine(n_ctx=N_CTX) if kind == "window" else recurrent_engine(n_ctx_seq=N_CTX)


class SlotMachine(RuleBasedStateMachine):
    """Whoever comes and goes: idle slots hold what is remembered, and every text is that of an empty engine."""

    rig: Rig

    @initialize(
        kind=st.sampled_from(["split", "recurrent", "window"]),
        similarity=st.sampled_from([0.0, 0.1, 0.9]),
        ram_bytes=st.sampled_from([0, 700, 100_000]),
        checkpoint_bytes=st.sampled_from([0, 120, 10_000]),
    )
    def build(self, kind: str, similarity: float, ram_bytes: int, checkpoint_bytes: int) -> None:
        logging.disable(logging.CRITICAL)  # scripted failures are logged with their tracebacks
        self.rig = Rig(engine_of(kind), similarity=similarity, ram_bytes=ram_bytes, checkpoint_bytes=checkpoint_bytes)
        self.ram_bytes = ram_bytes
        self.drawn: dict[int, int] = {}
        self.waiting: list[Prompt] = []

    def teardown(self) -> None:
        logging.disable(logging.NOTSET)

    @rule(
        parts=st.lists(st.sampled_from(range(len(PARTS))), min_size=1, max_size=3),
        continues=st.integers(0, 2) | st.none(),
        scope=st.sampled_from(["", "", "other"]),
        session=st.sampled_from([None, None, "s", "t"]),
        is_cached=st.sampled_from([True, True, True, False]),
        waits=st.booleans(),
    )
    def come(
        self, parts: list[int], continues: int | None, scope: str, session: str | None, *, is_cached: bool, waits: bool
    ) -> None:
        """A prompt of its own, or one that goes on from what a slot holds."""
        tokens = text(0)
        boundaries: list[int] = []
        if continues is not None:
            tokens += type(tokens)("i", self.rig.kept(continues)[:60])
        for part in parts:
            tokens += PARTS[part]
            boundaries.append(len(tokens))
        self._begin(Prompt(tokens, scope, is_cached, session, tuple(boundaries[:-1])), waits=waits)

    def _begin(self, prompt: Prompt, *, waits: bool) -> None:
        if waits or not self.rig.idle:
            self.rig.memory.prefetch("r", prompt, lambda: None)
            self.waiting.append(prompt)
        else:
            self.drawn[self.rig.begin(prompt)] = 0

    @precondition(lambda self: self.waiting and self.rig.idle)
    @rule()
    def begin_first(self) -> None:
        """One that has waited: what it was compared with may have changed."""
        self.drawn[self.rig.begin(self.waiting.pop(0))] = 0

    @precondition(lambda self: self.rig.prompts)
    @rule(data=st.data(), n_tokens=st.integers(1, 250))
    def feed(self, data: st.DataObject, n_tokens: int) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.rig.prompts)))
        if self._has_room(n_tokens):
            self.rig.feed(seq_id, self.rig.engine.length(seq_id) + n_tokens)

    @precondition(lambda self: self.rig.prompts)
    @rule(data=st.data(), n_tokens=st.integers(1, 9))
    def draw(self, data: st.DataObject, n_tokens: int) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.rig.prompts)))
        if self._is_fed(seq_id) and self._has_room(n_tokens):
            self.rig.draw(seq_id, n_tokens)
            self.drawn[seq_id] += n_tokens

    @precondition(lambda self: self.rig.prompts)
    @rule(data=st.data(), keep=st.sampled_from([True, True, False]))
    def end(self, data: st.DataObject, *, keep: bool) -> None:
        """Finish, cancel or fail."""
        seq_id = data.draw(st.sampled_from(sorted(self.rig.prompts)))
        prompt = self.rig.prompts[seq_id]
        is_fed = self._is_fed(seq_id)
        answer = self.rig.end(seq_id, keep=keep)
        n_drawn = self.drawn.pop(seq_id)
        expected = cold(prompt.tokens, n_drawn) if is_fed else prompt.tokens[: len(answer.tokens)]
        assert answer.tokens == expected
        assert self.rig.kept(seq_id) == (tuple(expected) if keep and prompt.is_cached else ())

    @precondition(lambda self: self.rig.prompts and self.rig.idle)
    @rule(data=st.data(), max_bytes=st.sampled_from([0, 10_000]))
    def give_way(self, data: st.DataObject, max_bytes: int) -> None:
        """Be suspended, and come back in an idle slot, or be lost."""
        seq_id = data.draw(st.sampled_from(sorted(self.rig.prompts)))
        if not self._is_fed(seq_id):
            return
        prompt, n_drawn = self.rig.prompts.pop(seq_id), self.drawn.pop(seq_id)
        suspended = self.rig.engine.suspend(seq_id, max_bytes)
        self.rig.memory.suspend(seq_id)
        self.rig.idle.append(seq_id)
        self.rig.check()
        if suspended.n_bytes == 0:
            return
        other = self.rig.memory.choose_slot(Prompt(text(0), is_cached=False), self.rig.idle)
        self.rig.memory.leave(other, None)
        self.rig.memory.make_room(suspended.n_bytes)
        if self.rig.engine.resume(other, suspended):
            self.rig.memory.resume(other, prompt)
            self.rig.idle.remove(other)
            self.rig.prompts[other], self.rig.held[other], self.drawn[other] = prompt, 0, n_drawn

    @rule(n_cells=st.integers(0, 3 * N_CTX))
    def make_room(self, n_cells: int) -> None:
        n_free = self.rig.engine.info.n_ctx - self.rig.engine.used_cells() + self.rig.memory.n_evictable
        assert self.rig.memory.make_room(n_cells) == (n_cells <= n_free)

    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        """A step found no room and forgot some."""
        order = self.rig.memory.purge_order()
        purged = order[: data.draw(st.integers(0, len(order)))]
        for seq_id in purged:
            self.rig.engine.trim(seq_id, 0)
        self.rig.memory.purged(purged)

    @rule(saves=st.integers(0, 2), restores=st.integers(0, 2))
    def fail(self, saves: int, restores: int) -> None:
        self.rig.engine.fail_saves(saves)
        self.rig.engine.fail_restores(restores)

    @invariant()
    def holds_what_is_remembered(self) -> None:
        """K108, K30; S37: RAM stays within its budget."""
        if not hasattr(self, "rig"):
            return
        self.rig.check()
        assert self.rig.memory.gauges().ram_bytes <= self.ram_bytes
        counters = self.rig.memory.counters
        n_found = counters.tokens_from_cells + counters.tokens_from_ram
        assert n_found <= counters.tokens_queried
        assert (n_found > 0) == (counters.hits > 0)

    def _is_fed(self, seq_id: int) -> bool:
        return self.rig.engine.length(seq_id) >= len(self.rig.prompts[seq_id].tokens)

    def _has_room(self, n_tokens: int) -> bool:
        longest = max(self.rig.engine.length(seq_id) for seq_id in self.rig.prompts)
        return longest + n_tokens <= N_CTX and self.rig.memory.make_room(n_tokens)


TestSlotPrefixes = SlotMachine.TestCase
TestSlotPrefixes.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
