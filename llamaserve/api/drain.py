"""The end of a server as its clients see it: who is still served, and what the others are told. Event loop only.

From the first signal on nothing new is computed for anybody; what was taken has some time to end. The listening socket
stays open meanwhile, so that who comes is told instead of turned away by the system.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from llamaserve.api.openai.errors import error_response
from llamaserve.errors import EngineDown

MAX_RETRY_AFTER_S = 60
"""A client that is told to wait for minutes does not come back at all: the openai package stops at 120 s."""


class Draining(EngineDown):
    """The server takes no request any more; after ``retry_after_s`` seconds another may stand in its place."""

    def __init__(self, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__("the server is shutting down and takes no new requests")


class Drain:
    """Whether requests are taken, and how many have not ended yet."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        """Set from ``begin`` on."""
        self.n_open = 0
        """Requests that were taken and whose answer is not sent to its end."""
        self.n_refused = 0
        self._ends_at = math.inf

    def begin(self, timeout_s: float) -> None:
        """Take no request any more; those that are open have so long. Only the first call counts."""
        if not self.is_draining:
            self._ends_at = asyncio.get_running_loop().time() + timeout_s
            self.has_begun.set()

    @property
    def is_draining(self) -> bool:
        """Whether ``begin`` was called."""
        return self.has_begun.is_set()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to wait for."""
        if not self.is_draining:
            return False
        return self.n_open == 0 or asyncio.get_running_loop().time() >= self._ends_at

    def refusal(self) -> Draining:
        """What somebody is told who comes too late: it counts as refused, and comes back when this one is gone."""
        self.n_refused += 1
        left_s = self._ends_at - asyncio.get_running_loop().time()
        return Draining(max(1, min(math.ceil(left_s), MAX_RETRY_AFTER_S)))


def computing_route(path: str, endpoint: Callable[[Request], Awaitable[Response]], drain: Drain) -> Route:
    """A POST route that waits for ``drain`` and is refused by it."""
    return Route(path, endpoint, methods=["POST"], middleware=[Middleware(DrainGate, drain=drain)])


class DrainGate:
    """ASGI middleware of routes that compute: counts their requests, and refuses them while the server drains."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        drain = self._drain
        if drain.is_draining:
            await error_response(drain.refusal())(scope, receive, send)
            return
        drain.n_open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            drain.n_open -= 1
