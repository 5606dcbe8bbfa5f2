"""Cells of sequences that run together are put side by side, and nobody notices but the clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from llamaserve.config import FlashAttention, Profile
from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import PromptPiece, RowError, SequenceSpec, StepPlan
from llamaserve.sampling import SamplingParams
from tests.native.conftest import LoadEngine
from tests.native.faults import inject
from tests.native.greedy import GREEDY, continue_alone, start

PROMPTS = tuple([1, *range(first, first + 11)] for first in (40, 60, 80))
MOST_SCATTERED = 32
"""As in cell_runs.h: tokens decoded beside others before their cells are gathered."""


def n_runs(engine: NativeEngine, seq_id: int) -> int:
    return engine._engine.n_runs(seq_id)


def decode(engine: NativeEngine, seq_ids: Sequence[int], n_steps: int, *, ahead: bool = False) -> tuple[list[int], ...]:
    """The tokens of each sequence."""
    tokens: tuple[list[int], ...] = tuple([] for _ in seq_ids)
    for _ in range(n_steps):
        rows = engine.collect(engine.submit(StepPlan(decode=list(seq_ids)), ahead=ahead))
        for of_sequence, row in zip(tokens, rows, strict=True):
            assert row.token is not None, row.message
            of_sequence.append(row.token)
    return tokens


def run_together(engine: NativeEngine, *, ahead: bool = False, sampling: SamplingParams = GREEDY) -> list[list[int]]:
    """Two sequences, and a third that comes later."""
    for seq_id in (0, 1):
        start(engine, seq_id, PROMPTS[seq_id], sampling)
    first = decode(engine, (0, 1), 20, ahead=ahead)
    start(engine, 2, PROMPTS[2], sampling)
    second = decode(engine, (0, 1, 2), 70, ahead=ahead)
    return [first[0] + second[0], first[1] + second[1], second[2]]


@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("seed", [None, 7], ids=["greedy", "seeded"])
def test_texts_are_the_same_wherever_their_cells_are(
    load: LoadEngine, dense_model: Path, ahead: bool, seed: int | None
) -> None:
    sampling = GREEDY if seed is None else SamplingParams(temperature=1.0, seed=seed, ignore_eos=True)
    gathering, leaving = load(dense_model), load(dense_model, gather_cells=False)
    assert run_together(gathering, ahead=ahead, sampling=sampling) == run_together(
        leaving, ahead=ahead, sampling=sampling
    )
    assert n_runs(gathering, 0) < 40
    assert n_runs(leaving, 0) > 80
    assert gathering.used_cells() == leaving.used_cells()


def test_cells_decoded_in_turn_come_side_by_side_once_they_are_many(load: LoadEngine, dense_model: Path) -> None:
    engine = load(dense_model)
    for seq_id in (0, 1):
        start(engine, seq_id, PROMPTS[seq_id])
    decode(engine, (0, 1), MOST_SCATTERED)
    assert engine.report.time.gather == 0
    assert n_runs(engine, 0) == MOST_SCATTERED + 1
    n_used = engine.used_cells()
    decode(engine, (0, 1), 1)
    assert engine.report.time.gather > 0
    assert (n_runs(engine, 0), n_runs(engine, 1)) == (3, 3)  # prompt, what was gathered, the last token
    assert engine.used_cells() == n_used + 2
    decode(engine, (0, 1), 1)
    assert engine.report.time.gather == 0


def test_who_runs_alone_is_left_where_it_is(load: LoadEngine, dense_model: Path) -> None:
    engine = load(dense_model)
    start(engine, 0, PROMPTS[0])
    continue_alone(engine, 0, 3 * MOST_SCATTERED)
    assert n_runs(engine, 0) == 1
    start(engine, 1, PROMPTS[1])
    times = []
    for _ in range(MOST_SCATTERED + 1):
        decode(engine, (0, 1), 1)
        times.append(engine.report.time.gather)
    assert [time > 0 for time in times] == [False] * MOST_SCATTERED + [True]
    assert n_runs(engine, 0) == 3


def test_pieces_of_a_prompt_beside_streams(load: LoadEngine, dense_model: Path) -> None:
    """Large ones lie well as they are; small ones are gathered with the texts."""
    prompt = [1, *range(20, 160)]
    engine = load(dense_model)
    start(engine, 0, PROMPTS[0])
    engine.open(SequenceSpec(1, GREEDY))
    for at in range(0, 100, 2):
        engine.step(StepPlan(decode=[0], pieces=[PromptPiece(1, prompt[at : at + 2], is_last=False)]))
    for at in range(100, 140, 20):
        engine.step(StepPlan(decode=[0], pieces=[PromptPiece(1, prompt[at : at + 20], is_last=False)]))
    engine.step(StepPlan(decode=[0], pieces=[PromptPiece(1, prompt[140:], is_last=True)]))
    assert n_runs(engine, 1) < 25
    others = load(dense_model)
    start(others, 0, prompt)
    assert decode(engine, (1,), 20) == (continue_alone(others, 0, 20),)


def test_cells_that_others_have_too_stay(load: LoadEngine, dense_model: Path) -> None:
    """A parked sequence goes on with a running one's tokens: they are not copied, and none is held twice."""
    engine = load(dense_model)
    for seq_id in (0, 1):
        start(engine, seq_id, PROMPTS[seq_id])
    decode(engine, (0, 1), MOST_SCATTERED - 1)
    assert n_runs(engine, 0) == MOST_SCATTERED
    n_shared = engine.length(0)
    n_used = engine.used_cells()
    engine.adopt(100, 0, n_shared)
    assert engine.used_cells() == n_used
    assert n_runs(engine, 0) == n_runs(engine, 100) == 2  # gathered before they were shared
    decode(engine, (0, 1), MOST_SCATTERED + 2)
    assert engine.used_cells() == n_used + 2 * (MOST_SCATTERED + 2)
    engine.close(0)
    assert engine.length(100) == n_shared
    assert n_runs(engine, 100) == 2
    engine.adopt(0, 100, n_shared)
    assert engine.used_cells() == n_shared + engine.length(1)


def test_what_was_gathered_can_be_shared_saved_and_resumed(load: LoadEngine, dense_model: Path) -> None:
    engine, alone = load(dense_model), load(dense_model)
    for seq_id in (0, 1):
        start(engine, seq_id, PROMPTS[seq_id])
    start(alone, 0, PROMPTS[0])
    expected = continue_alone(alone, 0, 2 * MOST_SCATTERED + 20)
    tokens = decode(engine, (0, 1), 2 * MOST_SCATTERED)[0]
    suspended = engine.suspend(0, 2**30)
    assert engine.resume(0, suspended)
    tokens += decode(engine, (0, 1), 20)[0]
    assert tokens == expected


def test_a_sequence_whose_cells_cannot_come_back_fails_alone(load: LoadEngine, dense_model: Path) -> None:
    engine, whole = load(dense_model), load(dense_model)
    for one in (engine, whole):
        for seq_id in (0, 1):
            start(one, seq_id, PROMPTS[seq_id])
        decode(one, (0, 1), MOST_SCATTERED)
    inject(engine, n_failing_returns=1)
    lost, row = engine.step(StepPlan(decode=[0, 1]))
    assert lost.error is RowError.DECODE
    assert "its cells could not be put back" in lost.message
    assert row.token == decode(whole, (0, 1), 1)[1][0]
    assert engine.length(0) == 0
    engine.close(0)
    assert decode(engine, (1,), 20)[0] == decode(whole, (0, 1), 20)[1]
    assert start(engine, 0, PROMPTS[0]).token is not None


def test_a_sequence_lost_while_a_step_runs_ahead_fails_alone(load: LoadEngine, dense_model: Path) -> None:
    engine = load(dense_model)
    for seq_id in (0, 1):
        start(engine, seq_id, PROMPTS[seq_id])
    decode(engine, (0, 1), MOST_SCATTERED - 1)
    inject(engine, n_failing_returns=2)
    decode(engine, (0, 1), 1, ahead=True)
    rows = engine.step(StepPlan(decode=[0, 1]))
    assert [row.error for row in rows] == [RowError.DECODE] * 2
    for seq_id in (0, 1):
        engine.close(seq_id)
        assert start(engine, seq_id, PROMPTS[seq_id]).token is not None


def test_a_sequence_lost_while_others_run_fails_with_its_next_row(load: LoadEngine, dense_model: Path) -> None:
    engine = load(dense_model)
    for seq_id in (0, 1, 2):
        start(engine, seq_id, PROMPTS[seq_id])
    decode(engine, (0, 1, 2), 20)
    decode(engine, (1, 2), MOST_SCATTERED - 20)
    inject(engine, n_failing_returns=1)
    decode(engine, (1, 2), 1)
    (lost,) = engine.step(StepPlan(decode=[0]))
    assert lost.error is RowError.DECODE
    assert "its cells could not be put back" in lost.message
    decode(engine, (1, 2), 5)


@pytest.mark.parametrize(
    "options",
    [{"gather_cells": False}, {"flash_attention": FlashAttention.OFF}, {"profile": Profile.PARITY}],
    ids=["switched off", "no flash attention", "split"],
)
def test_cells_stay_where_gathering_is_of_no_use(
    load: LoadEngine, dense_model: Path, options: dict[str, object]
) -> None:
    engine = load(dense_model, **options)
    for seq_id in (0, 1):
        start(engine, seq_id, PROMPTS[seq_id])
    for _ in range(2 * MOST_SCATTERED):
        decode(engine, (0, 1), 1)
        assert engine.report.time.gather == 0


@pytest.mark.parametrize("kind", ["recurrent_model", "hybrid_model", "sliding_window_model"])
def test_memory_that_cannot_share_is_left_alone(load: LoadEngine, kind: str, request: pytest.FixtureRequest) -> None:
    engine = load(request.getfixturevalue(kind))
    for seq_id in (0, 1):
        start(engine, seq_id, PROMPTS[seq_id])
    for _ in range(MOST_SCATTERED + 8):
        decode(engine, (0, 1), 1)
        assert engine.report.time.gather == 0


def test_a_whole_window_is_gathered_too(load: LoadEngine, sliding_window_model: Path) -> None:
    gathering = load(sliding_window_model, swa_full=True)
    leaving = load(sliding_window_model, swa_full=True, gather_cells=False)
    assert run_together(gathering) == run_together(leaving)
    assert n_runs(gathering, 0) < 40
    assert n_runs(leaving, 0) > 80
