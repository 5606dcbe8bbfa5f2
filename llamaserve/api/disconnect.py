"""Stops work that nobody waits for any more. Event loop only.

Starlette watches the client of a stream, not the client of a plain answer, so a handler that computes for long must do
it itself (S51).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from llamaserve.errors import Cancelled, LlamaServeError

ResultT = TypeVar("ResultT")


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client is gone. The request body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of ``work``; raises Cancelled, once ``work`` has been cancelled and ended, if the client leaves.

    The request body must have been read.
    """
    return await _until(wait_for_disconnect(receive), work, Cancelled)


async def until_set(
    signal: asyncio.Event, work: Coroutine[Any, Any, ResultT], error: Callable[[], LlamaServeError]
) -> ResultT:
    """The result of ``work``; raises ``error()``, once ``work`` has been cancelled and ended, if the event is set."""
    return await _until(signal.wait(), work, error)


async def _until(
    signal: Coroutine[Any, Any, object], work: Coroutine[Any, Any, ResultT], error: Callable[[], LlamaServeError]
) -> ResultT:
    running = asyncio.ensure_future(work)
    ended = asyncio.ensure_future(signal)
    try:
        await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise error()
        return running.result()
    finally:
        await cancel_and_wait(running, ended)


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and return when all have ended; their results and exceptions are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
