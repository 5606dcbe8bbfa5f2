"""Answers that are not streamed: what ends the wait for them, and whom it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from llamaserve.api.collecting import Broken, collect
from llamaserve.api.sse import Take
from llamaserve.errors import ContextFull, DeadlineExceeded
from llamaserve.request import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Progress,
    PromptLogprobs,
    TextDelta,
    Timings,
)


def ended(n_tokens: int) -> Finished:
    return Finished(FinishReason.EOS, None, 1, n_tokens, Timings(0.0, 0.0, 0.0))


class Source:
    """A service that has its events ready; of two requests unless told otherwise."""

    def __init__(self, *events: tuple[int, Event]) -> None:
        self._events = events
        self.n_closed = 0

    def listen(self, takes: Sequence[Take]) -> Callable[[], None]:
        for choice, event in self._events:
            asyncio.get_running_loop().call_soon(takes[choice], event)
        return self._close

    def _close(self) -> None:
        self.n_closed += 1


def run(source: Source, add: Callable[[int, object], None], *, timeout_s: float | None = None) -> object:
    async def main() -> object:
        return await asyncio.wait_for(collect(source.listen, add, 2, timeout_s=timeout_s), timeout=30)

    return asyncio.run(main())


def test_the_ends_come_in_the_order_of_the_requests_and_all_else_as_it_comes() -> None:
    added: list[tuple[int, object]] = []
    events: list[tuple[int, Event]] = [
        (1, PromptLogprobs(())),
        (1, TextDelta("b", (2,))),
        (0, Progress(1, 0, 1)),
        (0, TextDelta("a", (1,))),
    ]
    source = Source(*events, (1, ended(2)), (0, ended(1)))
    assert run(source, lambda choice, event: added.append((choice, event))) == [ended(1), ended(2)]
    assert added == events
    assert source.n_closed == 1


def test_one_failure_is_the_answers_and_counts_what_was_spent_on_all() -> None:
    error = ContextFull("x")
    source = Source((0, TextDelta("ab", (1, 2))), (0, ended(2)), (1, TextDelta("c", (3,))), (1, Failed(error)))
    assert run(source, lambda choice, event: None) == Broken(error, 3)
    assert source.n_closed == 1


def test_what_cannot_be_added_is_a_failure_and_nothing_more_is_added() -> None:
    error = ValueError("a bug")
    added: list[int] = []

    def add(choice: int, event: object) -> None:
        added.append(choice)
        raise error

    assert run(Source((0, TextDelta("a", (1,))), (1, TextDelta("b", (2,)))), add) == Broken(error, 1)
    assert added == [0]


def test_the_time_limit_ends_the_wait() -> None:
    """K7"""
    source = Source((0, TextDelta("a", (1,))), (0, ended(1)))
    broken = run(source, lambda choice, event: None, timeout_s=0.05)
    assert isinstance(broken, Broken)
    assert isinstance(broken.error, DeadlineExceeded)
    assert (broken.n_tokens, source.n_closed) == (1, 1)


def test_a_wait_that_is_cancelled_ends_the_requests() -> None:
    """S51"""

    async def main() -> None:
        source = Source()
        task = asyncio.ensure_future(collect(source.listen, lambda choice, event: None, 2))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert source.n_closed == 1

    asyncio.run(main())
