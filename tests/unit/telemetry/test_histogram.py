"""Histograms count what Prometheus expects of them, whatever is observed."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.errors import ConfigError
from llamaserve.telemetry.histogram import Histogram, HistogramSnapshot
from llamaserve.telemetry.latencies import (
    FIRST_TOKEN_BOUNDS,
    GAP_BOUNDS,
    QUEUE_BOUNDS,
    REQUEST_BOUNDS,
    STEP_BOUNDS,
    STEP_PARTS,
    VLLM_FIRST_TOKEN_BOUNDS,
    VLLM_GAP_BOUNDS,
    VLLM_REQUEST_BOUNDS,
    Latencies,
)

VALUES = st.lists(st.floats(0, 20) | st.sampled_from([0.0, 1.0, 2.0, 5.0, 10.0]), max_size=60)
BOUNDS = (1.0, 2.0, 5.0, 10.0)


def filled(bounds: tuple[float, ...], values: list[float]) -> HistogramSnapshot:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    return histogram.snapshot()


@given(VALUES)
def test_each_bound_has_what_was_at_most_that_and_the_infinite_one_has_all(values: list[float]) -> None:
    snapshot = filled(BOUNDS, values)
    for bound, n_below in snapshot.cumulative():
        assert n_below == sum(value <= bound for value in values)
    assert snapshot.cumulative()[-1] == (math.inf, len(values))
    assert snapshot.n_observed == len(values)
    assert snapshot.total == pytest.approx(sum(values))


@given(VALUES, st.sets(st.sampled_from(BOUNDS)))
def test_with_fewer_bounds_it_is_as_if_there_had_never_been_more(values: list[float], kept: set[float]) -> None:
    bounds = tuple(sorted(kept))
    coarse = filled(BOUNDS, values).coarsened(bounds)
    assert coarse.bounds == bounds
    if bounds:
        assert coarse == filled(bounds, values)
    else:
        assert coarse.counts == (len(values),)


def test_a_bound_that_is_not_there_cannot_be_kept() -> None:
    with pytest.raises(ConfigError, match=r"bounds has 3\.0: it must be one of \(1\.0, 2\.0"):
        filled(BOUNDS, []).coarsened((1.0, 3.0))


@pytest.mark.parametrize("value", [-1.0, -math.inf, math.nan])
def test_what_a_wrong_clock_gives_counts_as_0(value: float) -> None:
    snapshot = filled(BOUNDS, [value, 3.0])
    assert snapshot.counts == (1, 0, 1, 0, 0)
    assert snapshot.total == 3.0


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan,)])
def test_bounds_that_are_no_buckets_are_refused(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="bounds is"):
        Histogram(bounds)


def test_reading_resets_nothing_and_a_snapshot_stays_as_it_is() -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(1.5)
    first = histogram.snapshot()
    histogram.observe(1.5)
    assert (first.n_observed, histogram.snapshot().n_observed) == (1, 2)


def test_a_reader_beside_the_writer_finds_counts_that_only_grow() -> None:
    histogram = Histogram(BOUNDS)
    has_ended = threading.Event()

    def observe() -> None:
        for n in range(20_000):
            histogram.observe(n % 12)
        has_ended.set()

    writer = threading.Thread(target=observe)
    writer.start()
    before = histogram.snapshot()
    while not has_ended.is_set():
        after = histogram.snapshot()
        assert all(old <= new for old, new in zip(before.counts, after.counts, strict=True))
        before = after
    writer.join()
    assert histogram.snapshot().n_observed == 20_000


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (FIRST_TOKEN_BOUNDS, VLLM_FIRST_TOKEN_BOUNDS),
        (GAP_BOUNDS, VLLM_GAP_BOUNDS),
        (REQUEST_BOUNDS, VLLM_REQUEST_BOUNDS),
        (QUEUE_BOUNDS, VLLM_REQUEST_BOUNDS),
    ],
)
def test_our_bounds_contain_vllms(ours: tuple[float, ...], theirs: tuple[float, ...]) -> None:
    assert set(theirs) < set(ours)
    assert list(theirs) == sorted(theirs)
    Histogram(ours)


def test_each_latency_goes_to_a_histogram_of_its_own() -> None:
    latencies = Latencies()
    latencies.observe_queue_wait(0.25)
    latencies.observe_first_token(0.5)
    latencies.observe_gap(0.125)
    latencies.observe_gap(0.125)
    latencies.observe_end(2.0)
    latencies.observe_step(1e-5, 0.0625, 3e-4)
    snapshot = latencies.snapshot()
    assert (snapshot.queue_wait.total, snapshot.queue_wait.n_observed) == (0.25, 1)
    assert (snapshot.first_token.total, snapshot.first_token.n_observed) == (0.5, 1)
    assert (snapshot.token_gap.total, snapshot.token_gap.n_observed) == (0.25, 2)
    assert (snapshot.request.total, snapshot.request.n_observed) == (2.0, 1)
    parts = {name: (part.total, part.n_observed, part.bounds) for name, part in snapshot.step_parts.items()}
    assert parts == dict(
        zip(STEP_PARTS, [(1e-5, 1, STEP_BOUNDS), (0.0625, 1, STEP_BOUNDS), (3e-4, 1, STEP_BOUNDS)], strict=True)
    )
