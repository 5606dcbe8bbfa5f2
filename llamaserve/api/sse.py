"""Server-sent events: the framing, and the response that streams one request's events. Event loop only.

Events are encoded where the service hands them over, and one task sends what has gathered: a token wakes one task
once. While a slow client holds the writer up, events pile into one write. The status line waits for the first event,
so whatever fails before it is a plain HTTP error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llamaserve.api.disconnect import cancel_and_wait, wait_for_disconnect
from llamaserve.errors import Cancelled, LlamaServeError
from llamaserve.request import Event, Finished, TextDelta

logger = logging.getLogger("llamaserve.api")

DONE_EVENT = b"data: [DONE]\n\n"


def sse_event(payload: bytes) -> bytes:
    """One event with a one-line payload."""
    return b"data: " + payload + b"\n\n"


class EventEncoder(Protocol):
    """How an API writes a request's events."""

    def encode_text(self, delta: TextDelta) -> bytes:
        """Zero or more server-sent events."""

    def encode_end(self, finished: Finished) -> bytes:
        """The events that end a stream well."""

    def encode_error(self, error: Exception) -> bytes:
        """The event that ends a stream that failed."""


Listen = Callable[[Callable[[Event], None]], Callable[[], None]]
"""Begins a request whose events go to a function; the result ends it. ``Service.listen`` of one request."""


class EventStreamResponse(Response):
    """Streams a request's events; ends the request when the client leaves (S51, S52, S54).

    Raises what ``listen`` raises, or the error of a Failed event, if nothing was sent yet; Cancelled if the client left
    before that.
    """

    media_type = "text/event-stream"

    def __init__(self, listen: Listen, encoder: EventEncoder) -> None:
        self.status_code = 200
        self.background = None
        # Without a body attribute Starlette writes no content-length.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._listen = listen
        self._encoder = encoder
        self._waiting: list[bytes] = []
        self._wake = asyncio.Event()
        self._is_over = False
        self._failure: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        leave = self._listen(self._take)
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        gone.add_done_callback(lambda _: self._wake.set())
        try:
            await self._write(send, gone)
        except OSError:  # some servers report a client that has left this way
            logger.debug("the client left during a write")
        finally:
            leave()
            await cancel_and_wait(gone)

    def _take(self, event: Event) -> None:
        if self._is_over:
            return
        try:
            if isinstance(event, TextDelta):
                self._waiting.append(self._encoder.encode_text(event))
            elif isinstance(event, Finished):
                self._waiting.append(self._encoder.encode_end(event))
                self._is_over = True
            else:
                self._fail(event.error)
        except Exception as error:  # noqa: BLE001 - the writer decides what becomes of it
            self._fail(error)
        self._wake.set()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._is_over = True

    async def _write(self, send: Send, gone: asyncio.Future[None]) -> None:
        has_started = False
        while True:
            await self._wake.wait()
            self._wake.clear()
            if gone.done():
                if not has_started:
                    raise Cancelled
                return
            is_over = self._is_over
            if not has_started:
                if not self._waiting and self._failure is not None:
                    raise self._failure
                has_started = True
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            body = b"".join(self._waiting)
            self._waiting.clear()
            if is_over and self._failure is not None:
                body += self._encode_failure(self._failure)
            if body or is_over:
                await send({"type": "http.response.body", "body": body, "more_body": not is_over})
            if is_over:
                return

    def _encode_failure(self, failure: Exception) -> bytes:
        if not isinstance(failure, LlamaServeError):
            logger.error("a stream failed after its first event", exc_info=failure)
        return self._encoder.encode_error(failure)
