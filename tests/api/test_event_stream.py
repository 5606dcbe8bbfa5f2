"""The streaming response against a client made of two functions: what is sent when, and who is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from starlette.types import Message

from llamaserve.api.disconnect import until_disconnect
from llamaserve.api.outbox import EVENT_BYTES
from llamaserve.api.sse import KEEP_ALIVE, ChoiceEncoder, EventStreamResponse, Take
from llamaserve.errors import Cancelled, ContextFull, DeadlineExceeded, QueueFull
from llamaserve.request import Event, Failed, Finished, FinishReason, Progress, PromptLogprobs, TextDelta, Timings

FINISHED = Finished(FinishReason.EOS, None, 1, 1, Timings(0.0, 0.0, 0.0))


class PlainEncoder:
    """Text as it is, ``END`` and ``ERR:`` around it; one choice, which is the stream."""

    @property
    def choices(self) -> Sequence[ChoiceEncoder]:
        return (self,)

    def note_prompt(self, prompt: PromptLogprobs) -> None:
        """Nothing shows it."""

    def encode_tail(self, finished: Sequence[Finished]) -> bytes:
        return b""

    def encode_text(self, delta: TextDelta) -> bytes:
        return delta.text.encode()

    def encode_progress(self, progress: Progress, time_ms: float) -> bytes:
        return f"{progress.computed}/{progress.total} after {time_ms >= 0} ".encode()

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
        self._takes: Sequence[Take] = ()
        self.is_closed = False

    def listen(self, takes: Sequence[Take]) -> Callable[[], None]:
        if self._refusal is not None:
            raise self._refusal
        self._takes = takes
        return self._close

    def _close(self) -> None:
        self.is_closed = True

    def feed(self, *events: Event, choice: int = 0) -> None:
        for event in events:
            self._takes[choice](event)


def text(letters: str) -> TextDelta:
    return TextDelta(letters, (1,))


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


Scene = Callable[[Client, Source, "asyncio.Task[None]"], Coroutine[Any, Any, None]]


def play(scene: Scene, **options: Any) -> None:
    """Run a scene beside a response."""

    async def main() -> None:
        client, source = Client(), Source()
        response = EventStreamResponse(source.listen, PlainEncoder(), **options)
        task = asyncio.ensure_future(response({"type": "http"}, client.receive, client.send))
        await settle()
        await asyncio.wait_for(scene(client, source, task), timeout=30)
        assert source.is_closed

    asyncio.run(main())


def test_the_status_line_is_sent_at_once_and_text_when_it_comes() -> None:
    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        assert client.has_status
        assert client.bodies == []
        source.feed(text("a"))
        await settle()
        assert client.bodies == [b"a"]
        source.feed(FINISHED)
        await task
        assert client.sent[-1] == {"type": "http.response.body", "body": b"END", "more_body": False}

    play(scene)


def test_an_error_before_the_first_text_is_the_only_event() -> None:
    """S49"""

    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        source.feed(Failed(ContextFull("x")))
        await task
        assert client.bodies == [b"ERR:ContextFull"]
        assert client.sent[-1]["more_body"] is False

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


def test_what_waits_for_a_client_that_does_not_read_is_bounded_by_its_text() -> None:
    """A chunk is a few hundred bytes for a few letters: beyond some of them only the letters are kept."""
    n_tokens, n_around = 100_000, 300

    class Wordy(PlainEncoder):
        def encode_text(self, delta: TextDelta) -> bytes:
            return b"<" * n_around + delta.text.encode()

    async def main() -> None:
        client, source = Client(), Source()
        response = EventStreamResponse(source.listen, Wordy())
        task = asyncio.ensure_future(response({"type": "http"}, client.receive, client.send))
        await settle()
        client.can_read.clear()
        source.feed(text("first"))
        await settle()
        for number in range(n_tokens):
            source.feed(text(f"{number % 10}"))
        source.feed(FINISHED)
        client.can_read.set()
        await task
        sent = b"".join(client.bodies)
        assert sent.replace(b"<", b"") == b"first" + b"0123456789" * (n_tokens // 10) + b"END"
        assert len(sent) < n_tokens + EVENT_BYTES + 3 * n_around

    asyncio.run(main())


def test_an_error_comes_after_the_text_that_waits_for_a_slow_client() -> None:
    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        client.can_read.clear()
        source.feed(text("first"))
        await settle()
        source.feed(text("-" * EVENT_BYTES), text("held "), text("back"), Failed(ContextFull("x")))
        client.can_read.set()
        await task
        assert b"".join(client.bodies) == b"first" + b"-" * EVENT_BYTES + b"held back" + b"ERR:ContextFull"

    play(scene)


def test_text_that_cannot_be_encoded_when_its_turn_comes_ends_the_stream_with_an_error() -> None:
    class Broken(PlainEncoder):
        def encode_text(self, delta: TextDelta) -> bytes:
            if "bad" in delta.text:
                raise ValueError("x")
            return super().encode_text(delta)

    async def main() -> None:
        client, source = Client(), Source()
        failures: list[Exception] = []
        response = EventStreamResponse(source.listen, Broken(), on_failure=failures.append)
        task = asyncio.ensure_future(response({"type": "http"}, client.receive, client.send))
        await settle()
        client.can_read.clear()
        source.feed(text("a"))
        await settle()
        source.feed(text("b" * EVENT_BYTES), text("bad"))
        client.can_read.set()
        await task
        assert b"".join(client.bodies) == b"a" + b"b" * EVENT_BYTES + b"ERR:ValueError"
        assert [type(error) for error in failures] == [ValueError]

    asyncio.run(main())


def test_a_silent_stream_says_that_it_lives_and_one_that_speaks_does_not() -> None:
    interval_s = 0.05

    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        await asyncio.sleep(4.5 * interval_s)
        n_silent = len(client.bodies)
        assert 2 <= n_silent <= 4
        assert set(client.bodies) == {KEEP_ALIVE}
        for _ in range(20):
            source.feed(text("a"))
            await asyncio.sleep(interval_s / 5)
        assert set(client.bodies[n_silent:]) == {b"a"}
        await asyncio.sleep(2.5 * interval_s)
        assert client.bodies[-1] == KEEP_ALIVE
        source.feed(FINISHED)
        await task
        n_sent = len(client.bodies)
        await asyncio.sleep(2 * interval_s)
        assert len(client.bodies) == n_sent

    play(scene, ping_interval_s=interval_s)


def test_comments_do_not_gather_while_a_client_does_not_read() -> None:
    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        client.can_read.clear()
        source.feed(text("a"))
        await asyncio.sleep(0.2)
        client.can_read.set()
        source.feed(FINISHED)
        await task
        assert b"".join(client.bodies) == b"aEND"

    play(scene, ping_interval_s=0.01)


def test_a_stream_whose_time_is_over_ends_with_an_error() -> None:
    """K7"""
    failures: list[Exception] = []

    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        source.feed(text("a"))
        await task
        assert client.bodies == [b"a", b"ERR:DeadlineExceeded"]
        assert source.is_closed
        assert [type(error) for error in failures] == [DeadlineExceeded]

    play(scene, timeout_s=0.05, on_failure=failures.append)


def test_a_request_whose_time_is_over_ends_also_while_its_client_does_not_read() -> None:
    """K7: its slot is not the client's to keep."""

    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        client.can_read.clear()
        source.feed(text("a"))
        await asyncio.sleep(0.1)
        assert source.is_closed
        assert not task.done()
        client.can_read.set()
        await task
        assert client.bodies == [b"a", b"ERR:DeadlineExceeded"]

    play(scene, timeout_s=0.05)


def test_a_stream_that_ends_in_time_has_no_deadline_left() -> None:
    failures: list[Exception] = []

    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        source.feed(FINISHED)
        await task
        await asyncio.sleep(0.1)
        assert client.bodies == [b"END"]
        assert failures == []

    play(scene, timeout_s=0.05, on_failure=failures.append)


def test_progress_comes_before_the_text_and_of_what_waits_only_the_latest() -> None:
    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        source.feed(Progress(9, 0, 1))
        await settle()
        client.can_read.clear()
        source.feed(Progress(9, 0, 2))
        await settle()
        source.feed(Progress(9, 0, 3), Progress(9, 0, 9), text("a"), FINISHED)
        client.can_read.set()
        await task
        assert client.bodies == [b"1/9 after True ", b"2/9 after True ", b"9/9 after True aEND"]

    play(scene)


class SeveralChoices(PlainEncoder):
    """Each with its number before its text, and ``TAIL`` when all have ended."""

    def __init__(self, n_choices: int) -> None:
        self._choices = [NumberedChoice(number) for number in range(n_choices)]

    @property
    def choices(self) -> Sequence[ChoiceEncoder]:
        return self._choices

    def encode_tail(self, finished: Sequence[Finished]) -> bytes:
        return b"TAIL" + b"".join(b"%d" % end.completion_tokens for end in finished)


class NumberedChoice(PlainEncoder):
    def __init__(self, number: int) -> None:
        self._number = number
        self.n_prompts = 0

    def note_prompt(self, prompt: PromptLogprobs) -> None:
        self.n_prompts += 1

    def encode_text(self, delta: TextDelta) -> bytes:
        return f"{self._number}:{delta.text} ".encode()

    def encode_progress(self, progress: Progress, time_ms: float) -> bytes:
        return f"{self._number}:{progress.computed}/{progress.total} ".encode()

    def encode_end(self, finished: Finished) -> bytes:
        return f"{self._number}:END ".encode()


def play_several(scene: Scene, n_choices: int, **options: Any) -> None:
    """Run a scene beside a response with several choices."""

    async def main() -> None:
        client, source = Client(), Source()
        response = EventStreamResponse(source.listen, SeveralChoices(n_choices), **options)
        task = asyncio.ensure_future(response({"type": "http"}, client.receive, client.send))
        await settle()
        await asyncio.wait_for(scene(client, source, task), timeout=30)
        assert source.is_closed

    asyncio.run(main())


def ended(n_tokens: int) -> Finished:
    return Finished(FinishReason.EOS, None, 1, n_tokens, Timings(0.0, 0.0, 0.0))


def test_a_stream_of_several_choices_ends_when_the_last_of_them_has() -> None:
    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        source.feed(text("a"), choice=1)
        source.feed(text("b"), ended(1), choice=0)
        await settle()
        assert b"".join(client.bodies) == b"1:a 0:b 0:END "
        assert client.sent[-1]["more_body"] is True
        source.feed(text("c"), ended(2), choice=1)
        await task
        assert b"".join(client.bodies) == b"1:a 0:b 0:END 1:c 1:END TAIL12"

    play_several(scene, 2)


def test_one_choice_that_fails_ends_them_all_even_while_the_client_does_not_read() -> None:
    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        client.can_read.clear()
        source.feed(text("a"), choice=0)
        await settle()
        source.feed(Failed(ContextFull("x")), choice=1)
        assert source.is_closed
        source.feed(text("late"), FINISHED, choice=0)
        client.can_read.set()
        await task
        assert b"".join(client.bodies) == b"0:a ERR:ContextFull"

    play_several(scene, 3)


def test_text_that_waits_for_a_slow_client_becomes_one_event_a_choice_before_its_end() -> None:
    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        client.can_read.clear()
        source.feed(text("first"), choice=0)
        await settle()
        source.feed(text("-" * EVENT_BYTES), choice=0)
        for letter in "abc":
            source.feed(text(letter), choice=1)
            source.feed(text(letter.upper()), choice=0)
        source.feed(ended(1), choice=1)
        source.feed(text("D"), ended(2), choice=0)
        client.can_read.set()
        await task
        sent = b"".join(client.bodies).replace(b"-", b"")
        assert sent == b"0:first 0: 1:abc 0:ABC 1:END 0:D 0:END TAIL21"

    play_several(scene, 2)


def test_progress_is_each_choices_own_and_comes_before_its_text() -> None:
    async def scene(client: Client, source: Source, task: asyncio.Task[None]) -> None:
        client.can_read.clear()
        source.feed(text("x"), choice=0)
        await settle()
        source.feed(Progress(9, 0, 1), choice=0)
        source.feed(Progress(9, 0, 5), Progress(9, 0, 6), choice=1)
        source.feed(text("a"), choice=0)
        source.feed(PromptLogprobs(()), ended(1), choice=1)
        source.feed(ended(1), choice=0)
        client.can_read.set()
        await task
        assert b"".join(client.bodies) == b"0:x 0:1/9 0:a 1:6/9 1:END 0:END TAIL11"

    play_several(scene, 2)


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
        await task
        assert source.is_closed
        assert client.bodies == []

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
