"""What the return codes of llama_decode, and cells that cannot be removed, do to a step that runs ahead."""

from __future__ import annotations

import time

import pytest

from llamaserve.engine.port import RowError, StepPlan
from tests.native.faults import SEQ_IDS, Streams, codes_against, errors_of, inject


@pytest.mark.parametrize("code", [1, 2, -1, -2, -3])
def test_a_step_whose_run_ahead_failed_is_computed_as_usual(streams: Streams, code: int) -> None:
    """L20, K115: the code is that of the early call; the texts are as they are alone."""
    inject(streams.engine, [0, code])
    assert errors_of(streams.decode(ahead=True)) == [None] * 4
    assert list(streams.engine.ahead_rows) == [0, 1, 2, 3]
    assert errors_of(streams.decode(ahead=True)) == [None] * 4
    assert streams.engine.report.ran_ahead is False
    assert errors_of(streams.decode()) == [None] * 4
    assert streams.engine.report.ran_ahead is True
    streams.check()


@pytest.mark.parametrize("code", [1, 2, -1, -2, -3])
def test_a_run_ahead_that_failed_leaves_nothing_to_take_back(streams: Streams, code: int) -> None:
    """L20, K113, K116."""
    inject(streams.engine, [0, code])
    streams.decode(ahead=True)
    used = streams.engine.used_cells()
    assert list(streams.engine.unwind()) == []
    assert streams.engine.used_cells() == used
    streams.check()


@pytest.mark.parametrize(
    ("codes", "errors"),
    [
        ([1], [None] * 4),
        (codes_against(2, 4, 1), [None, None, RowError.CONTEXT_FULL, None]),
        (codes_against(1, 4, -1), [None, RowError.DECODE, None, None]),
        ([2], [RowError.ABORTED] * 4),
        ([-2], [RowError.DECODE] * 4),
        ([1, -3, 0], [RowError.DECODE, RowError.DECODE, None, None]),
    ],
)
def test_a_step_that_fails_early_and_again_fails_as_it_would_have(
    streams: Streams, codes: list[int], errors: list[RowError | None]
) -> None:
    """The early call has no room; the same step, asked for, meets the codes itself."""
    inject(streams.engine, [0, 1, *codes])
    streams.decode(ahead=True)
    assert errors_of(streams.decode()) == errors
    for seq_id, error in zip(SEQ_IDS, errors, strict=True):
        if error is RowError.DECODE:
            streams.engine.close(seq_id)
    streams.check([seq_id for seq_id, error in zip(SEQ_IDS, errors, strict=True) if error is not RowError.DECODE])


def test_a_row_of_the_run_ahead_that_cannot_go_back_is_named(streams: Streams) -> None:
    """E15, L7, K110, K111: its next row fails, the neighbours never noticed, its id works after a close."""
    inject(streams.engine, n_failing_rewinds=1)
    streams.decode(ahead=True)
    assert list(streams.engine.unwind()) == [0]
    assert streams.engine.length(0) == 0
    rows = streams.decode()
    assert errors_of(rows) == [RowError.DECODE, None, None, None]
    assert "could not be taken back" in rows[0].message
    assert streams.engine.close(0)
    streams.start([0])
    streams.check()


@pytest.mark.parametrize("code", [2, -2, -3])
def test_a_failed_run_ahead_that_cannot_go_back_either_breaks_that_row(streams: Streams, code: int) -> None:
    """E15, L20: whether it is asked for or taken back."""
    inject(streams.engine, [0, code], n_failing_rewinds=2)
    streams.decode(ahead=True)
    assert errors_of(streams.decode()) == [RowError.DECODE, RowError.DECODE, None, None]
    for seq_id in (0, 1):
        streams.engine.close(seq_id)
    streams.start([0, 1])

    inject(streams.engine, [0, code], n_failing_rewinds=1)
    streams.decode(ahead=True)
    assert list(streams.engine.unwind()) == [0]
    streams.engine.close(0)
    streams.start([0])
    streams.check()


def test_closing_a_row_takes_back_the_run_ahead_of_its_neighbours_too(streams: Streams) -> None:
    """L8, E15: the one whose cells stay is broken, also when another is the reason."""
    inject(streams.engine, n_failing_rewinds=1)
    streams.decode(ahead=True)
    assert streams.engine.close(3)
    assert list(streams.engine.unwind()) == [0]
    assert list(streams.engine.unwind()) == []
    assert errors_of(streams.decode([0, 1, 2])) == [RowError.DECODE, None, None]
    streams.engine.close(0)
    streams.check([1, 2])


def test_what_another_call_broke_is_told_until_it_is_closed(streams: Streams) -> None:
    """E15: a call that takes the early step back itself has nobody to tell."""
    inject(streams.engine, n_failing_rewinds=2)
    streams.decode(ahead=True)
    assert streams.engine.length(3) > 0
    assert streams.engine.close(0)
    streams.start([0])
    assert list(streams.engine.unwind()) == [1]
    streams.engine.close(1)
    streams.start([1])
    assert list(streams.engine.unwind()) == []
    streams.check()


@pytest.mark.parametrize("wait_s", [0.0, 0.05], ids=["running", "done"])
def test_a_flag_that_was_set_before_stops_a_step_that_ran_ahead(streams: Streams, wait_s: float) -> None:
    """S56: as it stops any other, whether the early decode is still running or long done."""
    streams.decode(ahead=True)
    time.sleep(wait_s)  # nothing tells when it is done: whoever asks takes it back
    flag = streams.engine.new_flag()
    flag.set()
    rows = streams.engine.step(StepPlan(decode=SEQ_IDS), flag)
    assert errors_of(rows) == [RowError.ABORTED] * 4
    streams.check()
