"""Chat templates of llama.cpp's collection over a tiny model, and answers to them read in pieces."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llamaserve import _engine
from llamaserve.chat.message import MessageParser
from llamaserve.chat.native_template import NativeChatTemplate
from llamaserve.chat.template import ChatOptions
from llamaserve.constraint import Constraint

TEMPLATES = Path(__file__).resolve().parents[2] / "vendor" / "llama.cpp" / "models" / "templates"
TEMPLATE_NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather to come",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "description": "", "parameters": {}}}
WITH_TOOLS = ChatOptions(tools=(WEATHER, TIME))
MUST_CALL = ChatOptions(tools=(WEATHER, TIME), must_call=True)
HI = [{"role": "user", "content": "Hi"}]


@functools.cache
def template(name: str, model: _engine.Model) -> NativeChatTemplate:
    """A template of llama.cpp's collection."""
    return NativeChatTemplate(_engine.ChatTemplate(model, (TEMPLATES / f"{name}.jinja").read_bytes()))


def inspect(path: Path) -> _engine.Model:
    """A model's vocabulary, without its weights."""
    return _engine.Model.inspect(os.fsencode(path))


@dataclass
class ReadMessage:
    """What the deltas of an answer add up to."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Names and arguments."""
    ids: list[str] = field(default_factory=list)

    @property
    def only_call(self) -> tuple[str, Mapping[str, object]]:
        """The name of the only call, and its arguments."""
        ((name, arguments),) = self.calls
        return name, json.loads(arguments)


def allows_just(constraint: Constraint, tokens: Iterable[int], end: int) -> bool:
    """Whether an answer may be these tokens and the end."""
    state = constraint.begin()
    for token in [*tokens, end]:
        mask = state.mask()
        if mask is not None and not mask[token // 8] >> token % 8 & 1:
            return False
        state.accept(token)
    return True


def read(parser: MessageParser, pieces: Iterable[str]) -> ReadMessage:
    """Feed an answer; checks that ids and names come once, with the first part of their call."""
    message = ReadMessage()
    for piece in (*pieces, None):
        for delta in parser.finish() if piece is None else parser.feed(piece):
            message.content += delta.content
            message.reasoning += delta.reasoning
            for call in delta.tool_calls:
                is_new = call.index == len(message.calls)
                assert is_new == (call.id is not None) == (call.name is not None)
                if call.name is not None and call.id is not None:
                    message.calls.append((call.name, ""))
                    message.ids.append(call.id)
                name, arguments = message.calls[call.index]
                message.calls[call.index] = (name, arguments + call.arguments)
        assert parser.has_tool_calls == bool(message.calls)
    return message
