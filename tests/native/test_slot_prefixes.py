"""What stays in a slot of a real engine: the text after a hit is that of an empty engine, for every kind of memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from llamaserve.cache.prompt import Prompt, token_array
from llamaserve.cache.ram_tier import RamTier
from llamaserve.cache.slot_prefixes import SlotPrefixes
from llamaserve.cache.tiers import Tiers
from llamaserve.config import Profile
from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import MemoryKind, PromptPiece, SequenceSpec, StepPlan
from tests.native.conftest import LoadEngine
from tests.native.greedy import GREEDY, continue_alone

SYSTEM = [1, *(20 + index * 7 % 200 for index in range(79))]
USER = [30 + index * 11 % 200 for index in range(60)]
OTHER = [40 + index * 13 % 200 for index in range(60)]
BOUNDARIES = (len(SYSTEM),)
PIECE = 64
"""Most tokens of a step; a sliding window keeps little more than what a step and the window have."""


class Conversation:
    """Requests on one slot of an engine and of its memory, and on another that is always empty."""

    def __init__(self, engine: NativeEngine, ram_bytes: int = 0) -> None:
        self.engine = engine
        self.is_kv = engine.info.memory is MemoryKind.KV
        ram = RamTier(ram_bytes, can_trim=self.is_kv) if ram_bytes else None
        tiers = Tiers(engine, ram, None, can_trim=self.is_kv)
        self.memory = SlotPrefixes(engine, tiers, similarity=0.1, checkpoint_bytes=1 << 24)

    def ask(self, tokens: Sequence[int], n_drawn: int = 8) -> tuple[int, list[int]]:
        """Tokens that were reused, and those the sequence holds at the end; as of a request that reused none."""
        n_held, drawn = self._ask(0, tokens, n_drawn, is_cached=True)
        assert drawn == self._ask(1, tokens, n_drawn, is_cached=False)[1]
        assert self.engine.length(1) == 0
        held = [*tokens, *drawn[:-1]]
        assert self.engine.length(0) == len(held) == self.memory.n_evictable
        return n_held, held

    def _ask(self, seq_id: int, tokens: Sequence[int], n_drawn: int, *, is_cached: bool) -> tuple[int, list[int]]:
        prompt = Prompt(token_array(tokens), is_cached=is_cached, session=str(seq_id), boundaries=BOUNDARIES)
        n_held = start = self.memory.enter(seq_id, prompt)
        self.engine.open(SequenceSpec(seq_id, GREEDY))
        row = None
        while start < len(tokens):
            end = min(start + PIECE, len(tokens), *(end for end in self.memory.piece_ends(prompt) if end > start))
            piece = PromptPiece(seq_id, tokens[start:end], is_last=end == len(tokens))
            (row,) = self.engine.step(StepPlan(pieces=[piece]))
            self.memory.advance(seq_id, end)
            start = end
        assert row is not None
        assert row.token is not None, row.message
        drawn = [row.token, *continue_alone(self.engine, seq_id, n_drawn - 1)]
        self.memory.leave(seq_id, token_array([*tokens, *drawn[:-1]]))
        return n_held, drawn


@pytest.fixture(params=["dense_model", "recurrent_model", "hybrid_model", "sliding_window_model"])
def engine(request: pytest.FixtureRequest, load: LoadEngine) -> NativeEngine:
    """Each kind of memory, in the profile whose texts do not depend on what else is in memory (K134)."""
    return load(request.getfixturevalue(request.param), n_slots=2, profile=Profile.PARITY)


def test_the_next_turn_goes_on_from_all_of_the_last_one(engine: NativeEngine) -> None:
    """S27, K108."""
    conversation = Conversation(engine)
    _, held = conversation.ask([*SYSTEM, *USER])
    assert conversation.ask([*held, *OTHER])[0] == len(held)


def test_a_turn_that_diverges_goes_on_from_the_end_of_the_message_before(engine: NativeEngine) -> None:
    """K11, K30, K41; facts 2.4: never from a window that is gone."""
    conversation = Conversation(engine)
    _, held = conversation.ask([*SYSTEM, *USER], n_drawn=60)
    assert conversation.ask([*SYSTEM, *OTHER], n_drawn=60)[0] == len(SYSTEM)
    assert conversation.ask([*SYSTEM, *USER])[0] == len(SYSTEM)
    n_again, _ = conversation.ask([*SYSTEM, *USER])
    assert n_again == len(SYSTEM) + len(USER) - 1
    is_state = engine.info.memory in (MemoryKind.RECURRENT, MemoryKind.HYBRID)
    assert conversation.ask([*held[:40], *OTHER])[0] == (0 if is_state else 40)


def test_a_sliding_window_that_is_gone_is_not_continued(load: LoadEngine, sliding_window_model: Path) -> None:
    """Facts 2.4: llama.cpp would go on with garbage; a checkpoint still has the window."""
    engine = load(sliding_window_model, n_slots=2, n_batch=PIECE, profile=Profile.PARITY)
    conversation = Conversation(engine)
    conversation.ask([*SYSTEM, *USER], n_drawn=300)
    assert conversation.ask([*SYSTEM, *OTHER], n_drawn=300)[0] == len(SYSTEM)
    assert conversation.ask([*SYSTEM[:40], *USER])[0] == 0


def test_what_a_slot_lost_comes_back_from_a_copy(engine: NativeEngine) -> None:
    """S34, S35."""
    conversation = Conversation(engine, ram_bytes=1 << 26)
    _, held = conversation.ask([*SYSTEM, *USER], n_drawn=40)
    conversation.ask([1, *OTHER, *OTHER])
    n_held, _ = conversation.ask([*held, *OTHER])
    assert n_held == len(held)
    assert conversation.memory.counters.tokens_from_ram == len(held)
