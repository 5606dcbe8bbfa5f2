"""Slots: legal moves, and which one a request gets."""

from __future__ import annotations

import itertools

import pytest

from llamaserve.request import GenerationRequest
from llamaserve.scheduler.opening import prompt_of
from llamaserve.scheduler.slot import LEGAL_MOVES, IdleSlots, Slot, SlotState, Work


def work() -> Work:
    """A request of 3 prompt tokens."""
    request = GenerationRequest("r", (1, 2, 3))
    return Work(request, prompt_of(request), submitted_at=0.0, admitted_at=0.0, admitted_order=1, n_ctx_seq=256)


def slot_in(state: SlotState) -> Slot:
    """A slot brought into a state by legal moves."""
    slot = Slot(0)
    if state is not SlotState.IDLE:
        slot.begin(work())
    if state is SlotState.GENERATING:
        slot.generate()
    return slot


@pytest.mark.parametrize(("state", "to"), list(itertools.product(SlotState, SlotState)))
def test_a_slot_makes_the_moves_of_the_table_and_no_other(state: SlotState, to: SlotState) -> None:
    """§1.2: idle, prefilling, generating, idle; a request may end in any of the two, and come back into both."""
    slot = slot_in(state)
    moves = {
        SlotState.IDLE: slot.release,
        SlotState.PREFILLING: lambda: slot.begin(work()),
        SlotState.GENERATING: slot.generate if state is SlotState.PREFILLING else lambda: slot.go_on(work()),
    }
    if to in LEGAL_MOVES[state]:
        moves[to]()
        assert slot.state is to
        assert (slot.work is None) == (to is SlotState.IDLE)
    else:
        with pytest.raises(RuntimeError, match=f"cannot go from {state.value} to {to.value}"):
            moves[to]()
        assert slot.state is state


def test_an_idle_slot_has_no_work_to_ask_for() -> None:
    with pytest.raises(RuntimeError, match="slot 3 is idle"):
        _ = Slot(3).working


def test_the_idle_slot_used_longest_ago_is_filled_next() -> None:
    """S29; of equals the one with the lowest id."""
    slots = [Slot(seq_id) for seq_id in range(4)]
    for slot, tick in zip(slots, (3, 9, 5, 5), strict=True):
        slot.last_used_tick = tick
    idle = IdleSlots(slots)
    order = []
    while ids := idle.ids():
        order.append(ids[0])
        idle.take(slots[ids[0]])
    assert order == [0, 2, 3, 1]
    assert len(idle) == 0


def test_a_slot_that_is_idle_again_waits_its_turn() -> None:
    """It is used last."""
    slots = [Slot(seq_id) for seq_id in range(2)]
    idle = IdleSlots(slots)
    idle.take(slots[0])
    slots[0].last_used_tick = 1
    idle.add(slots[0])
    assert idle.ids() == [1, 0]


def test_any_idle_slot_can_be_taken() -> None:
    slots = [Slot(seq_id) for seq_id in range(4)]
    idle = IdleSlots(slots)
    idle.take(slots[2])
    assert idle.ids() == [0, 1, 3]
    with pytest.raises(ValueError, match="not in list"):
        idle.take(slots[2])


def test_the_token_drawn_last_needs_no_cell() -> None:
    """§1.2: the last token of a sequence is never fed."""
    some = work()
    assert some.n_cells == 3
    some.generated = [7]
    assert some.n_cells == 3
    some.generated = [7, 8, 9, 10]
    assert some.n_cells == 6


def test_a_prompt_is_fed_from_its_start_to_its_end() -> None:
    some = work()
    assert (some.n_left_to_feed, tuple(some.tokens_to_feed(0, 2))) == (3, (1, 2))
    some.n_fed = 2
    assert (some.n_left_to_feed, tuple(some.tokens_to_feed(2, 3))) == (1, (3,))


def test_a_text_whose_cells_are_lost_is_fed_again_without_its_last_token() -> None:
    """S11: prompt and text in one row, in pieces that may cross from one into the other."""
    some = work()
    some.n_fed = 3
    some.generated = [7, 8, 9]
    some.feed_again()
    assert (some.n_fed, some.n_to_feed, some.is_recomputing) == (0, 5, True)
    assert [tuple(some.tokens_to_feed(start, start + 2)) for start in (0, 2)] == [(1, 2), (3, 7)]
    assert tuple(some.tokens_to_feed(4, 5)) == (8,)


def test_a_prompt_whose_cells_are_lost_begins_again() -> None:
    """Nothing was drawn: its last piece still has to draw."""
    some = work()
    some.reuse(2)
    some.begin_again()
    assert (some.n_fed, some.n_cached, some.n_to_feed, some.is_recomputing) == (0, 2, 3, False)
    some.reuse(2)
    assert some.n_cached == 2, "what it had before counts once"


def test_what_its_sequence_holds_is_what_was_fed_and_decoded() -> None:
    """K108: the token drawn last is not among it."""
    some = work()
    some.reuse(2)
    assert (some.n_held, some.n_cached, list(some.tokens_held())) == (2, 2, [1, 2])
    some.n_fed = 3
    some.generated = [7, 8, 9]
    some.n_decoded = 2
    assert (some.n_held, list(some.tokens_held())) == (5, [1, 2, 3, 7, 8])
    assert list(some.tokens_to_show()) == [7, 8]
    assert list(some.tokens_to_show()) == []
