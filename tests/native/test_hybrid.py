"""A model of attention layers and recurrent ones: served like any other, but never ahead of what was asked."""

from __future__ import annotations

from pathlib import Path

from llamaserve.engine.native import read_gguf
from llamaserve.engine.port import MemoryKind, StepPlan
from tests.native.conftest import LoadEngine
from tests.native.greedy import continue_alone, generate, start

PROMPT = [1, *range(20, 60)]


def test_the_memory_of_a_hybrid_model_is_known_without_its_weights(hybrid_model: Path) -> None:
    """L12."""
    summary = read_gguf(hybrid_model)
    assert (summary.architecture, summary.memory) == ("lfm2", MemoryKind.HYBRID)


def test_both_kinds_of_layers_remember_the_prompt(load: LoadEngine, hybrid_model: Path) -> None:
    """A text depends on the tokens just before it and on those further back than a convolution reaches."""
    engine = load(hybrid_model)
    text = generate(engine, PROMPT, 12)
    assert generate(engine, PROMPT, 12, seq_id=1) == text
    assert generate(engine, [*PROMPT[:-2], 200, PROMPT[-1]], 12) != text
    assert generate(engine, [1, *range(150, 186), *PROMPT[-4:]], 12) != text


def test_nothing_runs_ahead_of_a_hybrid_model(load: LoadEngine, hybrid_model: Path) -> None:
    """L12, K112, K128: its memory says yes to a step back and computes garbage afterwards."""
    engine = load(hybrid_model)
    assert engine.can_rewind is False
    expected = generate(engine, PROMPT, 8)
    token = start(engine, 0, PROMPT).token
    assert token is not None
    tokens = [token]
    for _ in range(4):
        (row,) = engine.collect(engine.submit(StepPlan(decode=[0]), ahead=True))
        assert list(engine.ahead_rows) == []
        assert engine.report.ran_ahead is False
        assert row.token is not None
        tokens.append(row.token)
    assert list(engine.unwind()) == []
    assert [*tokens, *continue_alone(engine, 0, 3)] == expected
    engine.close(0, keep=True)
    assert not engine.trim(0, len(PROMPT))
