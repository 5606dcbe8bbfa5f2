"""Server-sent events: the framing, and the response that streams the events of requests. Event loop only.

Events are encoded where the service hands them over, and one task sends what has gathered: a token wakes one task
once. The status line goes out as soon as the requests are taken, long before they have slots, and comments follow while
there is nothing else to say, so that no proxy takes the connection for dead. What fails after that is an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llamaserve.api.disconnect import cancel_and_wait, wait_for_disconnect
from llamaserve.api.outbox import Outbox
from llamaserve.api.silence import SilenceTimer
from llamaserve.errors import DeadlineExceeded, LlamaServeError
from llamaserve.request import Event, Finished, Progress, PromptLogprobs, TextDelta

logger = logging.getLogger("llamaserve.api")

DONE_EVENT = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def sse_event(payload: bytes) -> bytes:
    """One event with a one-line payload."""
    return b"data: " + payload + b"\n\n"


class ChoiceEncoder(Protocol):
    """How an API writes the events of one request, which is a choice of the answer."""

    def encode_text(self, delta: TextDelta) -> bytes:
        """Zero or more server-sent events."""

    def encode_progress(self, progress: Progress, time_ms: float) -> bytes:
        """Zero or more events for how far the prompt is, so many milliseconds after it was begun."""

    def note_prompt(self, prompt: PromptLogprobs) -> None:
        """How likely the prompt was; before its first text."""

    def encode_end(self, finished: Finished) -> bytes:
        """The events that end the choice well."""


class StreamEncoder(Protocol):
    """How an API writes a stream."""

    @property
    def choices(self) -> Sequence[ChoiceEncoder]:
        """One for each request."""

    def encode_tail(self, finished: Sequence[Finished]) -> bytes:
        """The events that end the stream when all its choices have ended well."""

    def encode_error(self, error: Exception) -> bytes:
        """The event that ends a stream that failed."""


Take = Callable[[Event], None]
Listen = Callable[[Sequence[Take]], Callable[[], None]]
"""Begins requests, all or none, whose events go to a function each; the result ends them, and may be called twice.
``Service.listen`` of requests."""


def ignore_failure(error: Exception) -> None:
    """An ``on_failure`` for whom nothing follows from it."""


class EventStreamResponse(Response):
    """Streams the events of requests; ends them when the client leaves (S51, S52, S54), when their time is over (K7)
    and when one of them fails.

    ``timeout_s`` counts from the call to the last event, whether the client reads or not. After ``ping_interval_s``
    seconds in which nothing was sent follows a comment; 0 is never. ``on_failure`` learns of the error a stream ended
    with, the log of one that is not ours, under ``name``.

    Raises what ``listen`` raises; nothing was sent then.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        listen: Listen,
        encoder: StreamEncoder,
        *,
        name: str = "",
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
        self._name = name
        self._ping_interval_s = ping_interval_s
        self._timeout_s = timeout_s
        self._on_failure = on_failure
        choices = encoder.choices
        self._choices = choices
        self._outbox = Outbox([choice.encode_text for choice in choices])
        self._wake = asyncio.Event()
        self._is_ping_due = False
        self._progress: dict[int, tuple[Progress, float]] = {}
        """The latest of each choice that nobody has read, and its milliseconds."""
        self._prompt_begun_at: dict[int, float] = {}
        self._finished: dict[int, Finished] = {}
        self._is_over = False
        self._failure: Exception | None = None
        self._leave: Callable[[], None] = _nothing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        self._leave = self._listen([partial(self._take, choice) for choice in range(len(self._choices))])
        deadline = self._start_deadline()
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
            self._leave()
            await cancel_and_wait(gone)

    def _start_deadline(self) -> asyncio.TimerHandle | None:
        timeout_s = self._timeout_s
        if timeout_s is None:
            return None

        def expire() -> None:
            if not self._is_over:
                self._fail(DeadlineExceeded(timeout_s))
                self._wake.set()

        return asyncio.get_running_loop().call_later(timeout_s, expire)

    def _ping(self) -> None:
        self._is_ping_due = True
        self._wake.set()

    def _take(self, choice: int, event: Event) -> None:
        if self._is_over:
            return
        try:
            if isinstance(event, TextDelta):
                if self._progress:
                    self._add_progress(choice)
                self._outbox.add_text(choice, event)
            elif isinstance(event, Progress):
                self._take_progress(choice, event)
            elif isinstance(event, PromptLogprobs):
                self._choices[choice].note_prompt(event)
            elif isinstance(event, Finished):
                self._take_end(choice, event)
            else:
                self._fail(event.error)
        except Exception as error:  # noqa: BLE001 - the writer decides what becomes of it
            self._fail(error)
        self._wake.set()

    def _take_end(self, choice: int, finished: Finished) -> None:
        self._add_progress(choice)
        self._outbox.add_event(partial(self._choices[choice].encode_end, finished))
        self._finished[choice] = finished
        if len(self._finished) == len(self._choices):
            in_order = [self._finished[choice] for choice in range(len(self._choices))]
            self._outbox.add_event(partial(self._encoder.encode_tail, in_order))
            self._is_over = True

    def _take_progress(self, choice: int, progress: Progress) -> None:
        now = asyncio.get_running_loop().time()
        begun_at = self._prompt_begun_at.setdefault(choice, now)
        # Encoded when it is sent: only the latest matters to a client that has not read the one before.
        self._progress[choice] = (progress, 1000 * (now - begun_at))

    def _add_progress(self, choice: int) -> None:
        latest = self._progress.pop(choice, None)
        if latest is not None:
            self._outbox.add_event(partial(self._choices[choice].encode_progress, *latest))

    def _fail(self, error: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._is_over = True
        self._leave()  # now: the writer may be waiting for a client that does not read
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
            for choice in tuple(self._progress):
                self._add_progress(choice)
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
            logger.error("stream %s failed after it began", self._name, exc_info=failure)
        return self._encoder.encode_error(failure)


def _nothing() -> None:
    """Ends what has not begun."""
