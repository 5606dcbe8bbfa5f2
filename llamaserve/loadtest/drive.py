"""Sends many requests by a rule: a number at a time, each at its time, or all at once. One event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from llamaserve.loadtest.call import DEFAULT_STALL_TIMEOUT, Call
from llamaserve.loadtest.outcome import Outcome
from llamaserve.loadtest.send import new_session, send

OnOutcome = Callable[[Outcome], None]
OnTokens = Callable[[int], None]


async def closed_loop(
    url: str,
    calls: Sequence[Call],
    *,
    concurrency: int,
    stall_timeout: float = DEFAULT_STALL_TIMEOUT,
    headers: Mapping[str, str] | None = None,
    on_outcome: OnOutcome | None = None,
    on_tokens: OnTokens | None = None,
) -> list[Outcome]:
    """Keep ``concurrency`` requests running until all calls are done; outcomes in the order of calls.

    ``on_outcome`` is called with each outcome as it comes, ``on_tokens`` with counts of events with text. Raises
    ValueError for a concurrency below 1 and for a call that is due at a time.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency}: it must be at least 1")
    for index, call in enumerate(calls):
        if call.at is not None:
            raise ValueError(f"call {index} is due at {call.at:g} s: a closed loop sends when a worker is free")
    outcomes: dict[int, Outcome] = {}
    async with new_session(headers) as session:
        sender = _Sender(session, url, stall_timeout, on_outcome, on_tokens)
        waiting = iter(enumerate(calls))

        async def work() -> None:
            for index, call in waiting:
                outcomes[index] = await sender.send(call, None)

        workers = [asyncio.ensure_future(work()) for _ in range(min(concurrency, len(calls)))]
        try:
            await asyncio.gather(*workers)
        finally:
            await _stop(workers)
    return [outcomes[index] for index in range(len(calls))]


async def open_loop(
    url: str,
    calls: Sequence[Call],
    *,
    stall_timeout: float = DEFAULT_STALL_TIMEOUT,
    headers: Mapping[str, str] | None = None,
    on_outcome: OnOutcome | None = None,
    on_tokens: OnTokens | None = None,
) -> list[Outcome]:
    """Send each call at its time, whether or not earlier ones are answered; outcomes in the order of calls.

    A request counts as submitted when it was due, so that a late generator makes its figures worse, not better. Raises
    ValueError for a call without a time.
    """
    due: list[tuple[float, int]] = []
    for index, call in enumerate(calls):
        if call.at is None or call.at < 0:
            raise ValueError(f"call {index} is due at {call.at}: an open loop needs a time of at least 0")
        due.append((call.at, index))
    tasks: dict[int, asyncio.Task[Outcome]] = {}
    async with new_session(headers) as session:
        sender = _Sender(session, url, stall_timeout, on_outcome, on_tokens)
        started = time.perf_counter()
        try:
            for at, index in sorted(due):
                await _sleep_until(started + at)
                tasks[index] = asyncio.ensure_future(sender.send(calls[index], started + at))
            await asyncio.gather(*tasks.values())
        finally:
            await _stop(tasks.values())
    return [tasks[index].result() for index in range(len(calls))]


async def together(
    url: str,
    calls: Sequence[Call],
    *,
    stall_timeout: float = DEFAULT_STALL_TIMEOUT,
    headers: Mapping[str, str] | None = None,
    on_outcome: OnOutcome | None = None,
    on_tokens: OnTokens | None = None,
) -> list[Outcome]:
    """Send all calls at once; outcomes in the order of calls."""
    return await closed_loop(
        url,
        calls,
        concurrency=max(1, len(calls)),
        stall_timeout=stall_timeout,
        headers=headers,
        on_outcome=on_outcome,
        on_tokens=on_tokens,
    )


@dataclass(frozen=True, slots=True)
class _Sender:
    session: aiohttp.ClientSession
    url: str
    stall_timeout: float
    on_outcome: OnOutcome | None
    on_tokens: OnTokens | None

    async def send(self, call: Call, submitted: float | None) -> Outcome:
        outcome = await send(
            self.session,
            self.url,
            call,
            stall_timeout=self.stall_timeout,
            submitted=submitted,
            on_tokens=self.on_tokens,
        )
        if self.on_outcome is not None:
            self.on_outcome(outcome)
        return outcome


async def _sleep_until(moment: float) -> None:
    """Sleep until then, not a little less: event loops round."""
    while (left := moment - time.perf_counter()) > 0:  # noqa: ASYNC110 - it waits for nothing but time
        await asyncio.sleep(left)


async def _stop(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Leave no task running, whatever ended the run."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
