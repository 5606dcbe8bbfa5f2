"""A real sliding-window model: whatever the engine does beside computing, the text stays the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.harness.models import gemma
from llamaserve.config import Profile
from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import MemoryKind, PromptPiece, SequenceSpec, StepPlan
from llamaserve.request import SamplingParams
from tests.native.conftest import LoadEngine

pytestmark = pytest.mark.slow

SENTENCE = "The ferry left the harbour at dawn, carrying letters, salt and a single passenger. "
N_PROMPTS = (700, 40)  # past the window of 512, and within it
N_TOKENS = 32
SAMPLINGS = (
    SamplingParams(temperature=0.0, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=7, repeat_penalty=1.2, ignore_eos=True),
)


@pytest.fixture(scope="module")
def window_model() -> Path:
    """A model of LLAMASERVE_TEST_SWA_MODEL, else Gemma 3 270M."""
    named = os.environ.get("LLAMASERVE_TEST_SWA_MODEL")
    if named is not None:
        return Path(named)
    try:
        return gemma()
    except RuntimeError as error:
        pytest.skip(f"no sliding-window model: {error}")


@pytest.fixture
def engine(load: LoadEngine, window_model: Path) -> NativeEngine:
    engine = load(window_model, n_ctx=2048, n_slots=2, profile=Profile.PARITY)
    assert engine.info.memory is MemoryKind.SLIDING_WINDOW
    return engine


def start(engine: NativeEngine, seq_id: int, sampling: SamplingParams) -> int:
    """Open a sequence and compute its prompt in pieces; its first token."""
    tokens = engine.vocab.tokenize(SENTENCE * 60, add_special=True, parse_special=False)[: N_PROMPTS[seq_id]]
    assert len(tokens) == N_PROMPTS[seq_id]
    engine.open(SequenceSpec(seq_id, sampling, tokens))
    for at in range(0, len(tokens), 256):
        piece = PromptPiece(seq_id, tokens[at : at + 256], is_last=at + 256 >= len(tokens))
        (row,) = engine.step(StepPlan(pieces=[piece]))
    assert row.token is not None, row.message
    return row.token


def decode(engine: NativeEngine, texts: list[list[int]], *, ahead: bool) -> None:
    """One step of both sequences."""
    for text, row in zip(texts, engine.collect(engine.submit(StepPlan(decode=[0, 1]), ahead=ahead)), strict=True):
        assert row.token is not None, row.message
        text.append(row.token)


def texts_of(engine: NativeEngine, sampling: SamplingParams) -> list[list[int]]:
    """Both texts, side by side and with nothing else done."""
    texts = [[start(engine, seq_id, sampling)] for seq_id in (0, 1)]
    while len(texts[0]) < N_TOKENS:
        decode(engine, texts, ahead=False)
    engine.close(0)
    engine.close(1)
    return texts


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
def test_texts_past_the_window_are_the_same_with_and_without_lookahead(
    engine: NativeEngine, sampling: SamplingParams
) -> None:
    """L13, L22, L23: also when the step that ran ahead is taken back now and then."""
    expected = texts_of(engine, sampling)
    texts = [[start(engine, seq_id, sampling)] for seq_id in (0, 1)]
    n_ahead = 0
    while len(texts[0]) < N_TOKENS:
        decode(engine, texts, ahead=True)
        n_ahead += engine.report.ran_ahead
        if len(texts[0]) % 5 == 0:
            assert list(engine.unwind()) == []
    assert texts == expected
    assert n_ahead > N_TOKENS // 2


@pytest.mark.parametrize("max_bytes", [2**30, 0], ids=["with cells", "computed again"])
def test_a_sequence_suspended_past_the_window_goes_on(engine: NativeEngine, max_bytes: int) -> None:
    """S10: under the other's id, while that one is away."""
    expected = texts_of(engine, SAMPLINGS[0])
    texts = [[start(engine, seq_id, SAMPLINGS[0])] for seq_id in (0, 1)]
    for _ in range(8):
        decode(engine, texts, ahead=True)
    n_cells = N_PROMPTS[0] + len(texts[0]) - 1
    suspended = engine.suspend(0, max_bytes)
    assert (suspended.n_bytes > 0) == (max_bytes > 0)
    engine.close(1)
    assert engine.used_cells() == 0
    assert engine.resume(1, suspended)
    if max_bytes == 0:
        prompt = engine.vocab.tokenize(SENTENCE * 60, add_special=True, parse_special=False)[: N_PROMPTS[0]]
        history = [*prompt, *texts[0][:-1]]
        for at in range(0, n_cells, 256):
            (row,) = engine.step(StepPlan(pieces=[PromptPiece(1, history[at : at + 256], is_last=False)]))
            assert row.error is None, row.message
    assert engine.used_cells() == n_cells
    while len(texts[0]) < N_TOKENS:
        (row,) = engine.collect(engine.submit(StepPlan(decode=[1]), ahead=True))
        assert row.token is not None, row.message
        texts[0].append(row.token)
    assert texts[0] == expected[0]
