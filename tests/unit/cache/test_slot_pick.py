"""Which slot a request begins in, over plain values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.cache.slot_pick import LONG_CACHE, SlotView, choose_slot

VIEWS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans()), min_size=1, max_size=6).map(
    lambda rows: [SlotView(seq_id, n, min(n, usable), pinned) for seq_id, (n, usable, pinned) in enumerate(rows)]
)


def chosen(*idle: SlotView, n_prompt: int = 10, similarity: float = 0.1, session_slot: int | None = None) -> int | None:
    return choose_slot(idle, n_prompt, similarity=similarity, session_slot=session_slot)


@pytest.mark.parametrize(
    ("n_usable", "n_prompt", "wins"), [(1, 10, False), (2, 10, True), (10, 100, False), (11, 100, True), (3, 30, False)]
)
def test_a_slot_with_more_than_a_tenth_of_the_prompt_is_taken_and_exactly_a_tenth_is_not(
    n_usable: int, n_prompt: int, *, wins: bool
) -> None:
    """S28: 1 of 10 no, 2 of 10 yes; the comparison is strict."""
    assert chosen(SlotView(0, 0), SlotView(1, n_usable, n_usable), n_prompt=n_prompt) == (1 if wins else 0)


def test_the_longest_prefix_wins() -> None:
    """S28."""
    assert chosen(SlotView(0, 3, 3), SlotView(1, 9, 9), SlotView(2, 5, 5)) == 1


def test_of_equal_prefixes_that_which_loses_least_wins() -> None:
    assert chosen(SlotView(0, 9, 5), SlotView(1, 5, 5), SlotView(2, 8, 5)) == 1


def test_similarity_can_be_turned_off() -> None:
    assert chosen(SlotView(0, 5), SlotView(1, 9, 9), similarity=0) == 0


def test_the_session_s_slot_wins_over_similarity_if_it_is_idle() -> None:
    """S31: idle, busy or unknown, none."""
    idle = [SlotView(0, 9, 9), SlotView(1, 50, 0, True), SlotView(2, 0)]
    assert chosen(*idle, session_slot=1) == 1
    assert chosen(*idle, session_slot=3) == 0
    assert chosen(*idle) == 0


def test_without_a_match_an_empty_slot_is_taken_then_that_used_longest_ago() -> None:
    """S29."""
    assert chosen(SlotView(3, 5), SlotView(1, 0), SlotView(2, 5)) == 1
    assert chosen(SlotView(3, 5), SlotView(1, 7), SlotView(2, 1)) == 3


def test_a_slot_with_a_session_is_taken_when_no_other_is_left() -> None:
    """K3: a pinned slot survives while others are free; when none is, that used longest ago gives way."""
    assert chosen(SlotView(3, 5, 0, True), SlotView(1, 5)) == 1
    assert chosen(SlotView(3, 5, 0, True), SlotView(1, 5, 0, True)) == 3


def test_a_session_s_slot_is_not_taken_for_a_prompt_that_begins_alike() -> None:
    """K3, also when the pinned slot was unused for longest and most of it could be used."""
    assert chosen(SlotView(0, 10, 9, True), SlotView(1, 7), n_prompt=20) == 1
    assert chosen(SlotView(0, 10, 9, True), SlotView(1, 7, 0, True), n_prompt=20) == 0


def test_an_empty_slot_is_taken_before_a_session_s_whoever_had_it() -> None:
    assert chosen(SlotView(0, 10, 9, True), SlotView(1, 0, 0, True), n_prompt=20) == 1


def test_a_prompt_that_goes_on_from_all_a_slot_holds_takes_it_whoever_left_it() -> None:
    assert chosen(SlotView(0, 0), SlotView(1, 10, 10, True), n_prompt=20) == 1


def test_a_conversation_does_not_lose_its_tail_to_one_that_only_begins_alike() -> None:
    """K2: more would be lost than gained, and there is an empty slot, or one that was unused for longer."""
    assert chosen(SlotView(0, 100, 40), SlotView(1, 0), n_prompt=60) == 1
    assert chosen(SlotView(1, 80), SlotView(0, 100, 40), n_prompt=60) == 1


def test_it_does_where_the_gain_is_larger_or_nobody_else_can_give_way() -> None:
    assert chosen(SlotView(0, 100, 50), SlotView(1, 0), n_prompt=60) == 0
    assert chosen(SlotView(0, 100, 40), SlotView(1, 80), n_prompt=60) == 0
    assert chosen(SlotView(1, 80, 0, True), SlotView(0, 100, 40), n_prompt=60) == 0


def test_a_shorter_match_is_taken_when_the_longest_is_not_worth_it() -> None:
    assert chosen(SlotView(2, 0), SlotView(0, 500, 40), SlotView(1, 30, 30), n_prompt=60) == 1


def test_a_tiny_request_ends_no_long_conversation_while_another_can_give_way() -> None:
    """S30."""
    assert chosen(SlotView(0, 10 * LONG_CACHE + 1), SlotView(1, 10 * LONG_CACHE)) == 1
    assert chosen(SlotView(0, 10 * LONG_CACHE), SlotView(1, 10 * LONG_CACHE)) == 0
    assert chosen(SlotView(0, 1000), SlotView(1, 2000)) == 0
    assert chosen(SlotView(0, 1000), SlotView(1, 5, 0, True)) == 0, "a session is spared before a long text"


def test_an_empty_prompt_takes_the_cheapest_slot() -> None:
    assert chosen(SlotView(0, 5), SlotView(1, 0), n_prompt=0) == 1


def test_there_is_none_when_none_is_idle() -> None:
    assert chosen() is None


@given(VIEWS, st.integers(1, 60), st.sampled_from([0.0, 0.1, 0.5]))
def test_a_slot_is_always_found_and_a_session_loses_only_when_it_must(
    idle: list[SlotView], n_prompt: int, similarity: float
) -> None:
    """K3."""
    seq_id = chosen(*idle, n_prompt=n_prompt, similarity=similarity)
    view = next(view for view in idle if view.seq_id == seq_id)
    if view.has_session and view.n_usable < view.n_tokens:
        assert all(other.has_session and other.n_tokens for other in idle)
