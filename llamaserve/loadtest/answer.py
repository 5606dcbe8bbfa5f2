"""What the events of one streamed answer say. Pure; one object a request."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from llamaserve.loadtest.events import Event

DONE = b"[DONE]"


class ErrorEvent(Exception):
    """The server said in the stream that the request failed."""


class BadChunk(Exception):
    """An event's data is no chunk of a completion."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""Tokens; a server that counts more is broken, and sums of its numbers would be too."""


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class Answer:
    """Gathers text, token counts and the end of one answer."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.finish_reason: str | None = None
        self.is_done = False
        """``[DONE]`` has come."""

    @property
    def text(self) -> str:
        """Everything the model wrote, its reasoning included."""
        return "".join(self._pieces)

    @property
    def is_whole(self) -> bool:
        """Whether the server said that this is the end."""
        return self.is_done or self.finish_reason is not None

    def take(self, event: Event) -> bool:
        """Take one event; whether it carried anything the model wrote. Raises ErrorEvent, BadChunk."""
        if event.data == DONE:
            self.is_done = True
            return False
        if event.name == b"error":
            raise ErrorEvent(event.data.decode("utf-8", "replace"))
        try:
            chunk = _decode_chunk(event.data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            quoted = event.data[:120].decode("utf-8", "replace")
            raise BadChunk(f"{error}: {quoted!r}") from error
        if chunk.error is not None:
            raise ErrorEvent(msgspec.json.encode(chunk.error).decode())
        if chunk.usage is not None:
            self._take_usage(chunk.usage)
        return sum(self._take_choice(choice) for choice in chunk.choices or ()) > 0

    def _take_choice(self, choice: _Choice) -> bool:
        self.finish_reason = choice.finish_reason or self.finish_reason
        n_pieces = len(self._pieces)
        if choice.text:
            self._pieces.append(choice.text)
        delta = choice.delta
        if delta is None:
            return len(self._pieces) > n_pieces
        # "reasoning" and "reasoning_content" are two servers' names for one thing; some send both.
        for text in (delta.reasoning_content or delta.reasoning, delta.content):
            if text:
                self._pieces.append(text)
        return len(self._pieces) > n_pieces or bool(delta.tool_calls)

    def _take_usage(self, usage: _Usage) -> None:
        self.prompt_tokens = usage.prompt_tokens
        self.completion_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens
