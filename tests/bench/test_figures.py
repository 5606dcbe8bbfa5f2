"""Figures of requests whose times are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.conversations import OURS_OFF as CONVERSATIONS_OFF
from bench.conversations import Held, require_engaged
from bench.decode import texts_equal
from bench.harness.arms import LLAMASERVE
from bench.harness.figures import (
    computed_prompt_tokens,
    decode_rate,
    milliseconds,
    pooled_itl,
    ran_together,
    require_complete,
    spread,
)
from bench.harness.rounds import NotEngaged
from bench.harness.streams import StreamFigures
from bench.shared_prefix import Burst, Bursts
from bench.shared_prefix import require_engaged as require_shared
from llamaserve.loadtest.call import Call
from llamaserve.loadtest.outcome import Failure, Outcome


def outcome(times: Sequence[float], *, cached: int | None = None, prompt: int = 100) -> Outcome:
    """A whole answer whose tokens came at these times, submitted at 0."""
    return Outcome(
        call=Call({}),
        submitted=0.0,
        sent=0.0,
        token_times=tuple(times),
        finished=times[-1],
        text="x" * len(times),
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=len(times),
        failure=None,
    )


def test_the_decode_rate_counts_the_tokens_of_the_time_in_which_all_streams_run() -> None:
    """From 1.2 to 1.8: two of the first stream and two of the second, whose last comes when the first has ended."""
    streams = [outcome([1.0, 1.4, 1.8]), outcome([1.2, 1.5, 1.7, 2.0])]
    assert decode_rate(streams) == pytest.approx(4 / 0.6)


def test_a_piece_of_text_counts_as_as_many_tokens_as_its_stream_has_on_average() -> None:
    merged = replace(outcome([1.0, 2.0, 3.0]), completion_tokens=5)
    assert decode_rate([merged]) == pytest.approx(2.0)


def test_streams_ran_together_if_all_had_begun_before_one_ended() -> None:
    assert ran_together([outcome([1.0, 2.0]), outcome([1.9, 3.0])])
    assert not ran_together([outcome([1.0, 2.0]), outcome([2.1, 3.0])])


def test_gaps_are_pooled_over_streams() -> None:
    assert pooled_itl([outcome([1.0, 1.5]), outcome([1.0, 1.25, 1.5])]) == [0.5, 0.25, 0.25]


def test_a_server_that_does_not_say_what_it_cached_has_cached_nothing() -> None:
    outcomes = [outcome([1.0], cached=80), outcome([1.0], cached=None)]
    assert computed_prompt_tokens(outcomes) == 120


def test_an_answer_that_failed_ends_the_scenario_with_its_kind() -> None:
    failed = replace(outcome([1.0]), failure=Failure("length", "asked for 8 tokens, got 5"))
    with pytest.raises(RuntimeError, match=r"arm: 1 of 2 requests failed \(1 length\): asked for 8 tokens, got 5"):
        require_complete([outcome([1.0]), failed], "arm")


def test_an_answer_whose_length_is_not_known_ends_the_scenario() -> None:
    with pytest.raises(RuntimeError, match="cannot be checked"):
        require_complete([replace(outcome([1.0]), completion_tokens=None)], "arm")


def test_a_spread_is_the_median_with_both_ends() -> None:
    assert spread([3.0, 1.0, 2.0]) == "2.0 (1.0..3.0)"
    assert milliseconds([0.0015, 0.0005], 2) == "1.00 (0.50..1.50)"


def test_a_program_that_tells_a_rate_only_has_equal_steps() -> None:
    figures = StreamFigures.of_rate(200.0, 4)
    assert (figures.rate, figures.itl_p50, figures.itl_p99) == (200.0, 0.02, 0.02)


def test_texts_are_compared_stream_by_stream() -> None:
    def answers(*texts: str) -> dict[int, StreamFigures]:
        return {2: StreamFigures(1.0, 1.0, 1.0, texts)}

    results = {"llamaserve": [answers("a", "b"), answers("c", "d")], "peer": [answers("a", "x"), answers("c", "d")]}
    assert texts_equal(results, "peer", 2) == (3, 4)


def held(hit_ratio: float) -> Held:
    return Held(0.1, 0.2, hit_ratio, 100, 1.0, ("text",))


def test_conversations_without_a_hit_are_no_figure_of_a_cache() -> None:
    with pytest.raises(NotEngaged, match="no prompt token came from a cache"):
        require_engaged(LLAMASERVE, held(0.0))
    require_engaged(LLAMASERVE, held(0.5))


def test_conversations_with_a_hit_are_no_figure_of_a_cache_that_is_off() -> None:
    with pytest.raises(NotEngaged, match="a cache that is off"):
        require_engaged(CONVERSATIONS_OFF, held(0.5))
    require_engaged(CONVERSATIONS_OFF, held(0.0))


def burst(computed: int) -> Burst:
    return Burst(0.1, 0.2, 100, computed)


def test_bursts_that_shared_nothing_are_no_figure_of_a_shared_prefix() -> None:
    with pytest.raises(NotEngaged, match="no prefix was shared"):
        require_shared(Bursts(burst(100), burst(100)))
    require_shared(Bursts(burst(100), burst(20)))
