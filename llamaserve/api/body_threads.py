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
from llamaserve.errors import QueueFull

ResultT = TypeVar("ResultT")

PREPARING_THREADS = 2
"""Bodies that are decoded, rendered and tokenised at the same time: one large body must not hold up all others, and
many must not take the cores and the memory from the model."""


WAITING_BODIES = 8
"""Bodies of the largest size, or as many more smaller ones, that are prepared or wait for that: others are refused. The
queue bounds what comes after."""


class BodiesFull(QueueFull):
    """As much waits to be prepared as may."""

    def __init__(self, n_bytes: int, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.args = (
            f"the request bodies that wait to be read have {n_bytes} bytes, at most {limit_bytes} may; try again later",
        )


class BodyThreads:
    """What all routes with a body share. Event loop only."""

    def __init__(self, drain: Drain, max_body_bytes: int) -> None:
        self._drain = drain
        self._max_body_bytes = max_body_bytes
        self._n_waiting_bytes = 0
        # Not the loop's pool: what waits for a thread here is dropped when its client leaves, and what runs keeps its
        # thread until it ends, so that there are never more than these.
        self._pool = ThreadPoolExecutor(PREPARING_THREADS, thread_name_prefix="llamaserve-prepare")

    async def prepared(
        self,
        request: Request,
        prepare: Callable[[bytes], ResultT],
        check_room: Callable[[], None] | None = None,
    ) -> ResultT:
        """What ``prepare`` makes of the request's body, on a thread. ``check_room`` may refuse it before that.

        Raises what they raise, EngineDown when the server begins to drain before the body is there, HTTPException for a
        body too large, BodiesFull when too much waits already, Cancelled when the client leaves.
        """
        body = await until_set(self._drain.has_begun, read_body(request, self._max_body_bytes), self._drain.refusal)
        if check_room is not None:
            check_room()
        self._check_bytes(len(body))
        self._n_waiting_bytes += len(body)
        try:
            return await until_disconnect(request.receive, self.run(partial(prepare, body)))
        finally:
            self._n_waiting_bytes -= len(body)

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """What ``work`` gives, on a thread; raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """End the threads; what waits for one is dropped. May be called twice."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _check_bytes(self, n_bytes: int) -> None:
        limit = WAITING_BODIES * self._max_body_bytes
        if self._n_waiting_bytes + n_bytes > limit:
            raise BodiesFull(self._n_waiting_bytes + n_bytes, limit)
