"""Whole answers of the Python API, and how the events of a request become one. Any thread; knows no service."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from llamaserve.chat.message import MessageParser
from llamaserve.request import (
    Event,
    Failed,
    Finished,
    FinishReason,
    PromptLogprobs,
    TextDelta,
    Timings,
    TokenLogprob,
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Of the prompt's tokens, those that were not computed for this request."""

    @property
    def total_tokens(self) -> int:
        """Prompt and completion."""
        return self.prompt_tokens + self.completion_tokens

    @classmethod
    def of(cls, finished: Finished) -> Usage:
        """The usage a finished request reports."""
        return cls(finished.prompt_tokens, finished.completion_tokens, finished.cached_tokens)


class CompletedTokens(NamedTuple):
    """What ``complete_tokens`` gives (S46)."""

    text: str
    completion_tokens: tuple[int, ...]
    """Ids of the tokens drawn, without an end-of-generation token."""
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Completion:
    """A continued prompt."""

    text: str
    tokens: tuple[int, ...]
    """Ids of the tokens drawn, those of a stop string too."""
    finish_reason: FinishReason
    stop_sequence: str | None
    """The stop string that ended the text."""
    usage: Usage
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] = ()
    """How likely each of the tokens was, where ``logprobs`` asked."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """How likely each token of the prompt was, where ``prompt_logprobs`` asked."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function the model calls."""

    id: str
    name: str
    arguments: str
    """A JSON object, as the model wrote it; not whole if the answer was cut off."""


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """The model's answer in a chat."""

    content: str
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    role: str = "assistant"
    reasoning: str = ""
    """What the model thought before, where its template knows reasoning."""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """How likely each token of the answer was, where ``logprobs`` asked."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """How likely each token of the rendered conversation was, where ``prompt_logprobs`` asked."""

    @property
    def message(self) -> dict[str, object]:
        """The answer as a message, to append to the conversation."""
        message: dict[str, object] = {"role": self.role, "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message

    @classmethod
    def of(cls, completion: Completion, parser: MessageParser) -> ChatCompletion:
        """The answer in the continuation of a rendered conversation, as its parser reads it."""
        content, reasoning = "", ""
        calls: list[ToolCall] = []
        for delta in (*parser.feed(completion.text), *parser.finish()):
            content += delta.content
            reasoning += delta.reasoning
            for part in delta.tool_calls:
                if part.id is not None and part.name is not None:
                    calls.append(ToolCall(part.id, part.name, part.arguments))
                else:
                    call = calls[part.index]
                    calls[part.index] = replace(call, arguments=call.arguments + part.arguments)
        return cls(
            content,
            completion.finish_reason,
            completion.usage,
            completion.timings,
            reasoning=reasoning,
            tool_calls=tuple(calls),
            logprobs=completion.logprobs,
            prompt_logprobs=completion.prompt_logprobs,
        )


class CompletionBuilder:
    """Adds the events of one request up. One thread."""

    __slots__ = ("_finished", "_logprobs", "_prompt_logprobs", "_texts", "_tokens")

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: tuple[TokenLogprob, ...] = ()
        self._finished: Finished | None = None

    def add(self, event: Event) -> None:
        """Take the next event. Raises the error of a Failed."""
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            self._finished = event
        elif isinstance(event, TextDelta):
            self._texts.append(event.text)
            self._tokens.extend(event.tokens)
            self._logprobs.extend(event.logprobs)
        elif isinstance(event, PromptLogprobs):
            self._prompt_logprobs = event.tokens

    @property
    def completion(self) -> Completion:
        """The whole. Raises RuntimeError before the request is finished."""
        finished = self._finished
        if finished is None:
            raise RuntimeError("the events of the request ended without a terminal event")
        return Completion(
            text="".join(self._texts),
            tokens=tuple(self._tokens),
            finish_reason=finished.reason,
            stop_sequence=finished.stop_sequence,
            usage=Usage.of(finished),
            timings=finished.timings,
            logprobs=tuple(self._logprobs),
            prompt_logprobs=self._prompt_logprobs,
        )
