"""Slots: legal moves, and which one a request gets."""

from __future__ import annotations

import itertools

import pytest

from llamaserve.request import GenerationRequest
from llamaserve.scheduler.slot import LEGAL_MOVES, Slot, SlotState, Work, choose_slot


def work() -> Work:
    """A request of 3 prompt tokens."""
    return Work(GenerationRequest("r", (1, 2, 3)), submitted_at=0.0, admitted_at=0.0, admitted_order=1)


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
    """§1.2: idle, prefilling, generating, idle; a request may end in any of the two."""
    slot = slot_in(state)
    moves = {
        SlotState.IDLE: slot.release,
        SlotState.PREFILLING: lambda: slot.begin(work()),
        SlotState.GENERATING: slot.generate,
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


def test_the_idle_slot_used_longest_ago_is_chosen() -> None:
    """S29."""
    slots = [Slot(seq_id) for seq_id in range(4)]
    slots[0].begin(work())
    slots[1].last_used_tick = 9
    slots[2].last_used_tick = 5
    slots[3].last_used_tick = 5
    assert choose_slot(slots) is slots[2]


def test_no_slot_is_chosen_when_all_are_busy() -> None:
    assert choose_slot([slot_in(SlotState.PREFILLING), slot_in(SlotState.GENERATING)]) is None


def test_the_token_drawn_last_is_not_computed() -> None:
    """§1.2: the last token of a sequence is never fed."""
    some = work()
    assert some.n_computed == 0
    some.n_prefilled, some.n_generated = 3, 1
    assert some.n_computed == 3
    some.n_generated = 4
    assert some.n_computed == 6
