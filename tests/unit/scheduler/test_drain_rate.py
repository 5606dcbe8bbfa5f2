"""Retry-After: when a place is free, judged by how the queue has drained."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.scheduler.drain_rate import DEFAULT_SECONDS, LONGEST_S, SHORTEST_S, DrainRate


def drained(interval_s: float, *, n_each: int = 1, until_s: float = 600.0) -> DrainRate:
    """So many leave every so often, while others wait."""
    rate = DrainRate()
    rate.observe(0.0, n_left=0, n_waiting=10)
    for n in range(1, int(until_s / interval_s) + 1):
        rate.observe(n * interval_s, n_left=n_each, n_waiting=10)
    return rate


def test_before_anything_was_measured_there_is_a_default() -> None:
    assert DrainRate().retry_after_s(1e9) == DEFAULT_SECONDS
    assert DrainRate(default_s=2.0).retry_after_s(0.0) == 2


@pytest.mark.parametrize(("interval_s", "expected"), [(0.01, 1), (1.0, 2), (7.3, 8), (30.0, 32)])
def test_it_is_the_time_between_two_places_rounded_up(interval_s: float, expected: int) -> None:
    rate = drained(interval_s)
    assert rate.seconds_per_place(600.0) == pytest.approx(interval_s, rel=0.35)
    assert rate.retry_after_s(600.0) == pytest.approx(expected, abs=max(1, expected // 3))


def test_it_does_not_matter_whether_places_come_in_bursts() -> None:
    one_by_one = drained(2.0).seconds_per_place(600.0)
    in_bursts = drained(8.0, n_each=4).seconds_per_place(600.0)
    assert in_bursts == pytest.approx(one_by_one, rel=0.1)


def test_more_places_take_longer() -> None:
    rate = drained(2.0)
    assert rate.retry_after_s(600.0, n_places=5) == pytest.approx(10, abs=1)


def test_it_follows_a_change_of_speed() -> None:
    rate = drained(0.1)
    for n in range(1, 61):
        rate.observe(600.0 + n * 10, n_left=1, n_waiting=10)
    assert rate.seconds_per_place(1200.0) == pytest.approx(10, rel=0.35)


def test_while_nobody_leaves_it_gets_longer_up_to_a_minute() -> None:
    rate = drained(1.0)
    waits = [rate.retry_after_s(600.0 + later) for later in (0, 30, 120, 300, 10_000, 10**9)]
    assert waits == sorted(waits)
    assert waits[0] < 3
    assert waits[-1] == LONGEST_S


def test_an_idle_queue_teaches_nothing() -> None:
    """An hour without anybody waiting is not an hour without progress."""
    rate = drained(1.0)
    before = rate.seconds_per_place(600.0)
    rate.observe(600.0, n_left=0, n_waiting=0)
    for n in range(100):
        rate.observe(700.0 + n, n_left=1, n_waiting=0)  # found an idle slot
    rate.observe(4200.0, n_left=0, n_waiting=10)
    assert rate.seconds_per_place(4200.0) == before


def test_a_clock_read_before_the_last_observation_does_no_harm() -> None:
    rate = drained(1.0)
    assert rate.seconds_per_place(0.0) == rate.seconds_per_place(600.0)


@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 50), st.integers(0, 50)), max_size=50),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
)
def test_it_is_a_whole_number_from_1_to_60(
    observations: list[tuple[float, int, int]], later: float, n_places: float
) -> None:
    rate = DrainRate()
    now = 0.0
    for elapsed, n_left, n_waiting in observations:
        now += elapsed
        rate.observe(now, n_left=n_left, n_waiting=n_waiting)
    answer = rate.retry_after_s(now + later, n_places)
    assert isinstance(answer, int)
    assert SHORTEST_S <= answer <= LONGEST_S
