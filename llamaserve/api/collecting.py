"""Waits for the ends of requests whose answer is not streamed. Event loop only; knows no JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from llamaserve.api.sse import Listen
from llamaserve.errors import DeadlineExceeded
from llamaserve.request import Event, Failed, Finished, Progress, PromptLogprobs, TextDelta

Add = Callable[[int, TextDelta | PromptLogprobs | Progress], None]
"""Takes the next event of a choice."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A request failed after it was admitted, and with it its answer."""

    error: Exception
    n_tokens: int
    """Tokens that had been generated for the answer."""


async def collect(
    listen: Listen, add: Add, n_choices: int, *, timeout_s: float | None = None
) -> Sequence[Finished] | Broken:
    """Hand the events of each request to ``add``; their last events, in the order of the requests.

    A failure, the time limit and a cancellation end all of the requests. Raises what ``listen`` raises.
    """
    collector = _Collector(add, n_choices)
    leave = listen([partial(collector.take, choice) for choice in range(n_choices)])
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.call_later(timeout_s, collector.fail, DeadlineExceeded(timeout_s))
    try:
        await collector.is_over.wait()
    finally:
        if deadline is not None:
            deadline.cancel()
        leave()
    if collector.failure is not None:
        return Broken(collector.failure, collector.n_tokens)
    return [collector.finished[choice] for choice in range(n_choices)]


class _Collector:
    def __init__(self, add: Add, n_choices: int) -> None:
        self._add = add
        self._n_choices = n_choices
        self.finished: dict[int, Finished] = {}
        self.failure: Exception | None = None
        self.n_tokens = 0
        self.is_over = asyncio.Event()

    def take(self, choice: int, event: Event) -> None:
        if self.is_over.is_set():
            return
        if isinstance(event, Failed):
            self.fail(event.error)
        elif isinstance(event, Finished):
            self.finished[choice] = event
            if len(self.finished) == self._n_choices:
                self.is_over.set()
        else:
            self.n_tokens += len(event.tokens) if isinstance(event, TextDelta) else 0
            try:
                self._add(choice, event)
            except Exception as error:  # noqa: BLE001 - it ends this answer, not the hand-over to others
                self.fail(error)

    def fail(self, error: Exception) -> None:
        if not self.is_over.is_set():
            self.failure = error
            self.is_over.set()
