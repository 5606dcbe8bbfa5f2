"""The count of cells in use is the truth: what is left takes exactly so many tokens, and not one more."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import PromptPiece, RowError, SequenceSpec, StepPlan
from tests.memory_laws import ROOM, hold
from tests.native.conftest import LoadEngine
from tests.native.greedy import GREEDY, start

N_CTX = 256
TOKENS = tuple((11 * i % 250) + 3 for i in range(N_CTX + 1))
PROBE = 3
"""The slot that is left free for the probe."""


def check_used_cells(engine: NativeEngine, expected: int) -> None:
    """The largest prompt that still fits takes the rest of the cells; with one token more it fails."""
    assert engine.used_cells() == expected
    n_free = N_CTX - expected
    for n_tokens, error in ((n_free + 1, RowError.CONTEXT_FULL), (n_free, None)):
        if 0 < n_tokens <= engine.info.n_batch:
            engine.open(SequenceSpec(PROBE, GREEDY))
            (row,) = engine.step(StepPlan(pieces=[PromptPiece(PROBE, TOKENS[:n_tokens], is_last=True)]))
            assert row.error is error
            engine.close(PROBE)
    assert engine.used_cells() == expected


@pytest.mark.parametrize("kind", ["dense_model", "sliding_window_model"])
def test_shared_cells_count_once(load: LoadEngine, kind: str, request: pytest.FixtureRequest) -> None:
    """S22, K4: whoever holds them, and until nobody does."""
    engine = load(request.getfixturevalue(kind), n_ctx=N_CTX, n_batch=N_CTX, swa_full=True)
    check_used_cells(engine, 0)
    hold(engine, 0, TOKENS[:90])
    check_used_cells(engine, 90)
    for parked in (4, 5, 200, 254):
        engine.adopt(parked, 0, 80)
    check_used_cells(engine, 90)
    assert engine.trim(0, 40)
    check_used_cells(engine, 80)
    engine.open(SequenceSpec(0, GREEDY))
    engine.step(StepPlan(pieces=[PromptPiece(0, TOKENS[40:60], is_last=True)]))
    engine.collect(engine.submit(StepPlan(decode=[0]), ahead=True))
    check_used_cells(engine, 80 + 21)
    for parked in (4, 5, 200):
        assert engine.trim(parked, 0)
    check_used_cells(engine, 80 + 21)
    assert engine.trim(254, 70)
    check_used_cells(engine, 70 + 21)
    engine.close(0)
    check_used_cells(engine, 70)
    assert engine.trim(254, 0)
    check_used_cells(engine, 0)


def test_restored_and_resumed_cells_count(load: LoadEngine, dense_model: Path) -> None:
    """S33: copies that are not in the cache do not."""
    engine = load(dense_model, n_ctx=N_CTX, n_batch=N_CTX)
    start(engine, 0, TOKENS[:50])
    state = engine.save(0, 20, ROOM)
    assert state is not None
    suspended = engine.suspend(0, ROOM)
    check_used_cells(engine, 0)
    assert engine.resume(1, suspended)
    engine.adopt(100, 1, 20)
    assert engine.restore(100, state)
    check_used_cells(engine, 80)
    engine.close(1)
    check_used_cells(engine, 50)


def test_purged_cells_do_not_count(load: LoadEngine, dense_model: Path) -> None:
    """S11: those that others hold too are still there afterwards."""
    engine = load(dense_model, n_ctx=N_CTX, n_batch=N_CTX)
    hold(engine, 0, TOKENS[:150])
    engine.adopt(100, 0, 150)
    engine.adopt(101, 0, 60)
    assert engine.trim(0, 0)
    engine.open(SequenceSpec(1, GREEDY))
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(1, TOKENS[:150], is_last=True)], purge=(100, 101)))
    assert row.error is None
    assert list(engine.report.purged) == [100]
    assert engine.length(101) == 60
    check_used_cells(engine, 210)


@pytest.mark.parametrize("kind", ["recurrent_model", "hybrid_model"])
def test_tokens_count_where_there_are_no_cells(load: LoadEngine, kind: str, request: pytest.FixtureRequest) -> None:
    engine = load(request.getfixturevalue(kind))
    hold(engine, 0, TOKENS[:50])
    start(engine, 1, TOKENS[:20])
    assert engine.used_cells() == 70
    engine.close(1)
    assert engine.used_cells() == 50
