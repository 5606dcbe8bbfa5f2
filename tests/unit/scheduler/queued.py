"""Requests as the admission queue sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llamaserve.request import Lane
from llamaserve.scheduler.admission_queue import AdmissionQueue


@dataclass(frozen=True, slots=True)
class Queued:
    """A request that waits."""

    request_id: str
    owner: str = ""
    lane: Lane = Lane.NORMAL
    session: str | None = None
    n_tokens: int = 10
    max_tokens: int | None = 10
    deadline: float | None = None


Queue = AdmissionQueue[Queued]


def queue_of(*items: Queued, **options: object) -> Queue:
    queue: Queue = AdmissionQueue(**options)  # type: ignore[arg-type]  # the caller's options have the right types
    for item in items:
        queue.push(item)
    return queue


def end(queue: Queue, item: Queued) -> None:
    """It ran, and cost what was expected of it."""
    queue.settle(item.request_id, n_computed=item.n_tokens, n_generated=item.max_tokens or 0)


def popped(queue: Queue) -> Iterator[Queued]:
    """Everybody in turn; each ends before the next is popped."""
    while (item := queue.pop()) is not None:
        end(queue, item)
        yield item


def ids(queue: Queue) -> list[str]:
    """The rest, in the order in which it is served."""
    return [item.request_id for item in popped(queue)]
