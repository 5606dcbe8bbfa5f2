"""Reads bodies on the event loop, and makes of them what they ask for on threads of its own: decoding, templates and
tokenisers take their time, and so do long answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from llamaserve.api.disconnect import until_disconnect, until_set
from llamaserve.api.drain import Drain
from llamaserve.api.read_body import read_body

ResultT = TypeVar("ResultT")

PREPARING_THREADS = 2
"""Bodies that are decoded, rendered and tokenised at the same time: one large body must not hold up all others, and
many must not take the cores and the memory from the model."""


class BodyThreads:
    """What all routes with a body share. Event loop only."""

    def __init__(self, drain: Drain, max_body_bytes: int) -> None:
        self._drain = drain
        self._max_body_bytes = max_body_bytes
        # Not the loop's pool: what waits for a thread here is dropped when its client leaves, and what runs keeps its
        # thread until it ends, so that there are never more than these.
        self._pool = ThreadPoolExecutor(PREPARING_THREADS, thread_name_prefix="llamaserve-prepare")

    async def prepared(self, request: Request, prepare: Callable[[bytes], ResultT]) -> ResultT:
        """What ``prepare`` makes of the request's body, on a thread; raises what it raises, EngineDown when the server
        begins to drain before the body is there, HTTPException for a body too large, Cancelled when the client leaves.
        """
        body = await until_set(self._drain.has_begun, read_body(request, self._max_body_bytes), self._drain.refusal)
        return await until_disconnect(request.receive, self.run(partial(prepare, body)))

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """What ``work`` gives, on a thread; raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """End the threads; what waits for one is dropped. May be called twice."""
        self._pool.shutdown(wait=False, cancel_futures=True)
