"""What requests are told: the events of a tick, and the one that ends each request. Scheduler thread only."""

from __future__ import annotations

from llamaserve.errors import DecodeFailed, LlamaServeError
from llamaserve.request import Event, Failed, Finished, Progress
from llamaserve.scheduler.inbox import Inbox
from llamaserve.scheduler.slot import Work
from llamaserve.scheduler.stats import Counters


class Answers:
    """The events since ``take``, in order."""

    def __init__(self, inbox: Inbox, counters: Counters) -> None:
        self._inbox = inbox
        self._counters = counters
        self._events: list[tuple[str, Event]] = []

    def __len__(self) -> int:
        return len(self._events)

    def take(self) -> list[tuple[str, Event]]:
        """The (request id, event) pairs that were not taken yet."""
        events, self._events = self._events, []
        return events

    def say(self, request_id: str, event: Event) -> None:
        """Tell a request something that does not end it."""
        self._events.append((request_id, event))

    def end(self, request_id: str, event: Finished | Failed) -> None:
        """End a request (K15): its id and its place are free."""
        self._events.append((request_id, event))
        self._inbox.leave(request_id)
        self._counters.count_end(event)

    def show_progress(self, work: Work) -> None:
        """Say how far its prompt is, to a request that asked and has no token yet."""
        if work.request.return_progress and not work.is_recomputing and work.last_token_at is None:
            self.say(work.request.request_id, Progress(work.n_prompt, work.n_cached, work.n_computed))


def as_ours(error: Exception) -> LlamaServeError:
    """The error itself if the package knows it, else DecodeFailed with what it says."""
    if isinstance(error, LlamaServeError):
        return error
    return DecodeFailed(f"{type(error).__name__}: {error}")
