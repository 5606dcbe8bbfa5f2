"""Reads answers with the parser of the model's template. One thread at a time; the native parser does the work."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence

from llamaserve import _engine
from llamaserve.chat.message import MessageDelta, ToolCallDelta

_CALL_ID_LETTERS = string.ascii_letters + string.digits
_CALL_ID_LENGTH = 9
"""The templates of some models take no other length."""


class AnswerParser:
    """A MessageParser over the native one. A text that does not fit the template's syntax becomes content."""

    __slots__ = ("_parser",)

    def __init__(self, syntax: _engine.ChatSyntax) -> None:
        self._parser = _engine.ChatParser(syntax)

    def feed(self, text: str) -> Sequence[MessageDelta]:
        """What the text adds: reasoning before content before calls."""
        return _deltas(*self._parser.feed(text))

    def finish(self) -> Sequence[MessageDelta]:
        """What was held back."""
        return _deltas(*self._parser.finish())

    @property
    def has_tool_calls(self) -> bool:
        """Whether a call has begun."""
        return self._parser.has_tool_calls


def _deltas(content: str, reasoning: str, calls: Sequence[tuple[int, str | None, str, str]]) -> Sequence[MessageDelta]:
    if not (content or reasoning or calls):
        return ()
    return (MessageDelta(content, reasoning, tuple(_call_delta(*call) for call in calls)),)


def _call_delta(index: int, name: str | None, own_id: str, arguments: str) -> ToolCallDelta:
    if name is None:
        return ToolCallDelta(index, arguments)
    return ToolCallDelta(index, arguments, own_id or _new_call_id(), name)


def _new_call_id() -> str:
    return "".join(secrets.choice(_CALL_ID_LETTERS) for _ in range(_CALL_ID_LENGTH))
