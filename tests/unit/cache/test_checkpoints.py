"""Checkpoints: where they are made, how many are kept."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.cache.checkpoints import LEAST_APART, MOST_PER_SLOT, Checkpoints, checkpoint_positions
from llamaserve.cache.prompt import Prompt
from llamaserve.engine.fake import FakeState


def state(end: int) -> FakeState:
    """Takes ``end`` bytes."""
    return FakeState(bytes(end), 0, end)


def prompt(n_tokens: int, *boundaries: int) -> Prompt:
    return Prompt(array("i", range(n_tokens)), boundaries=boundaries)


def filled(max_bytes: int, *slots_and_ends: tuple[int, int]) -> Checkpoints:
    checkpoints = Checkpoints(max_bytes)
    for seq_id, end in slots_and_ends:
        checkpoints.add(seq_id, state(end))
    return checkpoints


def test_a_prompt_has_them_where_its_messages_end() -> None:
    assert checkpoint_positions(prompt(310, 100, 200, 300)) == (100, 200, 300)


def test_a_prompt_whose_last_message_ended_long_ago_has_one_before_its_last_token() -> None:
    """K11: the same prompt sent again goes on from there."""
    assert checkpoint_positions(prompt(300)) == (299,)
    assert checkpoint_positions(prompt(300, 100)) == (100, 299)
    assert checkpoint_positions(prompt(100 + LEAST_APART, 100)) == (100,)
    assert checkpoint_positions(prompt(101 + LEAST_APART, 100)) == (100, 100 + LEAST_APART)


def test_messages_that_are_short_have_none_of_their_own() -> None:
    assert checkpoint_positions(prompt(110, 10, 20, 50, 60, 90)) == (50, 90)
    assert checkpoint_positions(prompt(LEAST_APART)) == ()


def test_a_long_conversation_keeps_the_first_and_the_last_ones() -> None:
    many = tuple(range(100, 2000, 100))
    assert checkpoint_positions(prompt(1910, *many)) == (100, *range(1300, 2000, 100))


@given(st.integers(1, 2000), st.sets(st.integers(1, 1999)))
def test_positions_ascend_lie_apart_and_leave_a_token_to_compute(n_tokens: int, boundaries: set[int]) -> None:
    positions = checkpoint_positions(prompt(n_tokens, *sorted(boundaries)))
    assert len(positions) <= MOST_PER_SLOT
    assert all(before + LEAST_APART <= after for before, after in zip((0, *positions), positions, strict=False))
    assert all(position in boundaries or position == n_tokens - 1 for position in positions)
    assert all(position < n_tokens for position in positions)


def test_the_longest_within_a_limit_is_found_in_its_own_slot_only() -> None:
    checkpoints = filled(1000, (0, 40), (0, 80), (1, 60))
    assert [checkpoints.longest(0, limit) for limit in (39, 40, 79, 80, 500)] == [0, 40, 40, 80, 80]
    assert checkpoints.longest(1, 500) == 60
    assert checkpoints.longest(2, 500) == 0
    assert checkpoints.use(0, 40).end == 40


def test_a_slot_keeps_eight_and_drops_that_made_or_used_longest_ago() -> None:
    checkpoints = filled(10_000, *((0, end) for end in range(10, 90, 10)), (1, 5))
    checkpoints.use(0, 10)
    checkpoints.add(0, state(90))
    assert checkpoints.ends(0) == [10, *range(30, 100, 10)]
    assert checkpoints.ends(1) == [5]


def test_all_together_keep_within_the_budget() -> None:
    checkpoints = filled(100, (0, 40), (1, 40), (0, 50))
    assert (checkpoints.ends(0), checkpoints.ends(1), checkpoints.n_bytes) == ([50], [40], 90)


def test_one_that_is_larger_than_the_budget_drops_no_other() -> None:
    checkpoints = filled(100, (0, 40), (0, 101))
    assert checkpoints.ends(0) == [40]
    checkpoints = filled(0, (0, 40))
    assert (checkpoints.ends(0), checkpoints.n_bytes) == ([], 0)


def test_a_second_one_at_the_same_place_takes_the_first_one_s() -> None:
    checkpoints = filled(1000, (0, 40), (0, 40))
    assert (checkpoints.ends(0), checkpoints.n_bytes) == ([40], 40)


def test_what_ends_behind_a_cut_is_dropped() -> None:
    checkpoints = filled(1000, (0, 40), (0, 80), (1, 80))
    checkpoints.cut(0, 79)
    assert (checkpoints.ends(0), checkpoints.ends(1), checkpoints.n_bytes) == ([40], [80], 120)
    checkpoints.cut(0, 0)
    assert (checkpoints.ends(0), checkpoints.ends(1)) == ([], [80])


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes is -1"):
        Checkpoints(-1)


@given(st.integers(0, 60), st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30), st.integers(0, 2)), max_size=40))
def test_neither_budget_nor_number_is_ever_exceeded(max_bytes: int, operations: list[tuple[int, int, int]]) -> None:
    """S37."""
    checkpoints = Checkpoints(max_bytes)
    for seq_id, end, what in operations:
        if what == 0:
            checkpoints.cut(seq_id, end)
        elif what == 1 and (longest := checkpoints.longest(seq_id, end)):
            assert checkpoints.use(seq_id, longest).end == longest
        else:
            checkpoints.add(seq_id, state(end))
        ends = [checkpoints.ends(slot) for slot in range(3)]
        assert checkpoints.n_bytes == sum(map(sum, ends)) <= max_bytes
        assert all(len(own) <= MOST_PER_SLOT for own in ends)
