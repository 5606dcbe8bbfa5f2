"""The purge list of a step: sequences without a request give their cells up when none is free."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamaserve.engine.port import PromptPiece, RowError, SequenceSpec, StepPlan
from llamaserve.errors import EngineError
from tests.native.conftest import LoadEngine
from tests.native.faults import PROMPTS, Streams, codes_against, errors_of, inject
from tests.native.greedy import GREEDY, generate, start


@pytest.fixture
def parked(load: LoadEngine, dense_model: Path) -> Streams:
    """Running sequences in shared cells, and three ids that hold cells without a request: 200, 201 and 202."""
    engine = load(dense_model)
    streams = Streams(engine)
    for parked_id in (200, 201, 202):
        start(engine, 0, PROMPTS[0])
        engine.adopt(parked_id, 0, engine.length(0))
        engine.close(0)
    streams.start()
    return streams


@pytest.mark.parametrize("n_needed", [0, 1, 2, 3])
def test_parked_sequences_are_purged_in_order_and_no_more_than_needed(parked: Streams, n_needed: int) -> None:
    """S11, K4: one at a time; an id that holds nothing frees nothing and is passed over."""
    inject(parked.engine, [1] * n_needed)
    purge = (202, 100, 200, 201)
    assert errors_of(parked.decode(purge=purge)) == [None] * 4
    order = [202, 200, 201]
    assert list(parked.engine.report.purged) == order[:n_needed]
    assert parked.engine.report.n_splits == 0
    lengths = {parked_id: parked.engine.length(parked_id) for parked_id in order}
    expected = dict.fromkeys(order[:n_needed], 0) | dict.fromkeys(order[n_needed:], len(PROMPTS[0]))
    assert lengths == expected
    parked.check()


def test_a_batch_is_halved_when_the_purge_list_is_used_up(parked: Streams) -> None:
    """S11, S12."""
    inject(parked.engine, [1, 1, *codes_against(3, 4, 1)])
    rows = parked.decode(purge=(200, 201))
    assert errors_of(rows) == [None, None, None, RowError.CONTEXT_FULL]
    assert list(parked.engine.report.purged) == [200, 201]
    assert parked.engine.length(202) == len(PROMPTS[0])
    parked.check()


def test_cells_of_a_purged_sequence_are_used_at_once(load: LoadEngine, dense_model: Path) -> None:
    """S11: a context of 256 cells, 240 of them parked, and a prompt of 100 that needs the first two of the list."""
    engine = load(dense_model, n_ctx=256)
    prompt = [(i % 250) + 3 for i in range(100)]
    expected = generate(engine, prompt, 8)
    for parked_id in (10, 11, 12):
        start(engine, 0, [(i * parked_id % 250) + 3 for i in range(80)])
        engine.adopt(parked_id, 0, engine.length(0))
        engine.close(0)
    engine.open(SequenceSpec(1, GREEDY))
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(1, prompt, is_last=True)], purge=[11, 10, 12]))
    assert row.error is None
    assert list(engine.report.purged) == [11, 10]
    assert engine.length(12) == 80
    tokens = [row.token]
    while len(tokens) < 8:
        (row,) = engine.step(StepPlan(decode=[1]))
        tokens.append(row.token)
    assert tokens == expected


def test_what_runs_ahead_is_taken_back_before_anything_is_purged(parked: Streams) -> None:
    """K148."""
    inject(parked.engine, [0, 0, 1])  # the step, the one ahead of it, and then another
    parked.decode(ahead=True)
    assert errors_of(parked.decode([2, 1], purge=(200,))) == [None] * 2
    assert list(parked.engine.report.purged) == [200]
    assert parked.engine.report.ran_ahead is False
    parked.check()


def test_a_step_that_ran_ahead_without_room_purges_when_it_is_asked_for(parked: Streams) -> None:
    """L20, K148: a run ahead never purges."""
    inject(parked.engine, [0, 1, 1])
    parked.decode(ahead=True, purge=(200,))
    assert list(parked.engine.report.purged) == []
    assert errors_of(parked.decode(purge=(201, 200))) == [None] * 4
    assert list(parked.engine.report.purged) == [201]
    parked.check()


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize(
    ("seq_id", "message"),
    [(3, "is open: it cannot be purged"), (-1, "outside"), (255, "outside"), (2**31 - 1, "outside")],
)
def test_a_purge_list_with_a_wrong_id_is_refused(parked: Streams, seq_id: int, message: str, runs_ahead: bool) -> None:
    """K26, K126: nothing was purged and the sequences go on, also where the plan is the one that runs ahead."""
    running = [0, 1, 2]
    inject(parked.engine, [0, 1, 1] if runs_ahead else [0])
    parked.decode(running, ahead=runs_ahead)
    with pytest.raises(EngineError, match=message):
        parked.decode(running, purge=(200, seq_id))
    assert parked.engine.length(200) == len(PROMPTS[0])
    inject(parked.engine)
    parked.check()


def test_split_memory_has_no_ids_beyond_its_slots_to_purge(streams: Streams) -> None:
    """K126."""
    with pytest.raises(EngineError, match=r"outside 0\.\.3"):
        streams.decode(purge=(4,))
    streams.check()
