"""The order inside a lane: owners share it fairly, each owner's sessions share its part. Scheduler thread only.

Two exceptions, both bounded. A request whose session has an idle slot may go first, at most ``SESSION_TURNS`` times in
a row (S32, K152). And every ``OLDEST_EVERY``-th turn is that of the oldest, whosever it is: fairness alone would let a
stream of new owners, or of cheap requests, pass an expensive one for ever.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from llamaserve.request import Lane
from llamaserve.scheduler.fair_share import FairShare

SESSION_TURNS = 2
OLDEST_EVERY = 32
"""A request with p older ones in its lane is admitted within 32 (p + 1) turns of the lane, whatever comes. Rarely, as
these turns take no notice of what their owners have had."""

_MAX_IDLE_OWNERS = 4096
_MAX_IDLE_SESSIONS = 256  # of one owner

ItemT = TypeVar("ItemT")


class Turn(enum.Enum):
    """Why a request is next."""

    OLDEST = "oldest"
    SESSION = "session"
    FAIR = "fair"


class Entry(Generic[ItemT]):
    """A waiting request, and what the queue knows of it."""

    __slots__ = ("arrival", "item", "lane", "max_tokens", "n_passed", "n_tokens", "owner", "request_id", "session")

    def __init__(
        self,
        item: ItemT,
        *,
        request_id: str,
        lane: Lane,
        owner: str,
        session: str | None,
        n_tokens: int,
        max_tokens: int | None,
        arrival: int,
    ) -> None:
        self.item = item
        self.request_id = request_id
        self.lane = lane
        self.owner = owner
        self.session = session
        self.n_tokens = n_tokens
        self.max_tokens = max_tokens
        self.arrival = arrival
        self.n_passed = 0
        """Times it was its turn, it was not ready, and another was admitted."""


class LaneQueue(Generic[ItemT]):
    """Who waits in a lane. Requests without a session share as one session of their owner does.

    Accounts are in tokens and the lane's own: what an owner has in one lane does not count in another.
    """

    def __init__(self) -> None:
        self._by_arrival: OrderedDict[str, Entry[ItemT]] = OrderedDict()
        self._by_session: dict[str, OrderedDict[str, Entry[ItemT]]] = {}
        self._by_flow: dict[tuple[str, str | None], OrderedDict[str, Entry[ItemT]]] = {}
        self._owners: FairShare[str] = FairShare(max_idle=_MAX_IDLE_OWNERS)
        self._sessions: dict[str, FairShare[str | None]] = {}
        self._n_turns = 0
        """Admissions since one of the oldest."""
        self._n_session_turns = 0
        """In a row."""

    def __len__(self) -> int:
        return len(self._by_arrival)

    @property
    def n_accounts(self) -> int:
        """Owners and sessions remembered."""
        return len(self._owners) + sum(map(len, self._sessions.values()))

    def add(self, entry: Entry[ItemT], weight: float) -> None:
        """Let a request wait; ``weight`` is its owner's."""
        owner, session = entry.owner, entry.session
        self._owners.join(owner, weight)
        if owner not in self._sessions:
            self._sessions[owner] = FairShare(max_idle=_MAX_IDLE_SESSIONS)
        self._sessions[owner].join(session)
        self._by_arrival[entry.request_id] = entry
        self._by_flow.setdefault((owner, session), OrderedDict())[entry.request_id] = entry
        if session is not None:
            self._by_session.setdefault(session, OrderedDict())[entry.request_id] = entry

    def discard(self, entry: Entry[ItemT]) -> None:
        """Its request does not wait any more, and is not admitted."""
        self._take_out(entry)
        self._sessions[entry.owner].quit(entry.session)
        self._owners.quit(entry.owner)
        self._forget(entry.owner)

    def candidates(self, idle_sessions: Collection[str] = ()) -> Iterator[tuple[Entry[ItemT], Turn]]:
        """Who is next, and who if that one cannot begin, and so on; some come twice. Not to be continued after a
        change."""
        if self._n_turns >= OLDEST_EVERY - 1 and self._by_arrival:
            yield next(iter(self._by_arrival.values())), Turn.OLDEST
        if idle_sessions and self._n_session_turns < SESSION_TURNS:
            firsts = [next(iter(of.values())) for name in idle_sessions if (of := self._by_session.get(name))]
            for entry in sorted(firsts, key=lambda entry: entry.arrival):
                yield entry, Turn.SESSION
        for owner in self._owners.in_order():
            for session in self._sessions[owner].in_order():
                for entry in self._by_flow[owner, session].values():
                    yield entry, Turn.FAIR

    def admit(self, entry: Entry[ItemT], turn: Turn, n_tokens: float) -> None:
        """Its request gets a slot; charge an estimate. It stays on its owner's account until ``settle``."""
        is_oldest = next(iter(self._by_arrival)) == entry.request_id
        self._n_turns = 0 if is_oldest else self._n_turns + 1
        self._n_session_turns = self._n_session_turns + 1 if turn is Turn.SESSION else 0
        self._take_out(entry)
        self._sessions[entry.owner].admit(entry.session, n_tokens)
        self._owners.admit(entry.owner, n_tokens)

    def correct(self, owner: str, session: str | None, n_tokens: float) -> None:
        """The estimate for an admitted request was so much too low, or too high if negative."""
        self._sessions[owner].correct(session, n_tokens)
        self._owners.correct(owner, n_tokens)

    def settle(self, owner: str, session: str | None, n_tokens: float, *, estimate: float) -> None:
        """An admitted request ended and cost so many tokens; ``estimate`` is what was charged for it till now."""
        self._sessions[owner].settle(session, n_tokens, estimate=estimate)
        self._owners.settle(owner, n_tokens, estimate=estimate)
        self._forget(owner)

    def _take_out(self, entry: Entry[ItemT]) -> None:
        del self._by_arrival[entry.request_id]
        flow = self._by_flow[entry.owner, entry.session]
        del flow[entry.request_id]
        if not flow:
            del self._by_flow[entry.owner, entry.session]
        if entry.session is not None:
            of_session = self._by_session[entry.session]
            del of_session[entry.request_id]
            if not of_session:
                del self._by_session[entry.session]

    def _forget(self, owner: str) -> None:
        """An owner that neither waits nor runs has no sessions."""
        if self._owners.is_idle(owner):
            self._sessions.pop(owner, None)
