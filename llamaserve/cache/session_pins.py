"""What the last request of each session left, kept longer than other texts. Scheduler thread only."""

from __future__ import annotations

from collections import OrderedDict

from llamaserve.cache.prefix_index import PrefixIndex

Session = tuple[str, str]
"""Scope and name."""


class SessionPins:
    """Which parked sequence is a session's; all of them together keep at most ``most_cells`` from others."""

    def __init__(self, index: PrefixIndex, most_cells: int) -> None:
        self._index = index
        self._most_cells = most_cells
        self._holders: OrderedDict[Session, int] = OrderedDict()
        self._sessions: dict[int, Session] = {}

    def holder_of(self, session: Session) -> int | None:
        """What it left, if that is still there."""
        return self._holders.get(session)

    def session_of(self, holder: int) -> Session | None:
        """Whose it is. Any thread."""
        return self._sessions.get(holder)

    def hand_over(self, session: Session, holder: int | None) -> int | None:
        """The session has left this now, or nothing that can be pinned; what it had left before."""
        before = self._holders.get(session)
        if before is not None:
            self.forget(before)
        if holder is not None and holder not in self._sessions:  # else another session keeps it
            self._holders[session] = holder
            self._sessions[holder] = session
            self._index.pin(holder, True)
            self._limit()
        return before

    def forget(self, holder: int) -> None:
        """It is nobody's any more."""
        session = self._sessions.pop(holder, None)
        if session is not None:
            del self._holders[session]
            if holder in self._index:
                self._index.pin(holder, False)

    def _limit(self) -> None:
        """Those used longest ago are let go; the last one stays."""
        n_pinned = sum(self._index.length(holder) for holder in self._holders.values())
        while n_pinned > self._most_cells and len(self._holders) > 1:
            oldest = next(iter(self._holders.values()))
            n_pinned -= self._index.length(oldest)
            self.forget(oldest)
