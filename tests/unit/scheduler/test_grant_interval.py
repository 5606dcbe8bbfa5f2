"""``decide_tick``: every state, and what it does over many ticks (T12 to T14, G7)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from llamaserve.scheduler.grant_interval import MAX_COUNT, TickAction, TickState, decide_tick, slice_takes_tick

INTERVALS = (0, 1, 2, 3, 4, 16)
COUNTS = (0, 1, 2, 3, 4, 5, 8, 17)

# T12's decision order, without a grant interval and without mixed steps. A pattern has, in the order of TickState's
# first seven fields: speculation pending, yielded, prompt in pieces, nothing active, active full, queue empty, should
# preempt. The first that fits decides; "?" fits both.
RULES = [
    ("10?????", TickAction.SPECULATIVE_ROUND),
    ("1101?1?", TickAction.SPECULATIVE_ROUND),
    ("??10???", TickAction.DECODE),
    ("??11???", TickAction.PREFILL),
    ("??01?1?", TickAction.IDLE),
    ("??00??1", TickAction.PREFILL),
    ("??0000?", TickAction.PREFILL),
    ("??00???", TickAction.DECODE),
    ("???????", TickAction.PREFILL),
]


def all_flags() -> Iterator[tuple[bool, ...]]:
    yield from itertools.product((False, True), repeat=7)


def state(flags: tuple[bool, ...], *, mixed: bool = False, count: int = 0, interval: int = 0) -> TickState:
    return TickState._make([*flags, mixed, count, interval])


def ruled(flags: tuple[bool, ...]) -> TickAction:
    bits = "".join(str(int(flag)) for flag in flags)
    return next(
        action for pattern, action in RULES if all(want in ("?", bit) for want, bit in zip(pattern, bits, strict=True))
    )


def test_every_state_is_decided_by_the_first_rule_that_fits() -> None:
    """T12, with interval 0: the counter makes no difference."""
    for flags, count in itertools.product(all_flags(), COUNTS):
        assert decide_tick(state(flags, count=count)).action is ruled(flags), flags


def test_a_grant_changes_nothing_but_a_decode_tick_where_it_is_due_and_always_then() -> None:
    """T12."""
    for flags, count, interval in itertools.product(all_flags(), COUNTS, INTERVALS):
        plain = ruled(flags)
        granted = decide_tick(state(flags, count=count, interval=interval)).action
        parked = state(flags).chunked_prefill_in_progress
        is_due = interval > 0 and count >= interval and parked and plain is TickAction.DECODE
        assert granted is (TickAction.PREFILL if is_due else plain), (flags, count, interval)


def test_mixed_steps_come_only_where_they_may_and_only_for_a_prompt_in_pieces_beside_streams() -> None:
    """T14."""
    for flags, count, interval in itertools.product(all_flags(), COUNTS, INTERVALS):
        off = decide_tick(state(flags, count=count, interval=interval)).action
        on = decide_tick(state(flags, mixed=True, count=count, interval=interval)).action
        assert off is not TickAction.MIXED_STEP
        look = state(flags)
        if on is not off:
            assert on is TickAction.MIXED_STEP
        if look.chunked_prefill_in_progress and not look.active_is_empty and off is not TickAction.SPECULATIVE_ROUND:
            assert on is TickAction.MIXED_STEP
        else:
            assert on is off


def test_the_counter_counts_decode_ticks_while_a_prompt_is_in_pieces() -> None:
    """T12: 0 without one and after a piece, one more after a decode tick, the same after a round of speculation."""
    for flags, mixed, count, interval in itertools.product(all_flags(), (False, True), COUNTS, INTERVALS):
        look = state(flags, mixed=mixed, count=count, interval=interval)
        action, after = decide_tick(look)
        if not look.chunked_prefill_in_progress or action in (TickAction.PREFILL, TickAction.MIXED_STEP):
            assert after == 0
        elif action is TickAction.DECODE:
            assert after == count + 1
        else:
            assert (action, after) == (TickAction.SPECULATIVE_ROUND, count)


def test_the_counter_stays_at_its_limit() -> None:
    parked = state((False, False, True, False, False, True, False), count=MAX_COUNT)
    assert decide_tick(parked) == (TickAction.DECODE, MAX_COUNT)


def contended(n_ticks: int, interval: int, *, speculative: bool = False) -> list[TickAction]:
    """What happens while streams decode and a prompt is in pieces."""
    actions: list[TickAction] = []
    count = 0
    for _ in range(n_ticks):
        yielded = bool(actions) and actions[-1] is TickAction.SPECULATIVE_ROUND
        look = TickState(speculative, yielded, True, False, True, True, False, False, count, interval)
        action, count = decide_tick(look)
        actions.append(action)
    return actions


@pytest.mark.parametrize("interval", [interval for interval in INTERVALS if interval])
def test_a_prompt_has_a_piece_after_each_interval_and_not_earlier(interval: int) -> None:
    """T12: over 1000 ticks."""
    actions = contended(1000, interval)
    assert actions.count(TickAction.PREFILL) == 1000 // (interval + 1)
    assert actions.index(TickAction.PREFILL) == interval
    runs = [len(list(run)) for action, run in itertools.groupby(actions) if action is TickAction.DECODE]
    assert max(runs) == interval


def test_without_an_interval_streams_are_never_disturbed() -> None:
    assert set(contended(1000, 0)) == {TickAction.DECODE}


def test_ten_pieces_beside_long_streams_take_at_most_17_ticks_each() -> None:
    """K105, with the default interval."""
    assert contended(10 * 17, 16).count(TickAction.PREFILL) == 10


def test_speculation_takes_every_second_tick_and_the_prompt_keeps_its_grants() -> None:
    """G7, T12: interval 4, 60 ticks."""
    actions = contended(60, 4, speculative=True)
    rounds = [action is TickAction.SPECULATIVE_ROUND for action in actions]
    assert rounds == [True, False] * 30
    grants = [tick for tick, action in enumerate(actions) if action is TickAction.PREFILL]
    assert len(grants) >= 5
    assert max(after - before for before, after in zip([-1, *grants], grants, strict=False)) <= 2 * (4 + 1)


@pytest.mark.parametrize(
    ("yielded_last", "others_have_work", "expected"),
    [(False, False, True), (True, False, True), (False, True, True), (True, True, False)],
)
def test_a_round_waits_only_for_others_and_only_one_tick(
    yielded_last: bool, others_have_work: bool, expected: bool
) -> None:
    """G7."""
    assert slice_takes_tick(yielded_last=yielded_last, others_have_work=others_have_work) is expected
