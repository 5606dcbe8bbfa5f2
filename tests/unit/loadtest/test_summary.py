"""Figures against known vectors and against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.loadtest.outcome import KINDS
from llamaserve.loadtest.slo import Slo
from llamaserve.loadtest.summary import Distribution, summarise
from tests.unit.loadtest.outcomes import outcome, without_usage


def test_a_distribution_of_a_known_vector() -> None:
    """Percentiles of 1..101 are the percentage plus one."""
    distribution = Distribution.of(float(value) for value in reversed(range(1, 102)))
    assert (distribution.count, distribution.min, distribution.max) == (101, 1, 101)
    assert (distribution.p50, distribution.p90) == (51, 91)
    assert (distribution.p95, distribution.p99) == pytest.approx((96, 100))
    assert distribution.mean == 51
    assert distribution.std == pytest.approx(((101**2 - 1) / 12) ** 0.5)


def test_percentiles_between_two_values_are_interpolated() -> None:
    distribution = Distribution.of([10.0, 20.0])
    assert (distribution.p50, distribution.p90) == pytest.approx((15, 19))
    assert distribution.p99 == pytest.approx(19.9)


def test_one_value_is_every_percentile() -> None:
    distribution = Distribution.of([3.5])
    assert (distribution.p50, distribution.p99, distribution.std, distribution.count) == (3.5, 3.5, 0, 1)


def test_no_value_has_no_distribution() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Distribution.of([])


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=200))
def test_a_distribution_is_numpys(values: list[float]) -> None:
    distribution = Distribution.of(values)
    expected = [np.mean(values), np.std(values), *np.percentile(values, [0, 50, 90, 95, 99, 100])]
    d = distribution
    assert [d.mean, d.std, d.min, d.p50, d.p90, d.p95, d.p99, d.max] == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_times_of_a_request_follow_the_definitions() -> None:
    one = outcome(0.5, 0.1, 0.3, submitted=100, queue=0.2, tokens=5)
    assert one.ttft == pytest.approx(0.5)  # from submission, not from sending
    assert one.itl == pytest.approx((0.1, 0.3))
    assert one.tpot == pytest.approx(0.4 / 4)  # by the server's count, not by events
    assert one.e2e == pytest.approx(0.9)
    assert one.queue == pytest.approx(0.2)


def test_a_request_without_text_or_with_one_token_has_no_such_times() -> None:
    silent, single = outcome(), outcome(0.5)
    assert (silent.ttft, silent.itl, silent.tpot, silent.e2e) == (None, (), None, None)
    assert (single.itl, single.tpot) == ((), None)


def test_gaps_of_all_requests_are_one_list() -> None:
    summary = summarise([outcome(1, 0.1), outcome(1, 0.2, 0.3)])
    assert summary.itl is not None
    assert (summary.itl.count, summary.itl.p50) == (3, pytest.approx(0.2))


def test_rates_are_over_the_time_from_first_submission_to_last_end() -> None:
    outcomes = [outcome(1, 1, submitted=10), outcome(1, 1, 1, submitted=12, finished=20, prompt=30)]
    summary = summarise(outcomes)
    assert summary.duration == 10
    assert summary.requests_per_s == pytest.approx(0.2)
    assert summary.output_tokens_per_s == pytest.approx(0.5)
    assert summary.total_tokens_per_s == pytest.approx((10 + 30 + 5) / 10)


def test_failed_requests_are_counted_by_kind_and_are_in_no_latency() -> None:
    summary = summarise([outcome(1, 1), outcome(9, failure="closed"), *(outcome(failure=kind) for kind in KINDS)])
    assert summary.failed == {kind: 2 if kind == "closed" else 1 for kind in KINDS}
    assert (summary.requests, summary.ok, summary.n_failed) == (9, 1, 8)
    assert summary.ttft is not None
    assert (summary.ttft.count, summary.ttft.max) == (1, 1)


def test_abandoned_requests_have_a_first_token_but_no_end() -> None:
    summary = summarise([outcome(1, 1, 1), outcome(2, 1, stop_after=2)])
    assert (summary.ok, summary.abandoned, summary.n_failed) == (1, 1, 0)
    assert summary.ttft is not None
    assert summary.e2e is not None
    assert (summary.ttft.count, summary.e2e.count) == (2, 1)
    assert summary.output_tokens_per_s == pytest.approx(3 / summary.duration)


def test_an_answer_that_ended_before_it_was_to_be_dropped_is_not_abandoned() -> None:
    assert not outcome(1, 1, stop_after=3).is_abandoned
    assert outcome(1, 1, stop_after=2).is_abandoned
    assert not outcome(1, 1, stop_after=2, failure="closed").is_abandoned


def test_without_usage_no_rate_is_guessed() -> None:
    summary = summarise([outcome(1, 1), *without_usage([outcome(1, 1)])])
    assert summary.without_usage == 1
    assert (summary.output_tokens_per_s, summary.total_tokens_per_s) == (None, None)
    assert summary.tpot is not None
    assert summary.tpot.count == 1


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    outcomes = [
        outcome(0.4, 0.05),
        outcome(0.6, 0.05),  # too late a first token
        outcome(0.4, 0.05, 0.2, 0.05),  # one gap too long
        outcome(0.4, 0.05, failure="length"),
    ]
    summary = summarise(outcomes, slo=Slo(ttft=0.5, itl=0.1))
    assert summary.goodput is not None
    assert (summary.goodput.requests, summary.goodput.fraction) == (1, 0.25)
    assert summary.goodput.per_s == pytest.approx(1 / summary.duration)
    assert summarise(outcomes).goodput is None


def test_a_run_in_which_all_failed_has_a_summary() -> None:
    summary = summarise([outcome(failure="unreachable")])
    assert (summary.ok, summary.ttft, summary.itl, summary.e2e) == (0, None, None, None)


def test_no_outcome_has_no_summary() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        summarise([])
