"""The fake engine obeys the laws of the port, and fails on demand."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest

from llamaserve.engine.fake import BOS, EOS, FakeEngine, FakeFlag, FakeRow, FakeState, letters, scripted
from llamaserve.engine.port import PromptPiece, RowError, SequenceSpec, StepPlan
from llamaserve.errors import BadToken, ConfigError, EngineDown, EngineError
from llamaserve.request import SamplingParams
from tests.engine_laws import FINAL_LAWS, GREEDY, LAWS, Law, prompt_of, start
from tests.mask_laws import MASK_LAWS
from tests.memory_laws import FINAL_MEMORY_LAWS, MEMORY_LAWS

ALL_LAWS = (*LAWS, *MASK_LAWS, *FINAL_LAWS, *MEMORY_LAWS, *FINAL_MEMORY_LAWS)


def whole_history(history: tuple[int, ...]) -> int:
    """A lower-case letter that every token of the history has a part in."""
    return ord("a") + sum((i + 1) * token for i, token in enumerate(history)) % 26


@pytest.mark.parametrize("law", ALL_LAWS, ids=lambda law: law.__name__)
def test_the_fake_engine_obeys_the_law(law: Law) -> None:
    """Same laws as the native engine (E2, E10, E13)."""
    law(FakeEngine(continuation=whole_history))


@pytest.mark.parametrize("law", ALL_LAWS, ids=lambda law: law.__name__)
def test_the_fake_engine_whose_ids_share_nothing_obeys_the_law(law: Law) -> None:
    """As split KV."""
    law(FakeEngine(continuation=whole_history, can_share=False))


@pytest.mark.parametrize("law", ALL_LAWS, ids=lambda law: law.__name__)
def test_the_fake_engine_whose_memory_cannot_go_back_obeys_the_law(law: Law) -> None:
    """L12: as a recurrent model's."""
    law(FakeEngine(continuation=whole_history, can_rewind=False, can_share=False, can_trim=False))


def test_a_law_can_fail() -> None:
    """An engine whose text depends on how often it was asked breaks the law of equal tokens."""
    counter = iter(range(1000))
    engine = FakeEngine(continuation=lambda history: next(counter) % 26 + 97)
    law = next(law for law in LAWS if law.__name__ == "a_sequence_gets_the_same_tokens_beside_others")
    with pytest.raises(AssertionError):
        law(engine)


def test_scripted_replies_are_said_and_ended() -> None:
    engine = FakeEngine(continuation=scripted({"ab": "cd"}))
    engine.open(SequenceSpec(0, SamplingParams()))
    rows = list(engine.step(StepPlan(pieces=[PromptPiece(0, (BOS, *b"ab"), is_last=True)])))
    for _ in range(2):
        rows += engine.step(StepPlan(decode=[0]))
    assert [row.piece for row in rows] == [b"c", b"d", b""]
    assert [row.is_eog for row in rows] == [False, False, True]


@pytest.mark.parametrize("sampling", [SamplingParams(ignore_eos=True), SamplingParams(logit_bias={EOS: -math.inf})])
def test_a_forbidden_eos_is_not_drawn(sampling: SamplingParams) -> None:
    engine = FakeEngine(continuation=lambda history: EOS)
    engine.open(SequenceSpec(0, sampling))
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(0, (1,), is_last=True)]))
    assert (row.token, row.is_eog) == (ord("."), False)


def test_a_scripted_row_failure_leaves_its_neighbour_alone() -> None:
    engine = FakeEngine()
    start(engine, 0)
    start(engine, 1)
    engine.fail_row(0, RowError.DECODE)
    failed, fine = engine.step(StepPlan(decode=[0, 1]))
    assert failed.error is RowError.DECODE
    assert fine.error is None
    with pytest.raises(EngineError):
        engine.submit(StepPlan(decode=[0]))


def test_a_scripted_step_failure_is_raised_once() -> None:
    engine = FakeEngine()
    start(engine, 0)
    engine.fail_step(RuntimeError("boom"))
    with pytest.raises(RuntimeError, match="boom"):
        engine.step(StepPlan(decode=[0]))
    assert engine.step(StepPlan(decode=[0]))[0].error is None


def test_a_lost_context_fails_its_step_and_refuses_everything_later() -> None:
    """As llama.cpp throwing: closing still works."""
    engine = FakeEngine()
    start(engine, 0)
    start(engine, 1)
    engine.lose_context("bad_alloc")
    rows = engine.step(StepPlan(decode=[0, 1]))
    assert [(row.error, row.message) for row in rows] == [(RowError.DECODE, "bad_alloc")] * 2
    with pytest.raises(EngineDown, match="bad_alloc"):
        engine.open(SequenceSpec(2, GREEDY))
    with pytest.raises(EngineDown, match="bad_alloc"):
        engine.submit(StepPlan(decode=[0]))
    assert engine.close(0)


def test_a_batch_smaller_than_the_slots_is_refused() -> None:
    with pytest.raises(ConfigError, match="n_batch is 3: it must be at least n_slots, 4"):
        FakeEngine(n_batch=3)


def test_the_cells_are_shared_by_all_sequences() -> None:
    engine = FakeEngine(n_ctx=10, n_slots=2)
    engine.open(SequenceSpec(0, GREEDY))
    engine.open(SequenceSpec(1, GREEDY))
    engine.step(StepPlan(pieces=[PromptPiece(0, (1,) * 6, is_last=True)]))
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(1, (1,) * 5, is_last=True)]))
    assert row.error is RowError.CONTEXT_FULL
    assert engine.used_cells() == 6


def ahead(engine: FakeEngine, *seq_ids: int) -> list[FakeRow]:
    """Decode sequences; the step after it runs ahead then."""
    rows = engine.collect(engine.submit(StepPlan(decode=seq_ids), ahead=True))
    assert list(engine.ahead_rows) == list(seq_ids)
    return rows


def test_a_step_that_did_not_run_ahead_does_not_say_so() -> None:
    """L17: nor does one that was stopped, after one that did."""
    engine = FakeEngine()
    start(engine, 0)
    ahead(engine, 0)
    ahead(engine, 0)
    assert engine.report.ran_ahead
    engine.unwind()
    flag = FakeFlag()
    flag.set()
    (row,) = engine.step(StepPlan(decode=[0]), flag)
    assert row.error is RowError.ABORTED
    assert not engine.report.ran_ahead
    assert engine.ran_ahead == [False, False, True, False]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_scripted_rewind_breaks_its_sequence_alone(failing: int) -> None:
    """L7: its cells are gone and every later row of it fails, until it is closed."""
    engine = FakeEngine()
    start(engine, 0)
    start(engine, 1, 1)
    ahead(engine, 0, 1)
    engine.fail_rewinds(failing)
    broken = list(range(failing))
    assert engine.unwind() == broken
    assert engine.unwind() == []
    rows = engine.step(StepPlan(decode=[0, 1]))
    assert [row.error for row in rows] == [RowError.DECODE if seq_id in broken else None for seq_id in (0, 1)]
    for seq_id in broken:
        with pytest.raises(EngineError, match="broken"):
            engine.suspend(seq_id, 1000)
        assert engine.close(seq_id)
        start(engine, seq_id)
    assert len(engine.step(StepPlan(decode=[0, 1]))) == 2


def test_a_sequence_that_another_call_broke_is_told_until_it_is_closed() -> None:
    """E15: the call that took the step back has nobody to tell."""
    engine = FakeEngine()
    for seq_id in range(3):
        start(engine, seq_id, seq_id)
    ahead(engine, 0, 1, 2)
    engine.fail_rewinds(2)
    assert engine.length(2) > 0
    engine.close(0)
    start(engine, 0)
    assert engine.unwind() == [1]
    assert engine.unwind() == []


@pytest.mark.parametrize("bad_row", ["error", "eog", "no token"])
def test_nothing_runs_ahead_of_a_row_that_does_not_go_on(bad_row: str) -> None:
    """L14."""
    engine = FakeEngine(continuation=lambda history: EOS if bad_row == "eog" and 7 in history else letters(history))
    start(engine, 0)
    engine.open(SequenceSpec(1, GREEDY if bad_row != "eog" else SamplingParams()))
    if bad_row == "error":
        engine.fail_row(1, RowError.CONTEXT_FULL)
    piece = PromptPiece(1, (7, 8), is_last=bad_row != "no token")
    engine.collect(engine.submit(StepPlan(decode=[0], pieces=[piece]), ahead=True))
    assert list(engine.ahead_rows) == []


def test_a_sequence_comes_back_when_its_cells_have_room() -> None:
    """S11: until then nothing changes and it can be asked again."""
    engine = FakeEngine(n_ctx=60)
    first = start(engine, 0)
    n_cells = engine.used_cells()
    suspended = engine.suspend(0, n_cells)
    assert (suspended.n_bytes, engine.used_cells()) == (n_cells, 0)
    engine.open(SequenceSpec(1, GREEDY))
    engine.step(StepPlan(pieces=[PromptPiece(1, (1,) * (61 - n_cells), is_last=False)]))
    assert not engine.resume(0, suspended)
    assert engine.used_cells() == 61 - n_cells
    engine.close(1)
    assert engine.resume(0, suspended)
    assert engine.used_cells() == n_cells
    (row,) = engine.step(StepPlan(decode=[0]))
    assert row.token == letters((*prompt_of(engine), first))


def test_a_copy_larger_than_allowed_is_not_made() -> None:
    engine = FakeEngine()
    start(engine, 0)
    assert engine.suspend(0, engine.used_cells() - 1).n_bytes == 0


def test_a_sequence_that_drew_nothing_cannot_be_suspended() -> None:
    engine = FakeEngine()
    engine.open(SequenceSpec(0, GREEDY))
    for seq_id in (0, 1):
        with pytest.raises(EngineError, match=f"sequence {seq_id} is not open, has drawn nothing"):
            engine.suspend(seq_id, 1000)


def hold(engine: FakeEngine, seq_id: int, tokens: tuple[int, ...]) -> None:
    engine.open(SequenceSpec(seq_id, GREEDY))
    engine.step(StepPlan(pieces=[PromptPiece(seq_id, tokens, is_last=False)]))
    engine.close(seq_id, keep=True)


@pytest.mark.parametrize(
    ("fail", "call"),
    [
        ("fail_saves", lambda engine, _: engine.save(0, 0, 1000)),
        ("fail_restores", lambda engine, state: engine.restore(1, state)),
        ("fail_adopts", lambda engine, _: engine.adopt(1, 0, 2)),
    ],
)
def test_scripted_failures_of_memory_change_nothing(
    fail: str, call: Callable[[FakeEngine, FakeState | None], object]
) -> None:
    """So often as asked for; then it works."""
    engine = FakeEngine()
    hold(engine, 0, (1, 2, 3))
    state = engine.save(0, 0, 1000)
    getattr(engine, fail)(2)
    for _ in range(2):
        with pytest.raises(EngineError, match="scripted"):
            call(engine, state)
        assert [engine.length(seq_id) for seq_id in (0, 1)] == [3, 0]
    assert call(engine, state) is not False


def test_scripted_failures_are_those_of_checkpoints_too() -> None:
    engine = FakeEngine(can_share=False, can_trim=False)
    hold(engine, 0, (1, 2, 3))
    checkpoint = engine.checkpoint(0, 1000)
    assert checkpoint is not None
    engine.fail_saves(1)
    with pytest.raises(EngineError, match="scripted"):
        engine.checkpoint(0, 1000)
    engine.fail_restores(1)
    with pytest.raises(EngineError, match="scripted"):
        engine.go_back(0, checkpoint)
    assert engine.tokens(0) == (1, 2, 3)


def test_a_checkpoint_of_other_tokens_is_a_mistake_of_the_caller() -> None:
    """The real engine cannot see it and computes garbage."""
    engine = FakeEngine(can_share=False, can_trim=False)
    hold(engine, 0, (1, 2, 3))
    checkpoint = engine.checkpoint(0, 1000)
    assert checkpoint is not None
    assert engine.trim(0, 0)
    hold(engine, 0, (1, 2, 4, 5))
    with pytest.raises(EngineError, match="does not hold the 3 tokens"):
        engine.go_back(0, checkpoint)


def test_a_copy_has_the_tokens_it_is_of() -> None:
    """Also control tokens, in as many bytes a cell as the engine was told."""
    engine = FakeEngine(bytes_per_cell=5)
    tokens = (BOS, 0, 65, EOS, 253)
    hold(engine, 0, tokens)
    state = engine.save(0, 1, 20)
    assert state is not None
    assert state.n_bytes == 20
    assert bytes(state.view())[::5] == b"\x00A\xff\xfd"
    engine.adopt(1, 0, 1)
    assert engine.restore(1, engine.load_state(bytes(state.view()), 1, 5))
    assert engine.tokens(1) == tokens
    with pytest.raises(EngineError, match="a state of 20 bytes has not 5 cells of 5 bytes"):
        engine.restore(2, engine.load_state(state.view(), 0, 5))
    hold(engine, 3, (254,))
    with pytest.raises(EngineError, match="cannot save the byte 254"):
        engine.save(3, 0, 100)


def test_a_step_without_room_purges_in_order_and_no_more_than_needed() -> None:
    """S11, K4: cells that others hold too are not freed."""
    engine = FakeEngine(n_ctx=20, n_slots=2)
    for parked, token in ((10, 1), (11, 2), (12, 3)):
        hold(engine, 0, (token,) * 6)
        engine.adopt(parked, 0, 6)
        engine.trim(0, 0)
    engine.adopt(13, 10, 6)
    engine.open(SequenceSpec(1, GREEDY))
    plan = StepPlan(pieces=[PromptPiece(1, (7,) * 8, is_last=True)], purge=(10, 50, 11, 12))
    (row,) = engine.step(plan)
    assert row.error is None
    assert list(engine.report.purged) == [10, 11]
    assert engine.used_cells() == 20
    assert [engine.length(parked) for parked in (10, 11, 12, 13)] == [0, 0, 6, 6]
    engine.step(StepPlan(decode=[1], purge=()))
    assert list(engine.report.purged) == []


def test_a_restore_without_room_changes_nothing() -> None:
    engine = FakeEngine(n_ctx=20, n_slots=2)
    hold(engine, 0, (1,) * 11)
    state = engine.save(0, 0, 1000)
    assert state is not None
    assert not engine.restore(1, state)
    assert (engine.length(1), engine.used_cells()) == (0, 11)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"can_trim": False}, "cannot share: pass can_share=False"), ({"bytes_per_cell": 0}, "bytes_per_cell is 0")],
)
def test_memory_that_cannot_be_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FakeEngine(**options)  # type: ignore[arg-type]  # any option


def test_a_set_flag_ends_the_wait_of_a_step() -> None:
    engine = FakeEngine(step_s=60.0)
    engine.open(SequenceSpec(0, GREEDY))
    flag = FakeFlag()
    flag.set()
    began = time.monotonic()
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(0, (1,), is_last=True)]), flag)
    assert row.error is RowError.ABORTED
    assert time.monotonic() - began < 30


def test_the_vocabulary_reads_and_writes_control_tokens() -> None:
    vocab = FakeEngine().vocab
    assert vocab.tokenize("a<eos>", add_special=True, parse_special=True) == [BOS, 97, EOS]
    assert vocab.tokenize("<eos>", add_special=False, parse_special=False) == list(b"<eos>")
    assert vocab.detokenize([BOS, 97, EOS], special=True) == b"<bos>a<eos>"
    assert vocab.detokenize([BOS, 97, EOS], special=False) == b"a"
    with pytest.raises(BadToken, match="258"):
        vocab.detokenize([258], special=True)


def test_letters_depend_on_the_history_alone() -> None:
    assert letters((1, 2, 3)) == letters((1, 2, 3))
    assert len({letters((1,) * n) for n in range(1, 20)}) > 5
