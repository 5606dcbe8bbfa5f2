"""A request's body must come in time. Event loop only."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyTimeout:
    """ASGI middleware: a body that is not there so many seconds after somebody began to read it is a 408, and the
    connection is closed. What comes after the body, that the client leaves, may be waited for as long as one likes."""

    def __init__(self, app: ASGIApp, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] == "http":
            receive = _TimedBody(receive, self._timeout_s).receive
        await self._app(scope, receive, send)


class _TimedBody:
    """Reads one body."""

    def __init__(self, receive: Receive, timeout_s: float) -> None:
        self._receive = receive
        self._timeout_s = timeout_s
        self._ends_at: float | None = None
        self._is_complete = False

    async def receive(self) -> Message:
        """The next message. Raises HTTPException when the time is over."""
        if self._is_complete:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        if self._ends_at is None:
            self._ends_at = now + self._timeout_s
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._ends_at - now))
        except asyncio.TimeoutError as error:
            detail = f"the request's body was not there within {self._timeout_s:g} s"
            raise HTTPException(408, detail, {"connection": "close"}) from error
        self._is_complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message
