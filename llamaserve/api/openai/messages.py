"""An assistant's message in OpenAI's JSON: whole, and as the deltas of a stream. Any thread."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from llamaserve.chat.message import MessageDelta, ToolCallDelta
from llamaserve.request import Finished, FinishReason


class _Function(msgspec.Struct):
    arguments: str
    name: str | UnsetType = UNSET


class _ToolCallPart(msgspec.Struct):
    """A new part of a tool call; what its first part said is left out of the others."""

    index: int
    function: _Function
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class _Delta(msgspec.Struct):
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[_ToolCallPart] | UnsetType = UNSET


class ToolCall(msgspec.Struct):
    """A whole tool call."""

    id: str
    function: _Function
    type: Literal["function"] = "function"


class Message(msgspec.Struct):
    """A whole message. Reasoning comes under both names that clients look for."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


_encode = msgspec.json.Encoder().encode


def delta_field(delta: MessageDelta) -> bytes:
    """The field ``delta`` of a chunk."""
    reasoning = delta.reasoning or UNSET
    shown = _Delta(
        delta.content or UNSET,
        reasoning,
        reasoning,
        [_part(part) for part in delta.tool_calls] if delta.tool_calls else UNSET,
    )
    return b'"delta":' + _encode(shown)


def _part(part: ToolCallDelta) -> _ToolCallPart:
    is_first = part.id is not None
    return _ToolCallPart(
        part.index,
        _Function(part.arguments, UNSET if part.name is None else part.name),
        UNSET if part.id is None else part.id,
        "function" if is_first else UNSET,
    )


class MessageBuilder:
    """Adds the deltas of a message up. One thread."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _CallBuilder] = {}

    def add(self, delta: MessageDelta) -> None:
        """The next delta."""
        self._content.append(delta.content)
        self._reasoning.append(delta.reasoning)
        for part in delta.tool_calls:
            self._calls.setdefault(part.index, _CallBuilder()).add(part)

    @property
    def message(self) -> Message:
        """The whole; its content is null where there are tool calls only."""
        content = "".join(self._content)
        reasoning = "".join(self._reasoning) or UNSET
        calls = [call.whole for _, call in sorted(self._calls.items())]
        return Message(
            None if calls and not content else content,
            reasoning_content=reasoning,
            reasoning=reasoning,
            tool_calls=calls or UNSET,
        )


class _CallBuilder:
    def __init__(self) -> None:
        self._id = ""
        self._name = ""
        self._arguments: list[str] = []

    def add(self, part: ToolCallDelta) -> None:
        self._id = part.id or self._id
        self._name = part.name or self._name
        self._arguments.append(part.arguments)

    @property
    def whole(self) -> ToolCall:
        return ToolCall(self._id, _Function("".join(self._arguments), self._name))


def chat_finish_reason(finished: Finished, *, has_tool_calls: bool) -> str:
    """The word for why a chat's answer ended: a call that was cut off by its length is not one to make."""
    is_whole = finished.reason in (FinishReason.EOS, FinishReason.STOP_SEQUENCE)
    return "tool_calls" if has_tool_calls and is_whole else finished.reason.openai
