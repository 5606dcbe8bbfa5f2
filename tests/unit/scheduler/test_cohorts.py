"""Which neighbours in a window share a call (T9)."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.scheduler.cohorts import Cohort, WindowRow, share_adapters, split_cohorts

COLD, ADOPTED = WindowRow(16), WindowRow(16, offset=8)
ROWS = {"c": COLD, "a": ADOPTED}


def batched(*rows: int) -> Cohort:
    return Cohort(rows, is_batched=True)


def single(*rows: int) -> Cohort:
    return Cohort(rows, is_batched=False)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ("ccaa", [batched(0, 1), single(2, 3)]),
        ("acc", [single(0), batched(1, 2)]),
        ("aca", [single(0, 1, 2)]),
        ("ccacc", [batched(0, 1), single(2), batched(3, 4)]),
        ("c", [single(0)]),
        ("ccc", [batched(0, 1, 2)]),
        ("aaa", [single(0, 1, 2)]),
        ("", []),
    ],
)
def test_cold_neighbours_share_a_call_where_offsets_must_be_equal(window: str, expected: list[Cohort]) -> None:
    """T8, T9."""
    assert split_cohorts([ROWS[kind] for kind in window], needs_zero_offset=True) == expected


def test_offsets_make_no_difference_to_llama_cpp() -> None:
    assert split_cohorts([COLD, ADOPTED, COLD]) == [batched(0, 1, 2)]


def test_without_batching_all_stay_alone() -> None:
    assert split_cohorts([COLD] * 3, can_batch=False) == [single(0, 1, 2)]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([16, 16, 16], [batched(0, 1, 2)]), ([16, 24], [single(0, 1)]), ([16, 16, 24], [batched(0, 1), single(2)])],
)
def test_lengths_may_have_to_be_equal(lengths: list[int], expected: list[Cohort]) -> None:
    assert split_cohorts([WindowRow(length) for length in lengths], needs_equal_lengths=True) == expected


def test_vectors_are_not_batched_with_tokens() -> None:
    assert split_cohorts([COLD, WindowRow(16, has_embeddings=True), COLD, COLD]) == [single(0, 1), batched(2, 3)]


def adapters(*scales: float) -> Hashable:
    """A snapshot, a new object each time."""
    return tuple(scales)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (adapters(1, 0.5), adapters(1, 0.5), True),
        (adapters(1, 0.5), adapters(0.5, 1), False),
        (None, None, True),
        (None, adapters(1), False),
    ],
)
def test_adapters_are_compared_by_value(first: Hashable, second: Hashable, expected: bool) -> None:
    """T9."""
    assert share_adapters(first, second) is expected
    assert share_adapters(first, second, is_partitioned=False)
    rows = [WindowRow(16, adapters=first), WindowRow(24, adapters=second)]
    assert split_cohorts(rows) == ([batched(0, 1)] if expected else [single(0, 1)])
    assert split_cohorts(rows, is_partitioned=False) == [batched(0, 1)]


@given(
    st.lists(
        st.builds(
            WindowRow,
            n_tokens=st.integers(1, 3),
            offset=st.integers(0, 1),
            has_embeddings=st.booleans(),
            adapters=st.sampled_from([None, (1.0,), (0.5,)]),
        ),
        max_size=8,
    ),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_cohorts_keep_the_order_and_batch_only_equals(
    rows: list[WindowRow], can_batch: bool, zero: bool, equal: bool
) -> None:
    """T9: the concatenation is the window."""
    cohorts = split_cohorts(rows, can_batch=can_batch, needs_zero_offset=zero, needs_equal_lengths=equal)
    assert [index for cohort in cohorts for index in cohort.rows] == list(range(len(rows)))
    for cohort in cohorts:
        members = [rows[index] for index in cohort.rows]
        if cohort.is_batched:
            assert can_batch
            assert len(members) >= 2
            assert len({row.adapters for row in members}) == 1
            assert not any(row.has_embeddings for row in members)
            assert not zero or not any(row.offset for row in members)
            assert not equal or len({row.n_tokens for row in members}) == 1
    for before, after in zip(cohorts, cohorts[1:], strict=False):  # noqa: RUF007
        assert before.is_batched or after.is_batched
