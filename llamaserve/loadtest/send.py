"""Sends one request and times its answer. One event loop; imports aiohttp."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec

from llamaserve.loadtest.answer import Answer, BadChunk, ErrorEvent
from llamaserve.loadtest.call import DEFAULT_STALL_TIMEOUT, Call
from llamaserve.loadtest.events import Event, EventReader, NotEvents
from llamaserve.loadtest.outcome import Failure, Kind, Outcome

CONNECT_TIMEOUT = 10.0
END_OF_BODY_TIMEOUT = 1.0
"""Seconds the server may take to end its body after [DONE]: closing before it does looks like a client that left."""
ERROR_BODY_BYTES = 1024
SPARE_EVENTS = 1024

# A body that is compressed would come in lumps; what new_session says of connections, the server is told too.
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "text/event-stream",
    "Accept-Encoding": "identity",
    "Connection": "close",
}

_clock = time.perf_counter


def new_session(headers: Mapping[str, str] | None = None) -> aiohttp.ClientSession:
    """A session for ``send``: as many connections as requests, each used once, no proxy, no cookies.

    Used once, because llama-server, for one, closes a connection after a stream although it promised to keep it; a
    request that meets that moment would fail through no fault of the server's.
    """
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, headers=headers, cookie_jar=aiohttp.DummyCookieJar())


async def send(
    session: aiohttp.ClientSession,
    url: str,
    call: Call,
    *,
    stall_timeout: float = DEFAULT_STALL_TIMEOUT,
    submitted: float | None = None,
    on_tokens: Callable[[int], None] | None = None,
) -> Outcome:
    """Send a call to the server at ``url`` (without path) and read its answer; a failing server is an outcome, not an
    exception.

    It ends when the answer does, or when ``stall_timeout`` seconds pass without an event. ``submitted`` is when the
    request was due, now if None. ``on_tokens`` is told how many events with text each read brought.
    """
    body = msgspec.json.encode(_streaming(call.body))
    exchange = _Exchange(session, url.rstrip("/") + call.path, body, call, on_tokens)
    exchange.submitted = exchange.sent = exchange.last_event = _clock()
    if submitted is not None:
        exchange.submitted = submitted
    failure = await _unless_stalled(exchange, stall_timeout)
    return exchange.outcome(failure)


def _streaming(body: Mapping[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options") or {}
    return {**body, "stream": True, "stream_options": {**options, "include_usage": True}}


async def _unless_stalled(exchange: _Exchange, stall_timeout: float) -> Failure | None:
    """Run the exchange as long as events come.

    A task beside the clock, not a timeout around each read: most reads end at once, and comments are no events.
    """
    task = asyncio.ensure_future(exchange.run(min(CONNECT_TIMEOUT, stall_timeout / 2)))
    try:
        while not task.done():
            left = exchange.last_event + stall_timeout - _clock()
            if left <= 0:
                return Failure.because("stalled", f"no event for {stall_timeout:g} s")
            await asyncio.wait({task}, timeout=left)
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


class _Exchange:
    """One request under way; what has come so far outlives the task that reads."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        body: bytes,
        call: Call,
        on_tokens: Callable[[int], None] | None,
    ) -> None:
        self._session = session
        self._url = url
        self._body = body
        self._call = call
        self._on_tokens = on_tokens
        self._reader = EventReader()
        self._answer = Answer()
        self._token_times: list[float] = []
        self._events_left = _most_events(call)
        self.submitted = 0.0
        self.sent = 0.0
        self.last_event = 0.0
        self._finished: float | None = None

    def outcome(self, failure: Failure | None) -> Outcome:
        """What became of it."""
        answer = self._answer
        return Outcome(
            call=self._call,
            submitted=self.submitted,
            sent=self.sent,
            token_times=tuple(self._token_times),
            finished=self._finished or _clock(),
            text=answer.text,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            completion_tokens=answer.completion_tokens,
            failure=failure,
        )

    async def run(self, connect_timeout: float) -> Failure | None:
        """Send and read to the end; why it failed, or None."""
        timeout = aiohttp.ClientTimeout(total=None, connect=connect_timeout)
        try:
            request = self._session.post(
                self._url, data=self._body, headers=_HEADERS, timeout=timeout, allow_redirects=False
            )
            async with request as response:
                try:
                    if response.status != 200:
                        return await _status_failure(response)
                    await self._read(response.content)
                finally:
                    response.close()
        except (aiohttp.ClientError, OSError, ValueError, asyncio.TimeoutError) as error:
            return Failure.because(_kind_of(error), f"{type(error).__name__}: {error}")
        except (NotEvents, BadChunk) as error:
            return Failure.because("malformed", str(error))
        except ErrorEvent as error:
            return Failure.because("error_event", str(error))
        return self._verdict()

    async def _read(self, content: aiohttp.StreamReader) -> None:
        """Read events until the answer is over, is dropped, or is clearly too long."""
        while piece := await content.readany():
            now = _clock()
            self._take(self._reader.feed(piece), now)
            if self._answer.is_done or self._is_dropped or self._is_endless:
                break
        else:
            self._reader.end()
        self._finished = _clock()
        if self._answer.is_done and not content.at_eof():
            with suppress(asyncio.TimeoutError, aiohttp.ClientError):
                await asyncio.wait_for(content.readany(), END_OF_BODY_TIMEOUT)

    def _take(self, events: list[Event], now: float) -> None:
        n_tokens = 0
        try:
            for event in events:
                n_tokens += self._answer.take(event)
        finally:
            self._token_times.extend([now] * n_tokens)
        if events:
            self.last_event = now
        if self._events_left is not None:
            self._events_left -= len(events)
        if n_tokens and self._on_tokens is not None:
            self._on_tokens(n_tokens)

    @property
    def _is_dropped(self) -> bool:
        stop_after = self._call.stop_after
        return stop_after is not None and len(self._token_times) >= stop_after

    @property
    def _is_endless(self) -> bool:
        return self._events_left is not None and self._events_left < 0

    def _verdict(self) -> Failure | None:
        """Why an answer that was read without an error is none, or None."""
        answer, expected = self._answer, self._call.expected_tokens
        if self._is_dropped:
            return None
        if self._is_endless:
            return Failure.because("length", f"still sending after {_most_events(self._call)} events")
        if not answer.is_whole:
            seen = len(self._token_times)
            return Failure.because("closed", f"the stream ended after {seen} events with text, without [DONE]")
        if expected is not None and answer.completion_tokens not in (None, expected):
            got, reason = answer.completion_tokens, answer.finish_reason
            return Failure.because("length", f"asked for {expected} tokens, got {got} (finish_reason {reason})")
        return None


def _most_events(call: Call) -> int | None:
    """More events than this are no answer to the call; None if the call sets no limit.

    Generous, since some servers split a token's text or report progress, but it ends a server that never does.
    """
    limit = call.expected_tokens or call.body.get("max_tokens")
    return 2 * limit + SPARE_EVENTS if isinstance(limit, int) and limit > 0 else None


async def _status_failure(response: aiohttp.ClientResponse) -> Failure:
    body = b""
    while len(body) < ERROR_BODY_BYTES and (piece := await response.content.read(ERROR_BODY_BYTES)):
        body += piece
    return Failure.because("status", f"{response.status}: {body.decode('utf-8', 'replace')}")


def _kind_of(error: Exception) -> Kind:
    """The kind of failure an exception of the HTTP client is."""
    # ValueError: a name or a URL that cannot be. ServerTimeoutError: only connecting has a timeout of the client's.
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError, ValueError)):
        return "unreachable"
    if isinstance(error, aiohttp.ClientResponseError):
        return "malformed"  # no HTTP, or headers beyond the client's limits
    return "closed"
