"""Server-sent events: the framing, and the response that streams one request's events. Event loop only.

Events are encoded where the service hands them over, and one task sends what has gathered: a token wakes one task
once. The status line goes out as soon as the request is taken, long before it has a slot, and comments follow while
there is nothing else to say, so that no proxy takes the connection for dead. What fails after that is an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llamaserve.api.disconnect import cancel_and_wait, wait_for_disconnect
from llamaserve.api.outbox import Outbox
from llamaserve.api.silence import SilenceTimer
from llamaserve.errors import DeadlineExceeded, LlamaServeError
from llamaserve.request import Event, Failed, Finished, Progress, TextDelta

logger = logging.getLogger("llamaserve.api")

DONE_EVENT = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def sse_event(payload: bytes) -> bytes:
    """One event with a one-line payload."""
    return b"data: " + payload + b"\n\n"


class EventEncoder(Protocol):
    """How an API writes a request's events."""

    def encode_text(self, delta: TextDelta) -> bytes:
        """Zero or more server-sent events."""

    def encode_progress(self, progress: Progress, time_ms: float) -> bytes:
        """One event for how far the prompt is, so many milliseconds after it was begun."""

    def encode_end(self, finished: Finished) -> bytes:
        """The events that end a stream well."""

    def encode_error(self, error: Exception) -> bytes:
        """The event that ends a stream that failed."""


Listen = Callable[[Callable[[Event], None]], Callable[[], None]]
"""Begins a request whose events go to a function; the result ends it, and may be called twice. ``Service.listen`` of
one request."""


def ignore_failure(error: Exception) -> None:
    """An ``on_failure`` for whom nothing follows from it."""


class EventStreamResponse(Response):
    """Streams a request's events; ends the request when the client leaves (S51, S52, S54) or its time is over (K7).

    ``timeout_s`` counts from the call to the last event, whether the client reads or not. After ``ping_interval_s``
    seconds in which nothing was sent follows a comment; 0 is never. ``on_failure`` learns of the error a stream ended
    with.

    Raises what ``listen`` raises; nothing was sent then.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        listen: Listen,
        encoder: EventEncoder,
        *,
        ping_interval_s: float = 0.0,
        timeout_s: float | None = None,
        on_failure: Callable[[Exception], None] = ignore_failure,
    ) -> None:
        self.status_code = 200
        self.background = None
        # Without a body attribute Starlette writes no content-length.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._listen = listen
        self._encoder = encoder
        self._ping_interval_s = ping_interval_s
        self._timeout_s = timeout_s
        self._on_failure = on_failure
        self._outbox = Outbox(encoder.encode_text)
        self._wake = asyncio.Event()
        self._is_ping_due = False
        self._progress: tuple[Progress, float] | None = None
        """The latest that nobody has read, and its milliseconds."""
        self._prompt_begun_at: float | None = None
        self._is_over = False
        self._failure: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        leave = self._listen(self._take)
        deadline = self._start_deadline(leave)
        silence = SilenceTimer(self._ping_interval_s, self._ping)
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        gone.add_done_callback(lambda _: self._wake.set())
        try:
            await self._write(send, gone, silence)
        except OSError:  # some servers report a client that has left this way
            logger.debug("the client left during a write")
        finally:
            silence.close()
            if deadline is not None:
                deadline.cancel()
            leave()
            await cancel_and_wait(gone)

    def _start_deadline(self, leave: Callable[[], None]) -> asyncio.TimerHandle | None:
        timeout_s = self._timeout_s
        if timeout_s is None:
            return None

        def expire() -> None:
            self._take(Failed(DeadlineExceeded(timeout_s)))
            leave()  # now: the writer may be waiting for a client that does not read

        return asyncio.get_running_loop().call_later(timeout_s, expire)

    def _ping(self) -> None:
        self._is_ping_due = True
        self._wake.set()

    def _take(self, event: Event) -> None:
        if self._is_over:
            return
        try:
            if isinstance(event, Progress):
                self._take_progress(event)
            elif isinstance(event, TextDelta):
                self._add_progress()
                self._outbox.add_text(event)
            elif isinstance(event, Finished):
                self._add_progress()
                self._outbox.add_event(self._encoder.encode_end(event))
                self._is_over = True
            else:
                self._fail(event.error)
        except Exception as error:  # noqa: BLE001 - the writer decides what becomes of it
            self._fail(error)
        self._wake.set()

    def _take_progress(self, progress: Progress) -> None:
        now = asyncio.get_running_loop().time()
        if self._prompt_begun_at is None:
            self._prompt_begun_at = now
        # Encoded when it is sent: only the latest matters to a client that has not read the one before.
        self._progress = (progress, 1000 * (now - self._prompt_begun_at))

    def _add_progress(self) -> None:
        if self._progress is not None:
            (progress, time_ms), self._progress = self._progress, None
            self._outbox.add_event(self._encoder.encode_progress(progress, time_ms))

    def _fail(self, error: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._is_over = True
        self._on_failure(error)

    async def _write(self, send: Send, gone: asyncio.Future[None], silence: SilenceTimer) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while True:
            await self._wake.wait()
            self._wake.clear()
            if gone.done():
                return
            body = self._gather()
            is_over = self._is_over
            if body or is_over:
                await send({"type": "http.response.body", "body": body, "more_body": not is_over})
                silence.note()
            if is_over:
                return

    def _gather(self) -> bytes:
        """What is to be sent now."""
        try:
            self._add_progress()
            body = self._outbox.take()
        except Exception as error:  # noqa: BLE001 - it ends this stream, with an event
            self._fail(error)
            body = self._outbox.take()  # what came before
        if self._failure is not None:
            body += self._encode_failure(self._failure)
        is_ping_due, self._is_ping_due = self._is_ping_due, False
        return body or (KEEP_ALIVE if is_ping_due else b"")

    def _encode_failure(self, failure: Exception) -> bytes:
        if not isinstance(failure, LlamaServeError):
            logger.error("a stream failed after its first event", exc_info=failure)
        return self._encoder.encode_error(failure)
