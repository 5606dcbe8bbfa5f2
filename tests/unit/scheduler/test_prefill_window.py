"""Which prompts are computed together: seed 004's vectors (T1 to T8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.scheduler.prefill_window import (
    batched_window_admits,
    default_window_budget,
    joint_rows,
    window_admits_head,
    window_length,
)


@pytest.mark.parametrize(
    ("prefill_chunk", "max_rows", "expected"),
    [(512, 4, 4096), (0, 4, 4096), (256, 8, 4096), (512, 1, 1024), (512, 0, 1024)],
)
def test_the_budget_nobody_set_is_twice_the_pieces_of_a_window(
    prefill_chunk: int, max_rows: int, expected: int
) -> None:
    """T3, T8."""
    assert default_window_budget(max_rows=max_rows, prefill_chunk=prefill_chunk) == expected


@pytest.mark.parametrize(
    ("lengths", "max_rows", "budget", "expected"),
    [
        ([500] * 4, 4, 2048, 4),
        ([500] * 5, 8, 2048, 4),
        ([512] * 4, 4, 2048, 4),
        ([512] * 5, 8, 2048, 4),
        ([500, 1000, 1000], 4, 2048, 2),
        ([8000, 100], 4, 2048, 1),
        ([8000], 4, 2048, 1),
        ([8000] * 8, 4, 0, 4),
        ([], 4, 0, 0),
        ([520] * 4, 4, 4096, 4),
        ([520] * 4, 4, 2048, 3),
    ],
)
def test_a_window_holds_as_many_as_fit(lengths: list[int], max_rows: int, budget: int, expected: int) -> None:
    """T6, T8, K101."""
    assert window_length(lengths, max_rows=max_rows, budget=budget) == expected


@pytest.mark.parametrize(
    ("n_rows", "longest", "next_length", "budget", "expected"),
    [
        (0, 0, 999_999, 2048, True),
        (3, 8000, 8000, 0, True),
        (3, 512, 512, 2048, True),
        (4, 512, 512, 2048, False),
        (1, 500, 1000, 2048, True),
        (1, 500, 1100, 2048, False),
    ],
)
def test_a_window_admits_by_rows_times_the_longest(
    n_rows: int, longest: int, next_length: int, budget: int, expected: bool
) -> None:
    """T1, T8."""
    admits = batched_window_admits(n_rows=n_rows, longest=longest, next_length=next_length, budget=budget)
    assert admits is expected


@pytest.mark.parametrize(
    ("head_length", "budget", "expected"),
    [(1024, 2048, True), (1025, 2048, False), (9000, 4096, False), (9000, 0, True), (None, 0, False), (None, 9, False)],
)
def test_a_prompt_that_would_not_fit_twice_is_no_head_of_a_window(
    head_length: int | None, budget: int, expected: bool
) -> None:
    """T2, T8."""
    assert window_admits_head(head_length, budget) is expected


@pytest.mark.parametrize(
    ("lengths", "max_rows", "budget", "expected"),
    [
        ([520] * 4, 4, 4096, 4),
        ([520] * 4, 1, 4096, 0),
        ([520], 4, 4096, 0),
        ([], 4, 4096, 0),
        ([9000, 100], 4, 4096, 0),
        ([100, 9000], 4, 4096, 0),
        ([100, 100, 9000], 4, 4096, 2),
        ([9000] * 4, 4, 0, 4),
    ],
)
def test_together_go_only_two_or_more_short_ones(lengths: list[int], max_rows: int, budget: int, expected: int) -> None:
    """T5, T7: a long head, and one that is alone in its window, goes in pieces."""
    assert joint_rows(lengths, max_rows=max_rows, budget=budget) == expected


@given(lengths=st.lists(st.integers(1, 9000), max_size=10), max_rows=st.integers(1, 8), budget=st.integers(0, 20_000))
def test_a_window_stays_within_its_budget_and_takes_the_head(lengths: list[int], max_rows: int, budget: int) -> None:
    n_rows = window_length(lengths, max_rows=max_rows, budget=budget)
    assert min(len(lengths), 1) <= n_rows <= min(len(lengths), max_rows)
    if n_rows > 1 and budget:
        assert n_rows * max(lengths[:n_rows]) <= budget
    if n_rows < min(len(lengths), max_rows):  # and nobody else would fit
        assert (n_rows + 1) * max(lengths[: n_rows + 1]) > budget > 0
