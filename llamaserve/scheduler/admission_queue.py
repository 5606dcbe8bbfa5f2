"""Who waits for a slot, and who is next. Scheduler thread only; knows no engine, no clock and no slots.

Lanes take turns by urgency and age (``lane_aging``), inside a lane owners and sessions share fairly (``lane_queue``).
How many may wait is not decided here: ``queue_limits`` does, on the threads that submit.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from llamaserve.errors import ConfigError, shown
from llamaserve.request import Lane
from llamaserve.scheduler.expected_output import ExpectedOutput
from llamaserve.scheduler.lane_aging import lane_order, skips_after
from llamaserve.scheduler.lane_queue import Entry, LaneQueue, Turn
from llamaserve.scheduler.lanes import LANES
from llamaserve.scheduler.ranking import Ranking

PASS_LIMIT = 16
"""Times others may be admitted instead of a request that was not ready when its turn came; then all wait for it."""

LOOK_LIMIT = 32
"""Requests asked whether they are ready, at most, to find the next one."""


class QueueItem(Protocol):
    """What the queue reads of a request when it is pushed."""

    @property
    def request_id(self) -> str:
        """Unique among those that wait and those that are not settled."""

    @property
    def lane(self) -> Lane:
        """How urgent it is."""

    @property
    def owner(self) -> str:
        """Whose it is: an API key's name; "" for all without one."""

    @property
    def session(self) -> str | None:
        """The conversation it belongs to."""

    @property
    def n_tokens(self) -> int:
        """Of its prompt."""

    @property
    def max_tokens(self) -> int | None:
        """Tokens it may draw."""

    @property
    def deadline(self) -> float | None:
        """In clock seconds; None waits for ever."""


ItemT = TypeVar("ItemT", bound=QueueItem)


@dataclass(frozen=True, slots=True)
class _Choice(Generic[ItemT]):
    """The next request, and what was looked at before it."""

    entry: Entry[ItemT]
    turn: Turn
    passed: Collection[Entry[ItemT]]
    """Whose turn it was, and who were not ready."""


class _Charge(NamedTuple):
    """What an admitted request has been charged so far."""

    lane: Lane
    owner: str
    session: str | None
    n_tokens: float


def _always(_: QueueItem) -> bool:
    return True


class AdmissionQueue(Generic[ItemT]):
    """Waiting requests. A push, a pop and a removal cost O(log n) amortised.

    Nobody starves: while all are ready, a request with p older ones in its lane is admitted within
    ``LANE_BOUNDS[lane] * OLDEST_EVERY * (p + 1)`` admissions, whatever comes. One that is not ready when its turn comes
    is passed over ``PASS_LIMIT`` times at most; then only others in the same case come before it.

    Every popped request is on its owner's account until ``settle``: call it once for each.

    ``weights`` are those of owners, above 0; an owner that is not in it has 1. Raises ConfigError when one is wrong.
    Without ``ages`` urgent lanes starve the others.
    """

    def __init__(self, *, weights: Mapping[str, float] | None = None, ages: bool = True) -> None:
        self._weights = dict(weights or {})
        for owner, weight in self._weights.items():
            if not (math.isfinite(weight) and weight > 0):
                raise ConfigError(f"the weight of {shown(owner)} is {shown(weight)}: it must be a number above 0")
        self._ages = ages
        self._entries: dict[str, Entry[ItemT]] = {}
        self._lanes: dict[Lane, LaneQueue[ItemT]] = {lane: LaneQueue() for lane in LANES}
        self._waiting_lanes: list[Lane] = []
        """Those that are not empty, most urgent first."""
        self._skips: dict[Lane, int] = {}
        self._deadlines: Ranking[str] = Ranking()
        self._held: OrderedDict[str, Entry[ItemT]] = OrderedDict()
        """Those nobody may pass over any more."""
        self._charges: dict[str, _Charge] = {}
        self._output = ExpectedOutput()
        self._n_tokens = 0
        self._n_pushed = 0

    def __len__(self) -> int:
        """Requests that wait. Any thread."""
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        """Their ids, in the order they came."""
        return iter(self._entries)

    def __contains__(self, request_id: str) -> bool:
        """Whether a request waits."""
        return request_id in self._entries

    @property
    def n_tokens(self) -> int:
        """Of all their prompts. Any thread."""
        return self._n_tokens

    @property
    def n_unsettled(self) -> int:
        """Requests popped and not settled. Any thread."""
        return len(self._charges)

    @property
    def n_accounts(self) -> int:
        """Owners and sessions remembered, over all lanes."""
        return sum(lane.n_accounts for lane in self._lanes.values())

    def n_waiting(self, lane: Lane) -> int:
        """Requests that wait in a lane. Any thread."""
        return len(self._lanes[lane])

    @property
    def next_deadline(self) -> float | None:
        """The first deadline among those that wait, in clock seconds."""
        first = self._deadlines.first()
        return None if first is None else first[0]

    def push(self, item: ItemT) -> None:
        """Let a request wait. Raises ValueError when one with its id waits or is not settled."""
        request_id, owner = item.request_id, item.owner
        if request_id in self._entries or request_id in self._charges:
            raise ValueError(f"request {request_id!r} waits already, or is not settled")
        self._n_pushed += 1
        entry = Entry(
            item,
            request_id=request_id,
            lane=item.lane,
            owner=owner,
            session=item.session,
            n_tokens=item.n_tokens,
            max_tokens=item.max_tokens,
            arrival=self._n_pushed,
        )
        self._lanes[entry.lane].add(entry, self._weights.get(owner, 1.0))
        if entry.lane not in self._waiting_lanes:
            self._find_waiting_lanes()
        self._entries[request_id] = entry
        self._n_tokens += entry.n_tokens
        if (deadline := item.deadline) is not None:
            self._deadlines.set(request_id, deadline)

    def peek(self, is_ready: Callable[[ItemT], bool] = _always, *, idle_sessions: Collection[str] = ()) -> ItemT | None:
        """What ``pop`` would return now; changes nothing."""
        choice = self._choose(is_ready, idle_sessions)
        return None if choice is None else choice.entry.item

    def pop(self, is_ready: Callable[[ItemT], bool] = _always, *, idle_sessions: Collection[str] = ()) -> ItemT | None:
        """Take the next request out and charge its owner an estimate; None when there is none.

        ``is_ready`` says whether a request could begin now. It must become true of every request after some time in
        which nobody is admitted: None may mean that all wait for one. ``idle_sessions`` are those whose slot is free.
        """
        choice = self._choose(is_ready, idle_sessions)
        if choice is None:
            return None
        entry, lane = choice.entry, choice.entry.lane
        self._pass_over(choice.passed)
        self._skips = skips_after(self._skips, lane, self._waiting_lanes)
        n_tokens = entry.n_tokens + self._output.tokens(entry.max_tokens)
        self._lanes[lane].admit(entry, choice.turn, n_tokens)
        self._forget(entry)
        self._charges[entry.request_id] = _Charge(lane, entry.owner, entry.session, n_tokens)
        return entry.item

    def remove(self, request_id: str) -> ItemT | None:
        """Take a request out unserved; None if it does not wait."""
        entry = self._entries.get(request_id)
        if entry is None:
            return None
        self._lanes[entry.lane].discard(entry)
        self._forget(entry)
        return entry.item

    def expire(self, now: float) -> list[ItemT]:
        """Take out those whose deadline has come, first things first."""
        expired = []
        while (first := self._deadlines.first()) is not None and first[0] <= now:
            item = self.remove(first[1])
            if item is not None:
                expired.append(item)
        return expired

    def clear(self) -> None:
        """Forget all requests, those that wait and those that are not settled, and what they have cost."""
        self._entries.clear()
        self._lanes = {lane: LaneQueue() for lane in LANES}
        self._waiting_lanes = []
        self._skips = {}
        self._deadlines = Ranking()
        self._held.clear()
        self._charges.clear()
        self._n_tokens = 0

    # Requests that were popped.

    def reuse(self, request_id: str, n_cached: int) -> None:
        """So many tokens of a popped request's prompt need not be computed: they cost nothing. Raises ValueError when
        it is not popped, or settled."""
        charge = self._charge(request_id)
        self._lanes[charge.lane].correct(charge.owner, charge.session, -n_cached)
        self._charges[request_id] = charge._replace(n_tokens=charge.n_tokens - n_cached)

    def settle(self, request_id: str, *, n_computed: int, n_generated: int) -> None:
        """A popped request has ended: it had so many prompt tokens computed and so many drawn. Raises ValueError when
        it is not popped, or settled already."""
        charge = self._charge(request_id)
        del self._charges[request_id]
        lane = self._lanes[charge.lane]
        lane.settle(charge.owner, charge.session, n_computed + n_generated, estimate=charge.n_tokens)
        if n_generated:
            self._output.observe(n_generated)

    def _charge(self, request_id: str) -> _Charge:
        charge = self._charges.get(request_id)
        if charge is None:
            raise ValueError(f"request {request_id!r} was not popped, or is settled")
        return charge

    # Choosing.

    def _choose(self, is_ready: Callable[[ItemT], bool], idle_sessions: Collection[str]) -> _Choice[ItemT] | None:
        if self._held:
            ready = (entry for entry in self._held.values() if is_ready(entry.item))
            held = next(ready, None)
            return None if held is None else _Choice(held, Turn.OLDEST, ())
        passed: dict[str, Entry[ItemT]] = {}
        for lane in lane_order(self._skips, self._waiting_lanes, ages=self._ages):
            for entry, turn in self._lanes[lane].candidates(idle_sessions):
                if entry.request_id in passed:
                    continue
                if is_ready(entry.item):
                    return _Choice(entry, turn, passed.values())
                passed[entry.request_id] = entry
                if len(passed) == LOOK_LIMIT:
                    return None
        return None

    def _find_waiting_lanes(self) -> None:
        self._waiting_lanes = [lane for lane, queue in self._lanes.items() if queue]

    def _pass_over(self, entries: Collection[Entry[ItemT]]) -> None:
        for entry in entries:
            entry.n_passed += 1
            if entry.n_passed == PASS_LIMIT:
                self._held[entry.request_id] = entry

    def _forget(self, entry: Entry[ItemT]) -> None:
        """After it has left its lane."""
        if not self._lanes[entry.lane]:
            self._find_waiting_lanes()
            self._skips.pop(entry.lane, None)
        del self._entries[entry.request_id]
        self._held.pop(entry.request_id, None)
        self._deadlines.discard(entry.request_id)
        self._n_tokens -= entry.n_tokens
