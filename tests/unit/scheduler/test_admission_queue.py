"""The admission queue: who is next, who waits, and what it costs."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.errors import ConfigError
from llamaserve.request import Lane
from llamaserve.scheduler.admission_queue import LOOK_LIMIT, PASS_LIMIT
from llamaserve.scheduler.expected_output import FIRST_GUESS
from llamaserve.scheduler.lane_aging import LANE_BOUNDS
from llamaserve.scheduler.lane_queue import OLDEST_EVERY, SESSION_TURNS
from llamaserve.scheduler.lanes import LANES
from tests.unit.scheduler.queued import Queue, Queued, end, ids, popped, queue_of

HIGH, NORMAL, LOW = LANES


def is_not(*request_ids: str) -> Callable[[Queued], bool]:
    return lambda item: item.request_id not in request_ids


# Order.


def test_one_owner_is_served_in_the_order_requests_came() -> None:
    assert ids(queue_of(*[Queued(str(n)) for n in range(5)])) == ["0", "1", "2", "3", "4"]


def test_an_empty_queue_has_nobody() -> None:
    queue = queue_of()
    assert queue.pop() is None
    assert queue.peek() is None
    assert queue.next_deadline is None
    assert len(queue) == queue.n_tokens == 0


def test_owners_take_turns_however_many_requests_each_has() -> None:
    queue = queue_of(*[Queued(f"a{n}", "a") for n in range(4)], Queued("b0", "b"), Queued("b1", "b"))
    assert ids(queue) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_tokens_count_and_not_requests() -> None:
    """Prompt and text: 100 of one owner are worth 5 of 20."""
    queue = queue_of(
        *[Queued(f"a{n}", "a", n_tokens=60, max_tokens=40) for n in range(3)],
        *[Queued(f"b{n}", "b", n_tokens=10, max_tokens=10) for n in range(10)],
    )
    order = ids(queue)
    assert [n for n, request_id in enumerate(order) if request_id[0] == "a"] == [0, 6, 12]


def test_a_weight_of_three_gets_three_times_the_tokens() -> None:
    items = [Queued(f"{owner}{n}", owner) for owner in "ab" for n in range(40)]
    order = ids(queue_of(*items, weights={"b": 3.0}))
    assert sum(request_id[0] == "b" for request_id in order[:40]) == pytest.approx(30, abs=1)


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_a_weight_must_be_above_0(weight: float) -> None:
    with pytest.raises(ConfigError, match="weight of 'a' is"):
        queue_of(weights={"a": weight})


def test_inside_an_owner_sessions_share() -> None:
    """A conversation does not wait for the other conversations of the same key."""
    queue = queue_of(
        *[Queued(f"s{n}", "a", session="s") for n in range(4)],
        *[Queued(f"none{n}", "a") for n in range(2)],
        Queued("t0", "a", session="t"),
        *[Queued(f"b{n}", "b", session="s") for n in range(7)],
    )
    order = ids(queue)
    assert order[0::2] == ["s0", "none0", "t0", "s1", "none1", "s2", "s3"]
    assert order[1::2] == [f"b{n}" for n in range(7)]


def test_under_a_flood_of_high_normal_is_admitted_at_decision_3_exactly() -> None:
    """K103: a parked Normal, and endlessly fresh High requests."""
    queue = queue_of(Queued("normal", lane=NORMAL))
    fresh = (Queued(f"high{n}", lane=HIGH) for n in count())
    order = []
    for _ in range(3):
        queue.push(next(fresh))
        queue.push(next(fresh))
        item = queue.pop()
        assert item is not None
        order.append(item.request_id)
    assert order == ["high0", "high1", "normal"]


def test_a_lane_that_became_empty_is_not_due_any_more() -> None:
    queue = queue_of(*[Queued(f"high{n}", lane=HIGH) for n in range(9)], Queued("gone"))
    assert [item.lane for _, item in zip(range(2), popped(queue), strict=False)] == [HIGH, HIGH]
    queue.remove("gone")
    queue.push(Queued("normal"))
    assert ids(queue)[:3] == ["high2", "high3", "normal"]


def test_without_aging_low_starves_behind_high() -> None:
    """K104: what `--queue-aging off` means."""
    queue = queue_of(Queued("low", lane=LOW), ages=False)
    for n in range(200):
        queue.push(Queued(f"high{n}", lane=HIGH))
        assert next(popped(queue)).lane is HIGH
    assert ids(queue) == ["low"]


def admissions_until(queue: Queue, request_id: str, flood: Callable[[int], list[Queued]], limit: int) -> int:
    """How many are admitted, the request included, while a flood comes before each admission."""
    for n in range(limit):
        for item in flood(n):
            queue.push(item)
        item = next(popped(queue))
        if item.request_id == request_id:
            return n + 1
    raise AssertionError(f"{request_id} was not admitted in {limit} admissions")


@pytest.mark.parametrize("lane", LANES)
def test_a_flood_of_new_owners_in_all_lanes_starves_nobody(lane: Lane) -> None:
    """K103, K104: fairness alone would let each of them pass an owner that has debts."""
    queue = queue_of(
        Queued("big", "debtor", lane, n_tokens=100_000), Queued("late", "debtor", lane), Queued("first", "poor", lane)
    )
    assert next(popped(queue)).request_id == "big"
    bound = LANE_BOUNDS[lane] * OLDEST_EVERY
    n_admissions = admissions_until(
        queue, "late", lambda n: [Queued(f"{one.value}{n}", f"{one.value} owner {n}", one) for one in LANES], bound
    )
    assert bound // 2 < n_admissions <= bound


@given(
    n_before=st.integers(0, 46),
    n_running=st.integers(0, 4),
    seed=st.integers(0, 2**32),
    n_a=st.just(50),
)
def test_one_request_waits_no_longer_than_a_quarter_of_another_users_fifty(
    n_before: int, n_running: int, seed: int, n_a: int
) -> None:
    """4 slots; a user sends 50 requests, and after some of them were served a second user sends one. However long
    each takes and however wrong its estimate is."""
    draw = random.Random(seed)
    queue = queue_of(*[Queued(f"a{n}", "a", n_tokens=draw.randint(1, 5000), max_tokens=None) for n in range(n_a)])
    running: list[Queued] = []

    def step() -> Queued | None:
        if len(running) == 4:
            done = running.pop(draw.randrange(4))
            n_cached = draw.randint(0, done.n_tokens)
            queue.settle(done.request_id, n_computed=done.n_tokens - n_cached, n_generated=draw.randint(0, 2000))
        item = queue.pop()
        if item is not None:
            running.append(item)
        return item

    for _ in range(n_before + n_running):
        step()
    n_queue = len(queue)
    queue.push(Queued("b", "b", n_tokens=draw.randint(1, 5000), max_tokens=None))
    n_waited = 0
    while (item := step()) is not None and item.owner == "a":
        n_waited += 1
    assert item is not None
    assert n_waited <= max(2, n_queue // 4)
    assert n_waited <= 2


# Sessions whose slot is idle.


def test_a_request_whose_session_has_an_idle_slot_goes_first() -> None:
    """S32."""
    queue = queue_of(Queued("x"), Queued("s", session="s"))
    assert queue.peek() == Queued("x")
    assert queue.peek(idle_sessions=["s"]) == Queued("s", session="s")
    assert queue.pop(idle_sessions=["s", "t"]) == Queued("s", session="s")
    assert ids(queue) == ["x"]


def test_of_two_such_requests_that_came_first_goes_first() -> None:
    queue = queue_of(Queued("x"), Queued("t", session="t"), Queued("s", session="s"))
    assert queue.pop(idle_sessions=["s", "t"]) == Queued("t", session="t")


def test_it_starves_nobody() -> None:
    """K152: at most twice in a row."""
    queue = queue_of(*[Queued(f"x{n}", "x") for n in range(3)], *[Queued(f"s{n}", "s", session="s") for n in range(9)])
    order = []
    while (item := queue.pop(idle_sessions=["s"])) is not None:
        end(queue, item)
        order.append(item.request_id)
    assert SESSION_TURNS == 2
    assert order == ["s0", "s1", "x0", "s2", "s3", "x1", "s4", "s5", "x2", "s6", "s7", "s8"]


def test_it_does_not_pass_a_more_urgent_lane() -> None:
    queue = queue_of(Queued("low", lane=LOW, session="s"), Queued("high", lane=HIGH))
    assert queue.pop(idle_sessions=["s"]) == Queued("high", lane=HIGH)


# Requests that are not ready.


def test_one_that_is_not_ready_is_passed_over() -> None:
    queue = queue_of(Queued("a"), Queued("b", "b", HIGH), Queued("c"))
    assert queue.peek(is_not("b", "a")) == Queued("c")
    assert queue.pop(is_not("b", "a")) == Queued("c")
    assert queue.pop(is_not("a", "b")) is None
    assert ids(queue) == ["b", "a"]


def test_after_so_many_times_everybody_waits_for_it() -> None:
    """A prompt that needs much room would wait for ever while small ones take what becomes free."""
    queue = queue_of(Queued("long"))
    fits = is_not("long")
    for n in range(PASS_LIMIT):
        queue.push(Queued(f"short{n}"))
        assert queue.pop(fits) == Queued(f"short{n}")
    queue.push(Queued("short", "other", HIGH))
    assert queue.pop(fits) is None
    assert queue.peek(fits) is None
    assert queue.pop() == Queued("long")
    assert queue.pop(fits) == Queued("short", "other", HIGH)


def test_when_it_leaves_the_others_go_on() -> None:
    queue = queue_of(Queued("long"))
    for n in range(PASS_LIMIT + 1):
        queue.push(Queued(f"short{n}"))
        queue.pop(is_not("long"))
    assert queue.pop(is_not("long")) is None
    assert queue.remove("long") == Queued("long")
    assert queue.pop(is_not("long")) == Queued(f"short{PASS_LIMIT}")


def test_asking_does_not_count_as_passing_over() -> None:
    queue = queue_of(Queued("long"), Queued("short"))
    for _ in range(2 * PASS_LIMIT):
        queue.peek(is_not("long"))
    assert queue.pop(is_not("long")) == Queued("short")


def test_no_more_than_so_many_are_asked() -> None:
    """One decision is short however many wait for the disk."""
    queue = queue_of(*[Queued(str(n), str(n)) for n in range(1000)])
    asked = []

    def is_ready(item: Queued) -> bool:
        asked.append(item.request_id)
        return False

    assert queue.pop(is_ready) is None
    assert len(asked) == len(set(asked)) == LOOK_LIMIT


def test_a_lane_whose_turn_was_missed_has_it_again() -> None:
    queue = queue_of(*[Queued(f"high{n}", lane=HIGH) for n in range(4)], Queued("normal"))
    for n in range(3):
        assert queue.pop(is_not("normal")) == Queued(f"high{n}", lane=HIGH)
    assert queue.pop() == Queued("normal")


# Leaving without being served.


def test_one_that_is_removed_is_not_served() -> None:
    """S53."""
    queue = queue_of(Queued("a", session="s"), Queued("b", n_tokens=7), Queued("c"))
    assert queue.remove("b") == Queued("b", n_tokens=7)
    assert queue.remove("b") is None
    assert queue.remove("unknown") is None
    assert ("b" in queue, list(queue), queue.n_tokens) == (False, ["a", "c"], 20)
    assert ids(queue) == ["a", "c"]


def test_five_hundred_removed_at_once_leave_nothing() -> None:
    queue = queue_of(*[Queued(str(n), str(n % 7), LANES[n % 3], f"s{n % 11}", deadline=n) for n in range(500)])
    for n in range(500):
        queue.remove(str(n))
    assert len(queue) == queue.n_tokens == queue.n_accounts == 0
    assert queue.next_deadline is None
    assert [queue.n_waiting(lane) for lane in LANES] == [0, 0, 0]
    for lane in queue._lanes.values():
        assert not lane._by_flow
        assert not lane._by_session


def test_those_whose_deadline_has_come_are_taken_out() -> None:
    queue = queue_of(
        Queued("never"),
        Queued("late", deadline=5.0),
        Queued("soon", lane=HIGH, deadline=1.0),
        Queued("mid", deadline=2.0),
    )
    assert queue.next_deadline == 1.0
    assert queue.expire(0.9) == []
    assert [item.request_id for item in queue.expire(2.0)] == ["soon", "mid"]
    assert queue.next_deadline == 5.0
    assert ids(queue) == ["never", "late"]
    assert queue.expire(1e9) == []


def test_clear_forgets_everybody() -> None:
    queue = queue_of(*[Queued(str(n), str(n), deadline=1.0) for n in range(9)])
    queue.pop()
    queue.clear()
    assert len(queue) == queue.n_tokens == queue.n_unsettled == queue.n_accounts == 0
    assert queue.expire(2.0) == []
    queue.push(Queued("0"))
    assert ids(queue) == ["0"]


# Cost.


def test_before_it_ends_a_request_costs_its_prompt_and_what_it_may_draw() -> None:
    """a's running request is taken for 100 + 256 tokens: so b is served until it has had as much."""
    queue = queue_of(
        *[Queued(f"a{n}", "a", n_tokens=100, max_tokens=None) for n in range(2)],
        *[Queued(f"b{n}", "b", n_tokens=1, max_tokens=49) for n in range(20)],
    )
    assert queue.pop() == Queued("a0", "a", n_tokens=100, max_tokens=None)
    order = ids(queue)
    assert order.index("a1") == (100 + FIRST_GUESS) // 50 + 1


def test_cached_tokens_cost_nothing() -> None:
    queue = queue_of(
        *[Queued(f"a{n}", "a", n_tokens=1000, max_tokens=10) for n in range(2)],
        *[Queued(f"b{n}", "b", n_tokens=50, max_tokens=50) for n in range(20)],
    )
    queue.pop()
    queue.reuse("a0", 960)
    assert ids(queue)[:2] == ["b0", "a1"]


def test_what_was_cached_is_not_given_back_twice() -> None:
    queue = queue_of(
        *[Queued(f"a{n}", "a", n_tokens=1000, max_tokens=10) for n in range(2)],
        *[Queued(f"b{n}", "b", n_tokens=50, max_tokens=50) for n in range(20)],
    )
    queue.pop()
    queue.reuse("a0", 960)
    queue.settle("a0", n_computed=40, n_generated=10)
    assert ids(queue)[:2] == ["b0", "a1"]


def test_what_a_request_draws_is_guessed_from_those_before_it() -> None:
    queue = queue_of()
    for n in range(200):
        queue.push(Queued(str(n)))
        queue.pop()
        queue.settle(str(n), n_computed=10, n_generated=20)
    for n in range(2):
        queue.push(Queued(f"a{n}", "a", n_tokens=30, max_tokens=None))
    for n in range(20):
        queue.push(Queued(f"b{n}", "b", n_tokens=5, max_tokens=5))
    queue.pop()
    assert ids(queue).index("a1") == 6


def test_what_it_really_cost_is_charged_at_the_end() -> None:
    queue = queue_of(
        *[Queued(f"a{n}", "a", n_tokens=10, max_tokens=None) for n in range(2)],
        *[Queued(f"b{n}", "b", n_tokens=50, max_tokens=50) for n in range(20)],
    )
    queue.pop()
    queue.settle("a0", n_computed=10, n_generated=990)
    assert ids(queue).index("a1") == 10


def test_every_popped_request_is_settled_once() -> None:
    queue = queue_of(Queued("a"), Queued("b"))
    with pytest.raises(ValueError, match="'a' was not popped, or is settled"):
        queue.settle("a", n_computed=1, n_generated=1)
    queue.pop()
    assert queue.n_unsettled == 1
    end(queue, Queued("a"))
    assert queue.n_unsettled == 0
    with pytest.raises(ValueError, match="'a' was not popped, or is settled"):
        end(queue, Queued("a"))
    with pytest.raises(ValueError, match="'b' was not popped"):
        queue.reuse("b", 1)


def test_an_id_is_in_use_until_its_request_is_settled() -> None:
    queue = queue_of(Queued("a"))
    with pytest.raises(ValueError, match="'a' waits already, or is not settled"):
        queue.push(Queued("a"))
    queue.pop()
    with pytest.raises(ValueError, match="'a' waits already, or is not settled"):
        queue.push(Queued("a"))
    end(queue, Queued("a"))
    queue.push(Queued("a"))


def test_a_million_keys_leave_a_bounded_trace() -> None:
    """Here some thousands, each used once."""
    queue = queue_of()
    for n in range(6000):
        queue.push(Queued(str(n), f"key {n}", session=f"session {n}"))
        item = queue.pop()
        assert item is not None
        end(queue, item)
    assert queue.n_accounts <= 4096
    for n in range(2000):
        queue.push(Queued(str(n), "one key", session=f"session {n}"))
        queue.push(Queued(f"on{n}", "one key"))
        for item in popped(queue):
            assert item.owner == "one key"
    assert queue.n_accounts <= 4096
