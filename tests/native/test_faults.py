"""What every return code of llama_decode does to the rows of a step."""

from __future__ import annotations

import itertools

import pytest

from llamaserve.config import Profile
from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import PromptPiece, RowError, SequenceSpec, StepPlan
from llamaserve.errors import EngineError
from tests.native.conftest import LoadEngine
from tests.native.faults import PROMPTS, SEQ_IDS, Streams, codes_against, errors_of, inject
from tests.native.greedy import GREEDY

# --- 1: no room ---


def test_a_batch_that_does_not_fit_is_halved_and_all_its_rows_are_right(streams: Streams) -> None:
    """S11, F6."""
    inject(streams.engine, [1])
    assert errors_of(streams.decode()) == [None] * 4
    assert streams.engine.report.n_splits == 1
    streams.check()


@pytest.mark.parametrize("bad_row", range(4))
def test_the_row_without_room_is_full_alone_and_as_before(streams: Streams, bad_row: int) -> None:
    """S12, S13: the others have their tokens, and it can decode when there is room."""
    inject(streams.engine, codes_against(bad_row, 4, 1))
    rows = streams.decode()
    assert errors_of(rows) == [RowError.CONTEXT_FULL if row == bad_row else None for row in range(4)]
    assert rows[bad_row].token is None
    assert streams.engine.report.n_splits == 2
    streams.check()


def test_a_piece_without_room_is_as_before_although_a_part_of_it_was_computed(parity_engine: NativeEngine) -> None:
    """S12: the same piece runs afterwards, beside a decode row that never noticed."""
    streams = Streams(parity_engine)
    streams.start([0])
    parity_engine.open(SequenceSpec(2, GREEDY))
    plan = StepPlan(decode=[0], pieces=[PromptPiece(2, PROMPTS[2], is_last=True)])
    inject(parity_engine, [1, 0, 1, 1, 1])  # not all; row 0 and two tokens of the piece; then not four, two, one of it
    rows = parity_engine.step(plan)
    assert errors_of(rows) == [None, RowError.CONTEXT_FULL]
    streams.take(rows[:1])
    assert parity_engine.length(2) == 0
    streams.tokens[2] = []
    rows = parity_engine.step(plan)
    streams.take(rows)
    streams.check([0, 2])


# --- 2: stopped ---


def test_stopped_rows_are_as_before_the_step(streams: Streams) -> None:
    """S56."""
    inject(streams.engine, [2])
    assert errors_of(streams.decode()) == [RowError.ABORTED] * 4
    streams.check()


def test_rows_that_had_their_token_before_the_stop_keep_it(streams: Streams) -> None:
    """K6, S56."""
    inject(streams.engine, [1, 0, 2])
    assert errors_of(streams.decode()) == [None, None, RowError.ABORTED, RowError.ABORTED]
    streams.check()


# --- -1: a row is refused ---


@pytest.mark.parametrize("bad_row", range(4))
def test_a_refused_row_is_found_and_fails_alone(streams: Streams, bad_row: int) -> None:
    """E9, F7, K125."""
    inject(streams.engine, codes_against(bad_row, 4, -1))
    rows = streams.decode()
    assert errors_of(rows) == [RowError.DECODE if row == bad_row else None for row in range(4)]
    assert "refused the token" in rows[bad_row].message
    assert streams.engine.length(bad_row) == 0
    streams.engine.close(bad_row)
    streams.check([seq_id for seq_id in SEQ_IDS if seq_id != bad_row])


def test_a_refused_token_in_the_middle_of_a_piece_fails_the_piece_alone(parity_engine: NativeEngine) -> None:
    """E9: what was computed of it is forgotten, the rest of it is not tried."""
    streams = Streams(parity_engine)
    streams.start([0, 1])
    parity_engine.open(SequenceSpec(2, GREEDY))
    # Two decode rows and six tokens; refused: all, then the second half, then its first half, then that one's first.
    inject(parity_engine, [-1, 0, -1, -1, -1, -3])
    rows = parity_engine.step(StepPlan(decode=[0, 1], pieces=[PromptPiece(2, PROMPTS[2], is_last=True)]))
    assert errors_of(rows) == [None, None, RowError.DECODE]
    assert parity_engine.length(2) == 0
    streams.take(rows)
    inject(parity_engine)
    streams.check([0, 1])


# --- -2, -3: computing failed ---


@pytest.mark.parametrize("code", [-2, -3])
def test_the_rows_of_a_call_that_failed_are_cleared(streams: Streams, code: int) -> None:
    """E9, E11: one error each, naming the code; the engine goes on."""
    inject(streams.engine, [code])
    rows = streams.decode()
    assert errors_of(rows) == [RowError.DECODE] * 4
    assert all(f"code {code}" in row.message for row in rows)
    assert streams.engine.used_cells() == 0
    assert streams.engine.failure is None
    for seq_id in SEQ_IDS:
        with pytest.raises(EngineError, match="has drawn no token"):
            streams.decode([seq_id])
        assert streams.engine.close(seq_id)
    streams.start()
    streams.check()


@pytest.mark.parametrize("code", [-2, -3])
def test_tokens_drawn_before_the_call_that_failed_are_kept(streams: Streams, code: int) -> None:
    """K6: the first half of the batch was computed in a call of its own."""
    inject(streams.engine, [1, 0, code])
    assert errors_of(streams.decode()) == [None, None, RowError.DECODE, RowError.DECODE]
    for seq_id in (2, 3):
        streams.engine.close(seq_id)
    streams.check([0, 1])
    for seq_id in (0, 1):
        streams.engine.close(seq_id)
    streams.start()
    streams.check()


def test_calls_that_fail_again_and_again_do_not_end_the_engine(parity_engine: NativeEngine) -> None:
    """E11 is the scheduler's to count: the engine takes as many as come."""
    streams = Streams(parity_engine)
    for code in (-3, -2, -3, -2):
        streams.start()
        inject(parity_engine, [code])
        assert errors_of(streams.decode()) == [RowError.DECODE] * 4
        for seq_id in SEQ_IDS:
            parity_engine.close(seq_id)
    streams.start()
    streams.check()


# --- memory that cannot go back ---


@pytest.mark.parametrize("kind", ["dense_model", "sliding_window_model", "recurrent_model", "hybrid_model"])
def test_a_stopped_step_leaves_the_other_sequences_as_they_were(
    load: LoadEngine, kind: str, request: pytest.FixtureRequest
) -> None:
    """S56, K116: whatever the order they came in. llama.cpp moves the states of recurrent memory around before it
    computes, those of sequences outside the step too, and a stopped call leaves them where they do not belong."""
    engine = load(request.getfixturevalue(kind), profile=Profile.PARITY)
    streams = Streams(engine)
    for order in itertools.permutations(SEQ_IDS):
        for stopped in ([order[3], order[0]], [order[3], order[1], order[2]]):
            streams.start(order)
            flag = engine.new_flag()
            flag.set()
            assert errors_of(engine.step(StepPlan(decode=stopped), flag)) == [RowError.ABORTED] * len(stopped)
            others = [seq_id for seq_id in SEQ_IDS if seq_id not in stopped]
            for seq_id in stopped:
                engine.close(seq_id)
            streams.check(others)
            for seq_id in others:
                engine.close(seq_id)


@pytest.mark.parametrize("kind", ["recurrent_model", "hybrid_model"])
def test_a_state_without_a_way_back_is_broken_by_a_stop_only_if_something_was_computed(
    load: LoadEngine, kind: str, request: pytest.FixtureRequest
) -> None:
    """L12, S56: a stopped call that computed nothing leaves even these as they were."""
    engine = load(request.getfixturevalue(kind), profile=Profile.PARITY)
    streams = Streams(engine)
    streams.start([0, 1])
    inject(engine, [2])
    assert errors_of(streams.decode([0, 1])) == [RowError.ABORTED] * 2
    prompt = [1, *range(20, 40)]
    engine.open(SequenceSpec(2, GREEDY))
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(2, prompt[:4], is_last=False)]))
    assert row.error is None
    piece = PromptPiece(2, prompt[4:], is_last=True)
    inject(engine, [1, 0, 2])
    (row,) = engine.step(StepPlan(pieces=[piece]))
    assert row.error is RowError.ABORTED
    assert engine.length(2) == 0
    (row,) = engine.step(StepPlan(pieces=[piece]))
    assert row.error is RowError.DECODE
    assert "cannot go back" in row.message
    engine.close(2)
    streams.check([0, 1])


@pytest.mark.parametrize(("codes", "error"), [([2], RowError.ABORTED), (codes_against(0, 4, 1), RowError.DECODE)])
def test_a_row_that_cannot_go_back_is_broken_alone(streams: Streams, codes: list[int], error: RowError) -> None:
    """E15, K110, K111: every later row of it fails, until its id is closed and opened again."""
    inject(streams.engine, codes, n_failing_rewinds=1)
    assert streams.decode()[0].error is error
    for _ in range(2):
        rows = streams.decode()
        assert errors_of(rows) == [RowError.DECODE, None, None, None]
        assert "cannot go back" in rows[0].message
        assert streams.engine.length(0) == 0
    with pytest.raises(EngineError, match="can only be closed"):
        streams.engine.suspend(0, 2**30)
    assert streams.engine.close(0)
    streams.start([0])
    streams.check()
