"""A context with too little room: the batch is halved, one row fails alone, the others keep their tokens."""

from __future__ import annotations

from pathlib import Path

from llamaserve.config import Profile
from llamaserve.engine.port import PromptPiece, RowError, SequenceSpec, StepPlan
from llamaserve.request import SamplingParams
from tests.native.conftest import LoadEngine
from tests.native.greedy import GREEDY, continue_alone, generate, start

SHORT = [1, 50, 60, 70]


def test_a_row_without_room_fails_alone_and_the_others_go_on(load: LoadEngine, dense_model: Path) -> None:
    """S11–S13, F6: the piece does not fit beside the running sequence, whose tokens are those it has alone."""
    engine = load(dense_model, n_ctx=256, n_slots=2)
    expected = generate(engine, SHORT, 12)

    tokens = [start(engine, 0, SHORT).token]
    engine.open(SequenceSpec(1, GREEDY))
    long_prompt = [(i % 250) + 3 for i in range(255)]
    running, failed = engine.step(StepPlan(decode=[0], pieces=[PromptPiece(1, long_prompt, is_last=True)]))
    assert failed.error is RowError.CONTEXT_FULL
    assert failed.token is None
    tokens.append(running.token)
    engine.close(1)
    tokens += continue_alone(engine, 0, 10)
    assert tokens == expected


def test_a_full_context_still_serves_after_a_close(load: LoadEngine, dense_model: Path) -> None:
    """The cells of the one that failed come back."""
    engine = load(dense_model, n_ctx=256, n_slots=2)
    engine.open(SequenceSpec(0, GREEDY))
    prompt = [(i % 250) + 3 for i in range(256)]
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(0, prompt, is_last=True)]))
    assert row.error is None
    (row,) = engine.step(StepPlan(decode=[0]))
    assert row.error is RowError.CONTEXT_FULL
    assert "KV cell" in row.message
    assert engine.used_cells() == 256
    engine.close(0)
    assert engine.used_cells() == 0
    assert len(generate(engine, SHORT, 5)) == 5


def test_split_memory_fails_only_the_full_stream(load: LoadEngine, dense_model: Path) -> None:
    """S12 in the parity profile: every slot has its own cells."""
    engine = load(dense_model, n_ctx=512, n_slots=2, profile=Profile.PARITY)
    expected = generate(engine, SHORT, 4, seq_id=1)
    prompt = [(i % 250) + 3 for i in range(256)]
    assert start(engine, 0, prompt).error is None
    tokens = [start(engine, 1, SHORT).token]
    for _ in range(3):
        rows = {row.seq_id: row for row in engine.step(StepPlan(decode=[0, 1]))}
        assert rows[0].error is RowError.CONTEXT_FULL
        tokens.append(rows[1].token)
    assert tokens == expected


def test_a_piece_without_room_is_taken_back_and_can_be_tried_again(load: LoadEngine, dense_model: Path) -> None:
    """Half of it had found cells: neither memory nor penalties may count that half twice."""
    prompt = [(i % 250) + 3 for i in range(200)]
    penalised = SamplingParams(temperature=0.0, ignore_eos=True, presence_penalty=1.5, repeat_last_n=300)
    roomy = load(dense_model, n_ctx=512, n_slots=2)
    expected = generate(roomy, prompt, 8, penalised, seq_id=1)

    engine = load(dense_model, n_ctx=256, n_slots=2)
    assert start(engine, 0, prompt[:100]).error is None
    engine.open(SequenceSpec(1, penalised, prompt))
    plan = StepPlan(pieces=[PromptPiece(1, prompt, is_last=True)])
    for _ in range(2):
        assert engine.step(plan)[0].error is RowError.CONTEXT_FULL
        assert engine.used_cells() == 100
    engine.close(0)
    tokens = [engine.step(plan)[0].token, *continue_alone(engine, 1, 7)]
    assert tokens == expected
