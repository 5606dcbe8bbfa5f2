"""Text of a request as it comes, for ``for`` and for ``async for``. Knows no service: it reads the request's events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import TYPE_CHECKING

from llamaserve.completion import Usage
from llamaserve.request import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Progress,
    PromptLogprobs,
    TextDelta,
    Timings,
    TokenLogprob,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class _StreamEnd:
    """How a stream ended."""

    _finished: Finished | None = None
    _collected: tuple[TokenLogprob, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """How likely the tokens of the text given last were, where ``logprobs`` asked."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """How likely the tokens of the prompt were, from the first text on, where ``prompt_logprobs`` asked."""

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the text ended; None before the end."""
        return None if self._finished is None else self._finished.reason

    @property
    def usage(self) -> Usage | None:
        """Token counts; None before the end."""
        return None if self._finished is None else Usage.of(self._finished)

    @property
    def timings(self) -> Timings | None:
        """Seconds; None before the end."""
        return None if self._finished is None else self._finished.timings

    def _text_of(self, event: TextDelta | PromptLogprobs | Progress | Finished) -> str:
        """The text of an event, which may be empty."""
        if isinstance(event, Finished):
            self._finished = event
        elif isinstance(event, PromptLogprobs):
            self.prompt_logprobs = event.tokens
        elif isinstance(event, TextDelta):
            self._collected += event.logprobs
            if event.text:
                self.logprobs, self._collected = self._collected, ()
            return event.text
        return ""


class TextStream(_StreamEnd):
    """Iterator over the text of a request as it comes; closing it, or leaving its ``with`` block, cancels the rest.

    One thread at a time. Iterating raises the request's error, if it ends with one.
    """

    def __init__(self, events: Generator[Event, None, None]) -> None:
        self._events = events

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        while True:
            event = next(self._events)
            if isinstance(event, Failed):
                # The error's traceback refers to this stream and the stream to the request, until a collection.
                self._events.close()
                raise event.error
            if text := self._text_of(event):
                return text

    def close(self) -> None:
        """Cancel what is left (S54). May be called twice."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncTextStream(_StreamEnd):
    """As ``TextStream``, for ``async for`` and ``async with``; one task at a time."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while True:
            event = await anext(self._events)
            if isinstance(event, Failed):
                await self._events.aclose()  # as in ``TextStream``
                raise event.error
            if text := self._text_of(event):
                return text

    async def aclose(self) -> None:
        """Cancel what is left (S54). May be called twice."""
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
