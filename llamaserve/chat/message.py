"""An assistant's message while it is written: text, reasoning and tool calls. Plain values; knows no parser and no JSON
of any API.

A parser turns the text of an answer into these as it comes; one that knows no syntax passes it on as content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A new part of a tool call."""

    index: int
    """Which call of the message it belongs to, from 0."""
    arguments: str = ""
    """What is new of its arguments' JSON."""
    id: str | None = None
    """With the first part of a call, and only there; so is the name."""
    name: str | None = None


@dataclass(frozen=True, slots=True)
class MessageDelta:
    """What is new of a message; empty parts say nothing."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class MessageParser(Protocol):
    """Reads one answer. One thread at a time."""

    def feed(self, text: str) -> Sequence[MessageDelta]:
        """What the next text of the answer adds to the message."""

    def finish(self) -> Sequence[MessageDelta]:
        """What was held back, at the end of the answer."""

    @property
    def has_tool_calls(self) -> bool:
        """Whether the message has a tool call so far."""


class ContentParser:
    """All text is content."""

    __slots__ = ()
    has_tool_calls = False

    def feed(self, text: str) -> Sequence[MessageDelta]:
        """The text."""
        return (MessageDelta(text),) if text else ()

    def finish(self) -> Sequence[MessageDelta]:
        """Nothing is held back."""
        return ()
