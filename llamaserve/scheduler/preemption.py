"""Requests that gave their place up for others, oldest first, with what they need to go on. Scheduler thread only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llamaserve.engine.port import SuspendedSequence
from llamaserve.scheduler.slot import Work


@dataclass(frozen=True, slots=True)
class Preempted:
    """A request without a slot."""

    work: Work
    suspended: SuspendedSequence | None
    """None: it was in the middle of its prompt and begins again."""

    n_bytes: int
    """RAM the copy of its cells takes; 0 = there is none."""


class PreemptedRequests:
    """Who waits to come back, in the order of their first admission."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._by_id: dict[str, Preempted] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    @property
    def n_bytes_left(self) -> int:
        """RAM that copies of cells may still take."""
        return self._max_bytes - sum(preempted.n_bytes for preempted in self._by_id.values())

    def add(self, preempted: Preempted) -> None:
        """Let a request wait."""
        entries = [*self._by_id.values(), preempted]
        entries.sort(key=lambda entry: entry.work.admitted_order)
        self._by_id = {entry.work.request.request_id: entry for entry in entries}

    def first(self) -> Preempted | None:
        """The oldest."""
        return next(iter(self._by_id.values()), None)

    def pop(self, request_id: str) -> Preempted | None:
        """Take one out; None if it is not here."""
        return self._by_id.pop(request_id, None)

    def clear(self) -> None:
        """Forget all."""
        self._by_id.clear()
