"""Whose prompt goes on: short ones first, and nobody waits for ever (K9, K102)."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.scheduler.prefill_order import (
    LEAST_PATIENCE,
    PromptState,
    in_turn,
    longest_wait,
    order_prompts,
    patience,
    waits_after,
)
from llamaserve.scheduler.prefill_plan import PieceSize
from llamaserve.scheduler.prompt_pieces import PrefillLimits
from llamaserve.scheduler.tick_policy import StepKind
from tests.unit.scheduler.prompt_line import PromptLine


def prompt(seq_id: int, n_left: int, *, n_waited: int = 0, order: int | None = None) -> PromptState:
    return PromptState(seq_id, n_left, n_waited, seq_id if order is None else order, n_left)


def ids(prompts: list[PromptState]) -> list[int]:
    return [state.seq_id for state in prompts]


def test_the_shortest_goes_first_whatever_its_slot_and_equal_ones_as_they_came() -> None:
    """K9: a long prompt in slot 0, 10 tokens in slot 3."""
    assert ids(in_turn([prompt(0, 10_000), prompt(3, 10)])) == [3, 0]
    assert ids(in_turn([prompt(0, 50, order=2), prompt(1, 50, order=1), prompt(2, 50, order=3)])) == [1, 0, 2]
    assert in_turn([]) == []


def test_who_has_waited_long_goes_first_and_who_waited_longest_before_all() -> None:
    waited = [prompt(0, 9000, n_waited=16), prompt(1, 10), prompt(2, 8000, n_waited=17), prompt(3, 5, n_waited=15)]
    assert ids(in_turn(waited)) == [2, 0, 3, 1]


def test_many_prompts_have_more_patience() -> None:
    """Those who waited long never have more than a quarter of the turns."""
    assert [patience(n) for n in (1, 4, 5, 64)] == [16, 16, 20, 256]
    assert longest_wait(4) == 19


def test_the_first_takes_what_it_can_and_the_others_what_is_left() -> None:
    prompts = [prompt(0, 1000), prompt(1, 20), PromptState(2, 400, 0, 2, 30)]
    assert order_prompts(prompts, budget=70, prefill_chunk=0) == [(1, 20), (2, 30), (0, 20)]
    assert order_prompts(prompts, budget=70, prefill_chunk=16) == [(1, 16), (2, 16), (0, 16)]
    assert order_prompts(prompts, budget=8, prefill_chunk=16) == [(1, 8)]
    assert order_prompts([], budget=8, prefill_chunk=16) == []


def test_only_the_first_piece_is_a_turn() -> None:
    prompts = [prompt(0, 100, n_waited=3), prompt(1, 10, n_waited=5), prompt(2, 100)]
    assert waits_after(prompts, [PieceSize(1, 10), PieceSize(0, 6)]) == {0: 4, 1: 0, 2: 1}
    assert waits_after(prompts, []) == {0: 3, 1: 5, 2: 0}


def test_a_short_prompt_behind_long_ones_waits_for_no_more_turns_than_there_are_others() -> None:
    """K9: whatever the others have waited."""
    for n_waited in range(40):
        line = PromptLine(n_decoding=1)
        for seq_id in range(3):
            line.add(seq_id, 10_000)
            line.waited[seq_id] = n_waited
        line.add(3, 10)
        turns = 0
        while 3 in line.left:
            line.step(budget=16)
            turns += 1
        assert turns <= 4, n_waited


def test_a_long_prompt_ends_under_an_endless_flood_of_short_ones() -> None:
    """K102: a piece of it at least each ``longest_wait`` + 1 turns."""
    line = PromptLine(n_decoding=1, keeps_streams=False)
    line.add(0, 10_000)
    turns = 0
    while 0 in line.left:
        for seq_id in (1, 2, 3):
            if seq_id not in line.left:
                line.add(seq_id, 512)
        line.step(budget=512)
        turns += 1
    n_pieces = -(-10_000 // 512)
    assert turns <= n_pieces * (longest_wait(4) + 1)
    assert turns > n_pieces * LEAST_PATIENCE  # and the short ones had all other turns


@given(
    seed=st.integers(0, 2**32),
    n_slots=st.integers(1, 12),
    kind=st.sampled_from([StepKind.MIXED, StepKind.PROMPT]),
    most_length=st.sampled_from([1, 40, 400]),
    window_budget=st.sampled_from([0, 64, 4096]),
)
def test_every_prompt_has_its_turn_within_the_bound(
    seed: int, n_slots: int, kind: StepKind, most_length: int, window_budget: int
) -> None:
    """K9, K102, K105: random arrivals, budgets and streams; a turn is a piece as large as the step allows."""
    choose = random.Random(seed)
    limits = PrefillLimits(n_batch=64, prefill_chunk=16, max_rows=choose.randint(1, 4), window_budget=window_budget)
    line = PromptLine(limits, kind, keeps_streams=False)
    line.add(0, 600)
    turns: dict[int, int] = defaultdict(int)
    for _ in range(300):
        for seq_id in range(n_slots):
            if seq_id not in line.left and choose.random() < 0.7:
                line.add(seq_id, choose.randint(1, most_length))
        line.n_decoding = choose.choice([0, 1, 5])
        budget = choose.randint(1, 40)
        before = dict(line.left)
        pieces = line.step(budget)
        assert bool(pieces) == bool(before)
        assert len({piece.seq_id for piece in pieces}) == len(pieces)
        for seq_id, n_tokens in pieces:
            assert 0 < n_tokens <= before[seq_id]
        room = limits.n_batch if line.n_decoding == 0 else min(budget, limits.n_batch)
        assert sum(piece.n_tokens for piece in pieces) <= max(room, 16 if kind is StepKind.PROMPT else 0)
        if pieces:
            turns[pieces[0].seq_id] += 1
        assert max(line.waited.values(), default=0) <= longest_wait(n_slots)
    assert turns


@pytest.mark.parametrize("n_slots", [1, 2, 4, 16, 64])
def test_the_bound_holds_when_all_have_waited_equally_long(n_slots: int) -> None:
    """The worst case: all become impatient at once, while new ones come in for those who end."""
    line = PromptLine(n_decoding=1, keeps_streams=False)
    for seq_id in range(n_slots):
        line.add(seq_id, 100_000)
    line.add(n_slots, 1)
    worst = 0
    for _ in range(20 * longest_wait(n_slots + 1)):
        line.step(budget=1)
        worst = max(worst, *line.waited.values())
        if n_slots not in line.left:
            line.add(n_slots, 1)
    assert patience(n_slots + 1) <= worst <= longest_wait(n_slots + 1)
