"""The scenario ``stall``: which gaps belong to the stall, and when it is none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.harness.rounds import NotEngaged
from bench.stall import FULL, QUICK, Load, Stall, table
from llamaserve.loadtest.call import Call
from llamaserve.loadtest.outcome import Outcome


def outcome(submitted: float, token_times: Sequence[float], n_prompt: int = 10) -> Outcome:
    """A whole answer."""
    return Outcome(
        call=Call({}),
        submitted=submitted,
        sent=submitted,
        token_times=tuple(token_times),
        finished=token_times[-1] if token_times else submitted,
        text="",
        prompt_tokens=n_prompt,
        cached_tokens=0,
        completion_tokens=len(token_times),
        failure=None,
    )


STREAMS = [outcome(0.0, [1.0, 2.0, 3.0, 9.0, 12.0, 13.0]), outcome(0.0, [1.5, 2.5, 10.5, 13.5])]
LONG = outcome(3.0, [11.0, 12.0], n_prompt=100)


def test_the_stall_is_from_sending_the_long_prompt_to_its_first_token() -> None:
    stall = Stall.of(STREAMS, LONG)
    assert stall.long_ttft == 8.0
    assert stall.steady_itl == 1.0
    assert stall.n_stall_tokens == 2


def test_gaps_that_reach_into_the_stall_count_for_it() -> None:
    stall = Stall.of(STREAMS, LONG)  # 3 to 9, 9 to 12, 2.5 to 10.5, 10.5 to 13.5
    assert stall.stall_itl_max == 8.0
    assert stall.stall_itl_p50 == 4.5


def test_throughput_counts_prompt_and_output_of_everybody() -> None:
    assert Stall.of(STREAMS, LONG).throughput == pytest.approx((10 + 6 + 10 + 4 + 100 + 2) / 13.5)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (outcome(0.0, [4.0, 12.0]), "a stream did not run through"),
        (outcome(0.0, [1.0, 2.0, 10.0]), "a stream did not run through"),
        (outcome(0.0, []), "a stream did not run through"),
    ],
)
def test_streams_that_do_not_span_the_stall_give_no_figures(stream: Outcome, why: str) -> None:
    with pytest.raises(NotEngaged, match=why):
        Stall.of([stream], LONG)


def test_streams_need_a_gap_before_the_stall() -> None:
    with pytest.raises(NotEngaged, match="no stream had two tokens before"):
        Stall.of([outcome(0.0, [1.0, 12.0])], LONG)


def test_a_long_answer_without_text_gives_no_figures() -> None:
    with pytest.raises(NotEngaged, match="has no text"):
        Stall.of(STREAMS, outcome(3.0, []))


def test_the_table_compares_llamaserve_with_every_other_arm() -> None:
    stall = Stall.of(STREAMS, LONG)
    text = table({"llamaserve": [stall, stall], "peer": [stall, stall]}).markdown()
    assert "|  | llamaserve | peer | llamaserve / peer |" in text
    assert (
        "| TTFT of the long prompt, ms | 8000.0 (8000.0..8000.0) | 8000.0 (8000.0..8000.0) | 1.00 (1.00..1.00) |"
        in text
    )


@pytest.mark.parametrize("load", [FULL, QUICK])
def test_the_context_has_room_for_every_token(load: Load) -> None:
    assert load.n_ctx >= load.n_long + load.n_answer + load.streams * (20 + load.n_stream)


def test_without_llamaserves_own_figures_there_are_no_ratios() -> None:
    assert table({"peer": [Stall.of(STREAMS, LONG)]}).columns == ["", "peer"]
