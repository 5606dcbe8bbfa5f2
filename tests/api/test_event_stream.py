"""The streaming response against a client made of two functions: what is sent when, and who is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Message

from llamaserve.api.disconnect import until_disconnect
from llamaserve.api.sse import EventStreamResponse
from llamaserve.errors import Cancelled, ContextFull, QueueFull
from llamaserve.request import Event, Failed, Finished, FinishReason, TextDelta, Timings

FINISHED = Finished(FinishReason.EOS, None, 1, 1, Timings(0.0, 0.0, 0.0))


class PlainEncoder:
    """Text as it is, ``END`` and ``ERR:`` around it."""

    def encode_text(self, delta: TextDelta) -> bytes:
        return delta.text.encode()

    def encode_end(self, finished: Finished) -> bytes:
        return b"END"

    def encode_error(self, error: Exception) -> bytes:
        return f"ERR:{type(error).__name__}".encode()


class Client:
    """The other end: keeps what was sent, leaves on demand, reads slowly on demand."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()
        self.can_read = asyncio.Event()
        self.can_read.set()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        await self.can_read.wait()

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]

    @property
    def has_status(self) -> bool:
        return any(message["type"] == "http.response.start" for message in self.sent)


class Source:
    """A service the test feeds, or one that refuses."""

    def __init__(self, *, refusal: Exception | None = None) -> None:
        self._refusal = refusal
        self._take: Callable[[Event], None] | None = None
        self.is_closed = False

    def listen(self, take: Callable[[Event], None]) -> Callable[[], None]:
        if self._refusal is not None:
            raise self._refusal
        self._take = take
        return self._close

    def _close(self) -> None:
        self.is_closed = True

    def feed(self, *events: Event) -> None:
        assert self._take is not None
        for event in events:
            self._take(event)


def text(letters: str) -> TextDelta:
    return TextDelta(letters, (1,))


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


Scene = Callable[[Client, Source, "asyncio.Task[None]"], Coroutine[Any, Any, None]]


def play(scene: Scene) -> None:
    """Run a scene beside a response."""

    async def main() -> None:
        client, source = Client(), Source()
        response = EventStreamResponse(source.listen, PlainEncoder())
        task = asyncio.ensure_future(response({"type": "http"}, client.receive, client.send))
        await settle()
        await asyncio.wait_for(scene(client, source, task), timeout=30)
        assert source.is_closed

    asyncio.run(main())


def test_nothing_is_sent_before_the_first_event() -> None:
    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        assert client.sent == []
        source.feed(text("a"))
        await settle()
        assert client.has_status
        assert client.bodies == [b"a"]
        source.feed(FINISHED)
        await task
        assert client.sent[-1] == {"type": "http.response.body", "body": b"END", "more_body": False}

    play(scene)


def test_an_error_before_the_first_event_is_raised_and_nothing_is_sent() -> None:
    """S49"""

    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        source.feed(Failed(QueueFull(3)))
        with pytest.raises(QueueFull):
            await task
        assert client.sent == []

    play(scene)


def test_a_request_that_is_refused_is_raised_and_nothing_is_sent() -> None:
    """S48, S49"""

    async def main() -> None:
        client = Client()
        response = EventStreamResponse(Source(refusal=QueueFull(3)).listen, PlainEncoder())
        with pytest.raises(QueueFull):
            await response({"type": "http"}, client.receive, client.send)
        assert client.sent == []

    asyncio.run(main())


def test_an_error_after_the_first_event_is_the_last_event() -> None:
    """S49"""

    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        source.feed(text("a"))
        await settle()
        source.feed(Failed(ContextFull("x")), text("too late"))
        await task
        assert client.bodies == [b"a", b"ERR:ContextFull"]
        assert client.sent[-1]["more_body"] is False

    play(scene)


def test_an_event_that_cannot_be_encoded_ends_its_stream_with_an_error() -> None:
    """S66: what hands the events over goes on with those of others."""

    class Broken(PlainEncoder):
        def encode_text(self, delta: TextDelta) -> bytes:
            if delta.text == "b":
                raise ValueError("x")
            return super().encode_text(delta)

    async def main() -> None:
        client, source = Client(), Source()
        task = asyncio.ensure_future(
            EventStreamResponse(source.listen, Broken())({"type": "http"}, client.receive, client.send)
        )
        await settle()
        source.feed(text("a"))
        await settle()
        source.feed(text("b"))
        await task
        assert client.bodies == [b"a", b"ERR:ValueError"]
        assert source.is_closed

    asyncio.run(main())


def test_an_error_after_text_that_is_held_back_is_still_an_event() -> None:
    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        source.feed(text(""))
        await settle()
        assert client.has_status
        source.feed(Failed(ContextFull("x")))
        await task
        assert client.bodies == [b"ERR:ContextFull"]

    play(scene)


def test_events_that_wait_for_a_slow_client_go_out_in_one_write() -> None:
    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        client.can_read.clear()
        source.feed(text("a"))
        await settle()
        source.feed(text("b"), text("c"), FINISHED)
        await settle()
        client.can_read.set()
        await task
        assert b"".join(client.bodies) == b"abcEND"
        assert len(client.bodies) < 4

    play(scene)


def test_a_client_that_leaves_closes_the_stream() -> None:
    """S51, S54"""

    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        source.feed(text("a"))
        await settle()
        client.left.set()
        await task
        assert source.is_closed
        assert client.bodies == [b"a"]

    play(scene)


def test_a_client_that_leaves_before_the_first_event_closes_the_stream() -> None:
    """S51, S53"""

    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        client.left.set()
        with pytest.raises(Cancelled):
            await task
        assert source.is_closed
        assert client.sent == []

    play(scene)


def test_a_response_that_is_cancelled_closes_the_stream() -> None:
    """S54"""

    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        source.feed(text("a"))
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert source.is_closed

    play(scene)


def test_work_ends_when_its_client_leaves() -> None:
    """S51"""

    async def main() -> None:
        client = Client()
        has_ended = False

        async def work() -> None:
            nonlocal has_ended
            try:
                await asyncio.sleep(60)
            finally:
                has_ended = True

        task = asyncio.ensure_future(until_disconnect(client.receive, work()))
        await settle()
        client.left.set()
        with pytest.raises(Cancelled):
            await task
        assert has_ended

    asyncio.run(main())


def test_work_that_ends_first_gives_its_result_or_its_error() -> None:
    async def main() -> None:
        client = Client()

        async def work(value: int) -> int:
            await asyncio.sleep(0)
            return 10 // value

        assert await until_disconnect(client.receive, work(5)) == 2
        with pytest.raises(ZeroDivisionError):
            await until_disconnect(client.receive, work(0))

    asyncio.run(main())
