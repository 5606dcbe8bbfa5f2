"""The fake engine obeys the laws of the port, and fails on demand."""

from __future__ import annotations

import math
import time

import pytest

from llamaserve.engine.fake import BOS, EOS, FakeEngine, FakeFlag, letters, scripted
from llamaserve.engine.port import PromptPiece, RowError, SequenceSpec, StepPlan
from llamaserve.errors import BadToken, ConfigError, EngineDown, EngineError
from llamaserve.request import SamplingParams
from tests.engine_laws import FINAL_LAWS, GREEDY, LAWS, Law, start


@pytest.mark.parametrize("law", [*LAWS, *FINAL_LAWS], ids=lambda law: law.__name__)
def test_the_fake_engine_obeys_the_law(law: Law) -> None:
    """Same laws as the native engine (E2, E10, E13)."""
    law(FakeEngine())


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
