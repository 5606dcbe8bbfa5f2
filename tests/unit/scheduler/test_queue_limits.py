"""How many requests, and how many prompt tokens, may wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.errors import QueueFull, QueueTokensFull
from llamaserve.scheduler.queue_limits import Comer, QueueLimits


def filled(limits: QueueLimits, *sizes: int) -> QueueLimits:
    for n, n_tokens in enumerate(sizes):
        limits.enter([Comer(f"r{n}", n_tokens)])
    return limits


def test_so_many_wait_behind_the_slots_and_no_more() -> None:
    """S48, K23."""
    limits = filled(QueueLimits(n_slots=4, max_requests=2), *[10] * 6)
    with pytest.raises(QueueFull, match="2 waiting"):
        limits.enter([Comer("more", 10)])
    assert (limits.n_waiting, limits.n_tokens) == (6, 60)


def test_that_requests_begin_does_not_change_how_many_fit() -> None:
    """A burst on an idle server is judged as if the scheduler had seen it already."""
    for n_begun in range(5):
        limits = filled(QueueLimits(n_slots=4, max_requests=2), *[10] * 6)
        for n in range(n_begun):
            limits.begin(f"r{n}")
        with pytest.raises(QueueFull):
            limits.enter([Comer("more", 10)])
        limits.leave("r0")
        limits.enter([Comer("more", 10)])


def test_so_many_prompt_tokens_wait_behind_the_slots_and_no_more() -> None:
    limits = filled(QueueLimits(n_slots=1, max_tokens=100), 5000, 60, 40)
    with pytest.raises(QueueTokensFull, match="100 prompt tokens wait, 1 more would pass its limit of 100") as caught:
        limits.enter([Comer("more", 1)])
    assert isinstance(caught.value, QueueFull)
    assert caught.value.limit == 100
    limits.begin("r0")
    with pytest.raises(QueueTokensFull):
        limits.enter([Comer("more", 1)])
    limits.leave("r2")
    limits.enter([Comer("more", 40)])


def test_a_prompt_above_the_limit_may_wait_alone() -> None:
    """Or it could never be served."""
    limits = filled(QueueLimits(n_slots=1, max_tokens=100), 10, 5000)
    with pytest.raises(QueueTokensFull, match="5000 prompt tokens wait"):
        limits.enter([Comer("more", 1)])


def test_zero_is_without_limit() -> None:
    limits = filled(QueueLimits(n_slots=1), *[10**6] * 1000)
    assert limits.n_tokens == 10**9


def test_who_leaves_makes_room_at_once_and_once() -> None:
    """S53: a cancelled request gives its place up, whether it waits or runs, and whatever comes later."""
    limits = filled(QueueLimits(n_slots=1, max_requests=1, max_tokens=100), 10, 20)
    limits.begin("r0")
    limits.leave("r0")
    limits.leave("r1")
    limits.leave("r1")
    limits.begin("r1")
    limits.begin("r0")
    assert (limits.n_waiting, limits.n_tokens, limits.n_begun) == (0, 0, 0)
    filled(limits, 10, 20).clear()
    assert (limits.n_waiting, limits.n_tokens, limits.n_begun) == (0, 0, 0)


def test_several_come_in_together_or_not_at_all() -> None:
    limits = filled(QueueLimits(n_slots=2, max_requests=3), 10, 10, 10)
    with pytest.raises(QueueFull, match="3 waiting"):
        limits.enter([Comer(f"c{n}", 1) for n in range(3)])
    assert (limits.n_waiting, limits.n_tokens) == (3, 30)
    limits.enter([Comer(f"c{n}", 1) for n in range(2)])
    assert (limits.n_waiting, limits.n_tokens) == (5, 32)


def test_several_on_an_idle_server_may_take_slots_and_places() -> None:
    limits = QueueLimits(n_slots=2, max_requests=3)
    with pytest.raises(QueueFull):
        limits.enter([Comer(f"c{n}", 1) for n in range(6)])
    limits.enter([Comer(f"c{n}", 1) for n in range(5)])
    assert limits.n_waiting == 5


def test_prompts_above_the_limit_may_wait_alone_also_together() -> None:
    limits = filled(QueueLimits(n_slots=1, max_tokens=100), 10)
    limits.enter([Comer("a", 80), Comer("b", 80)])
    limits.begin("r0")
    with pytest.raises(QueueTokensFull, match="160 prompt tokens wait, 2 more"):
        limits.enter([Comer("c", 1), Comer("d", 1)])


@given(
    changes=st.lists(
        st.tuples(st.sampled_from(["enter", "begin", "leave"]), st.integers(0, 30), st.integers(1, 40)), max_size=100
    ),
    n_slots=st.integers(1, 3),
    max_requests=st.integers(0, 4),
    max_tokens=st.integers(0, 80),
)
def test_counters_agree_with_who_is_there(
    changes: list[tuple[str, int, int]], n_slots: int, max_requests: int, max_tokens: int
) -> None:
    limits = QueueLimits(n_slots=n_slots, max_requests=max_requests, max_tokens=max_tokens)
    waiting: dict[str, int] = {}
    begun: set[str] = set()
    for change, number, n_tokens in changes:
        request_id = str(number)
        if change == "enter" and request_id not in waiting and request_id not in begun:
            behind = list(waiting.values())[max(0, n_slots - len(begun)) :]
            has_slot = len(waiting) + len(begun) < n_slots
            is_full = max_requests > 0 and len(behind) >= max_requests
            is_long = max_tokens > 0 and bool(behind) and sum(behind) + n_tokens > max_tokens
            if not has_slot and (is_full or is_long):
                with pytest.raises(QueueFull):
                    limits.enter([Comer(request_id, n_tokens)])
            else:
                limits.enter([Comer(request_id, n_tokens)])
                waiting[request_id] = n_tokens
        elif change == "begin":
            limits.begin(request_id)
            if waiting.pop(request_id, None) is not None:
                begun.add(request_id)
        elif change == "leave":
            limits.leave(request_id)
            waiting.pop(request_id, None)
            begun.discard(request_id)
        assert (limits.n_waiting, limits.n_tokens) == (len(waiting), sum(waiting.values()))
        assert limits.n_begun == len(begun)
