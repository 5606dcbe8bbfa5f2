"""Random arrivals, ends, cancellations and deadlines: nobody is lost, served twice or starved, and counters agree."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserve.scheduler import lane_queue
from llamaserve.scheduler.admission_queue import PASS_LIMIT
from llamaserve.scheduler.lane_aging import LANE_BOUNDS
from llamaserve.scheduler.lanes import LANES
from tests.unit.scheduler.queued import Queue, Queued, end, queue_of

SHORT_EVERY = 3  # turns between two of the oldest, so that the bounds are felt in short runs


class Crowd:
    """Clients at random, and what must hold whatever they do."""

    def __init__(self, seed: int, *, n_owners: int, all_ready: bool) -> None:
        self.draw = random.Random(seed)
        self.n_owners = n_owners
        self.all_ready = all_ready
        self.queue: Queue = queue_of(weights={"0": 0.3, "1": 5.0})
        self.waiting: dict[str, Queued] = {}
        self.running: dict[str, Queued] = {}
        self.bounds: dict[str, int] = {}
        """The admission at which a request must have been admitted."""
        self.passes: Counter[str] = Counter()
        self.now = 0.0
        self.n_pushed = 0
        self.n_admitted = 0
        self.ended: Counter[str] = Counter()

    def push(self) -> None:
        draw = self.draw
        self.n_pushed += 1
        item = Queued(
            f"r{self.n_pushed}",
            owner=str(draw.randrange(self.n_owners)) if draw.random() < 0.7 else f"new {self.n_pushed}",
            lane=draw.choices(LANES, (5, 2, 1))[0],
            session=draw.choice([None, "s", "t", f"u{self.n_pushed}"]),
            n_tokens=draw.choice([1, 30, 3000]),
            max_tokens=draw.choice([None, 1, 100]),
            deadline=draw.choice([None, None, self.now + draw.random() * 100]),
        )
        n_older = sum(other.lane is item.lane for other in self.waiting.values())
        self.bounds[item.request_id] = self.n_admitted + LANE_BOUNDS[item.lane] * SHORT_EVERY * (n_older + 1)
        self.queue.push(item)
        self.waiting[item.request_id] = item

    def pop(self) -> None:
        sessions = self.draw.sample(["s", "t", "nobody's"], self.draw.randrange(4))
        not_ready = set() if self.all_ready else {key for key in self.waiting if self.draw.random() < 0.4}
        looked_at = []

        def is_ready(item: Queued) -> bool:
            looked_at.append(item.request_id)
            return item.request_id not in not_ready

        foreseen = self.queue.peek(is_ready, idle_sessions=sessions)
        assert len(looked_at) == len(set(looked_at))
        looked_at.clear()
        item = self.queue.pop(is_ready, idle_sessions=sessions)
        assert item is foreseen
        if item is None:
            assert not self.waiting or not_ready
            return
        assert self.waiting.pop(item.request_id) is item
        assert item.request_id not in not_ready
        self.n_admitted += 1
        if self.all_ready:
            assert self.n_admitted <= self.bounds[item.request_id]
            assert all(self.n_admitted <= self.bounds[key] for key in self.waiting)
        is_normal = max((self.passes[key] for key in self.waiting), default=0) < PASS_LIMIT
        for key in looked_at[:-1]:
            if is_normal:
                self.passes[key] += 1
        assert all(self.passes[key] <= PASS_LIMIT for key in self.waiting)
        self.running[item.request_id] = item

    def finish(self) -> None:
        if self.running:
            item = self.running.pop(self.draw.choice(list(self.running)))
            if self.draw.random() < 0.5:
                self.queue.reuse(item.request_id, self.draw.randint(0, item.n_tokens))
            self.queue.settle(
                item.request_id, n_computed=self.draw.randint(0, item.n_tokens), n_generated=self.draw.randint(0, 500)
            )
            self.ended[item.request_id] += 1

    def cancel(self) -> None:
        key = f"r{self.draw.randint(1, self.n_pushed + 1)}"
        expected = self.waiting.pop(key, None)
        assert self.queue.remove(key) is expected
        self.ended[key] += expected is not None

    def wait(self) -> None:
        self.now += self.draw.random() * 10
        expired = self.queue.expire(self.now)
        due = {key for key, item in self.waiting.items() if item.deadline is not None and item.deadline <= self.now}
        assert {item.request_id for item in expired} == due
        assert [item.deadline for item in expired] == sorted(item.deadline or 0 for item in expired)
        for key in due:
            del self.waiting[key]
            self.ended[key] += 1

    def check(self) -> None:
        queue, waiting = self.queue, self.waiting
        assert len(queue) == len(waiting)
        assert list(queue) == list(waiting)
        assert queue.n_tokens == sum(item.n_tokens for item in waiting.values())
        assert queue.n_unsettled == len(self.running)
        for lane in LANES:
            assert queue.n_waiting(lane) == sum(item.lane is lane for item in waiting.values())
        deadlines = [item.deadline for item in waiting.values() if item.deadline is not None]
        assert queue.next_deadline == min(deadlines, default=None)

    def leave(self) -> None:
        """Everybody is served to the end."""
        while (item := self.queue.pop()) is not None:
            del self.waiting[item.request_id]
            end(self.queue, item)
            self.ended[item.request_id] += 1
        while self.running:
            self.finish()
        self.check()
        assert set(self.ended.values()) <= {0, 1}
        assert sum(self.ended.values()) == self.n_pushed


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n_owners=st.integers(1, 5),
    all_ready=st.booleans(),
    n_pushes=st.integers(1, 6),
    n_pops=st.integers(1, 6),
)
def test_nobody_is_lost_served_twice_or_starved(
    seed: int, n_owners: int, all_ready: bool, n_pushes: int, n_pops: int
) -> None:
    """K15, K103, K104, K152: under any mix of lanes, owners, sessions, cancellations and deadlines every request is
    admitted within its bound, and one that is not ready is passed over a bounded number of times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_queue, "OLDEST_EVERY", SHORT_EVERY)
        crowd = Crowd(seed, n_owners=n_owners, all_ready=all_ready)
        changes = [crowd.push] * n_pushes + [crowd.pop] * n_pops + [crowd.finish] * n_pops + [crowd.cancel, crowd.wait]
        for _ in range(300):
            crowd.draw.choice(changes)()
            crowd.check()
        crowd.leave()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), n_fresh=st.integers(1, 3))
def test_one_that_is_ready_every_second_time_is_admitted(seed: int, n_fresh: int) -> None:
    """Even if others keep coming that are ready always, or hardly ever."""
    draw = random.Random(seed)
    queue = queue_of(Queued("late", "debtor", LANES[2], n_tokens=1000))
    n_asked = 0

    def is_ready(item: Queued) -> bool:
        nonlocal n_asked
        if item.request_id == "late":
            n_asked += 1
            return n_asked % 2 == 0
        return item.request_id.startswith("ready") or draw.random() < 0.1

    for n in range(2 * LANE_BOUNDS[LANES[2]] * lane_queue.OLDEST_EVERY):
        for m in range(n_fresh):
            kind = draw.choice(["ready", "slow"])
            queue.push(Queued(f"{kind} {n} {m}", f"owner {n} {m}", draw.choice(LANES)))
        item = queue.pop(is_ready)
        if item is not None:
            end(queue, item)
            if item.request_id == "late":
                return
    pytest.fail("it was never admitted")
