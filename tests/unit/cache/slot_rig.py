"""Requests on a slot memory over a fake engine, driven by hand; what slots hold is checked after every one."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from llamaserve.cache.disk_tier import DiskTier
from llamaserve.cache.prompt import Prompt, token_array
from llamaserve.cache.ram_tier import RamTier
from llamaserve.cache.slot_prefixes import SlotPrefixes
from llamaserve.cache.tiers import Tiers
from llamaserve.engine.fake import FakeEngine, FakeState
from llamaserve.engine.port import MemoryKind, ModelInfo, PromptPiece, SavedState, SequenceSpec, StepPlan
from llamaserve.request import SamplingParams

CHECKPOINT_BYTES = 1 << 20


def hashed(history: tuple[int, ...]) -> int:
    """A letter that depends on every token before it."""
    return ord("a") + zlib.crc32(array("i", history).tobytes()) % 26


def text(length: int, seed: int = 0) -> array[int]:
    """Letters; texts of different seeds differ from the first on."""
    return token_array([ord("a") + (seed + index * (seed + 1)) % 26 for index in range(length)])


def split_engine(n_slots: int = 3, n_ctx_seq: int = 1000) -> FakeEngine:
    """KV cells of each slot's own, that can be cut anywhere."""
    return FakeEngine(
        n_slots=n_slots, n_ctx=n_slots * n_ctx_seq, n_ctx_seq=n_ctx_seq, can_share=False, continuation=hashed
    )


def recurrent_engine(n_slots: int = 3, n_ctx_seq: int = 1000) -> FakeEngine:
    """A state that can be forgotten as a whole only."""
    return FakeEngine(
        n_slots=n_slots,
        n_ctx=n_slots * n_ctx_seq,
        n_ctx_seq=n_ctx_seq,
        can_share=False,
        can_trim=False,
        continuation=hashed,
    )


class WindowEngine(FakeEngine):
    """A sliding window: cells all slots take from, of which only the last few tokens can be cut."""

    WINDOW = 20

    def __init__(self, n_slots: int = 3, n_ctx: int = 1000) -> None:
        super().__init__(n_slots=n_slots, n_ctx=n_ctx, can_share=False, continuation=hashed)

    @property
    def info(self) -> ModelInfo:
        return replace(super().info, memory=MemoryKind.SLIDING_WINDOW)

    def trim(self, seq_id: int, n_tokens: int) -> bool:
        if 0 < n_tokens < self.length(seq_id) - self.WINDOW:
            return False
        return super().trim(seq_id, n_tokens)

    def checkpoint(self, seq_id: int, max_bytes: int) -> FakeState | None:
        return self.save(seq_id, 0, max_bytes)

    def go_back(self, seq_id: int, checkpoint: SavedState) -> bool:
        kept = self.tokens(seq_id)[: checkpoint.end]
        assert kept == FakeState(bytes(checkpoint.view()), 0, checkpoint.end).tokens(1), "of other tokens"
        return super().trim(seq_id, checkpoint.end)


ENGINES: tuple[Callable[[], FakeEngine], ...] = (split_engine, recurrent_engine, WindowEngine)


@dataclass(frozen=True)
class Answer:
    """What a request got."""

    seq_id: int
    n_held: int
    """Tokens of its prompt that were not computed for it."""
    tokens: array[int]
    """What its sequence held at the end: the prompt, and the drawn tokens but for the last."""

    @property
    def drawn(self) -> array[int]:
        return self.tokens[self.n_prompt :]

    n_prompt: int = 0


class Rig:
    """An engine and its slot memory."""

    def __init__(
        self,
        engine: FakeEngine | None = None,
        *,
        similarity: float = 0.1,
        ram_bytes: int = 0,
        disk: DiskTier | None = None,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> None:
        self.engine = engine or split_engine()
        can_trim = self.engine.info.memory is MemoryKind.KV
        self.ram = RamTier(ram_bytes, can_trim=can_trim) if ram_bytes else None
        self.memory = SlotPrefixes(
            self.engine,
            Tiers(self.engine, self.ram, disk, can_trim=can_trim),
            similarity=similarity,
            checkpoint_bytes=checkpoint_bytes,
        )
        self.idle = list(range(self.engine.info.n_slots))
        self.prompts: dict[int, Prompt] = {}
        self.held: dict[int, int] = {}

    # A request, step by step.

    def begin(self, prompt: Prompt) -> int:
        """Choose a slot, enter and open it."""
        seq_id = self.memory.choose_slot(prompt, self.idle)
        self.held[seq_id] = self.memory.enter(seq_id, prompt)
        self.engine.open(SequenceSpec(seq_id, SamplingParams()))
        self.idle.remove(seq_id)
        self.prompts[seq_id] = prompt
        assert self.held[seq_id] <= prompt.n_reusable
        assert self.engine.tokens(seq_id) == tuple(prompt.tokens[: self.held[seq_id]])
        return seq_id

    def feed(self, seq_id: int, n_tokens: int | None = None) -> int:
        """Compute up to so many tokens of the prompt, in pieces that end where checkpoints are made; tokens it has."""
        prompt = self.prompts[seq_id]
        limit = len(prompt.tokens) if n_tokens is None else min(len(prompt.tokens), n_tokens)
        while (start := self.engine.length(seq_id)) < limit:
            end = min([limit, *(end for end in self.memory.piece_ends(prompt) if end > start)])
            piece = PromptPiece(seq_id, prompt.tokens[start:end], is_last=end == len(prompt.tokens))
            (row,) = self.engine.step(StepPlan(pieces=[piece]))
            assert row.error is None, row.message
            self.memory.advance(seq_id, end)
            assert self.memory.catch_up(seq_id) == (end, False)
        return self.engine.length(seq_id)

    def draw(self, seq_id: int, n_tokens: int) -> None:
        """Decode so many tokens."""
        for _ in range(n_tokens):
            (row,) = self.engine.step(StepPlan(decode=[seq_id]))
            assert row.error is None, row.message

    def end(self, seq_id: int, *, keep: bool = True) -> Answer:
        """Leave, and look whether all is as it should be."""
        prompt = self.prompts.pop(seq_id)
        tokens = token_array(self.engine.tokens(seq_id))
        self.memory.leave(seq_id, tokens if keep else None)
        self.idle.append(seq_id)
        self.check()
        return Answer(seq_id, self.held.pop(seq_id), tokens, len(prompt.tokens))

    def ask(
        self,
        tokens: Sequence[int],
        *,
        scope: str = "",
        session: str | None = None,
        is_cached: bool = True,
        boundaries: tuple[int, ...] = (),
        n_drawn: int = 5,
    ) -> Answer:
        """A whole request; its text is that of an empty engine."""
        prompt = Prompt(token_array(tokens), scope, is_cached, session, boundaries)
        seq_id = self.begin(prompt)
        self.feed(seq_id)
        self.draw(seq_id, n_drawn)
        answer = self.end(seq_id)
        assert answer.tokens == cold(tokens, n_drawn)
        return answer

    # What must hold between two requests.

    def kept(self, seq_id: int) -> tuple[int, ...]:
        """Tokens an idle slot holds."""
        return self.engine.tokens(seq_id)

    def check(self) -> None:
        """The memory knows of every idle slot what it holds, and of no other (K108)."""
        holders = {holder.seq_id: holder for holder in self.memory.holders() if holder.is_parked}
        n_kept = 0
        for seq_id in self.idle:
            n_tokens = self.engine.length(seq_id)
            n_kept += n_tokens
            assert (holders[seq_id].n_tokens if seq_id in holders else 0) == n_tokens
        assert self.memory.gauges().parked_cells == self.memory.n_evictable == n_kept
        for seq_id in range(self.engine.info.n_slots):
            for end, tokens in self._checkpoints(seq_id):
                assert self.engine.tokens(seq_id)[:end] == tokens, "a checkpoint of tokens the slot does not hold"
        busy = sum(self.engine.length(seq_id) for seq_id in self.prompts)
        assert self.engine.used_cells() == n_kept + busy

    def _checkpoints(self, seq_id: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        states = self.memory._cells._checkpoints._states
        for (owner, end), state in states.items():
            if owner == seq_id:
                assert isinstance(state, FakeState)
                yield end, state.tokens(1)


def cold(tokens: Sequence[int], n_drawn: int) -> array[int]:
    """What a sequence holds that begins with these tokens and decodes so many."""
    history = list(tokens)
    for _ in range(n_drawn):
        history.append(hashed(tuple(history)))
    return token_array(history)
