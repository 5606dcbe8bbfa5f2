"""What a chat template does for the rest of the package. Any thread; the native one releases the GIL."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from llamaserve.chat.message import ContentParser, MessageParser

Messages = Sequence[Mapping[str, object]]
"""In OpenAI's shape: role, content, tool_calls, tool_call_id, name, reasoning_content."""


class ToolSupport(enum.Enum):
    """How far a template goes with tools."""

    NATIVE = "native"
    """It describes tools, and writes calls and their results."""
    CALLS_ONLY = "calls_only"
    """It writes calls and their results, but tells the model of no tool: a system text does."""
    NONE = "none"
    """Neither: a system text describes tools and a form of calls, which messages are written in too."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a conversation is rendered and how its answer will be read."""

    tools: tuple[Mapping[str, object], ...] = ()
    """Functions the answer may call, in OpenAI's shape."""
    must_call: bool = False
    """Whether the answer has to call one of them."""
    parallel_calls: bool | None = None
    """Whether it may call several; None = as the template can."""
    add_generation_prompt: bool = True
    """Whether the text ends where the assistant's answer begins."""
    continue_final_message: bool = False
    """Whether the last message is the beginning of the answer."""
    enable_thinking: bool = True
    """Whether the model shall reason, where the template leaves the choice."""
    extract_reasoning: bool = True
    """Whether reasoning is a part of its own; else it is content."""
    wants_content_mark: bool = False
    """Whether the text that content begins with has to be known."""
    variables: Mapping[str, object] = field(default_factory=dict)
    """More for the template, by name: what JSON can say."""


PLAIN_CHAT = ChatOptions()


@dataclass(frozen=True, slots=True)
class CallTrigger:
    """A text that a call begins with."""

    value: str
    is_pattern: bool = False
    """Whether it is a regular expression."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """What tool calls look like."""

    parser: str
    """llama.cpp's parser of an answer, as JSON."""
    triggers: tuple[CallTrigger, ...] = ()
    """What a call begins with that may come or not; none where that is nothing of its own."""
    in_parallel: bool = True
    """Whether an answer may have several calls."""


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as the model wants to read it, and how its answer is read."""

    prompt: str
    """Text to tokenise with special tokens added and parsed."""
    stops: tuple[str, ...]
    """Strings that end an answer, besides the model's own end tokens."""
    generation_prompt: str = ""
    """What of the answer stands at the end of the prompt: the mark of its role, the begun reasoning."""
    marks: tuple[str, ...] = ()
    """Texts that mark parts of an answer. Control tokens among them have to be in its text."""
    call_form: CallForm | None = None
    """Of an answer that may call tools."""
    reasoning_start: str = ""
    reasoning_end: str = ""
    """Texts around the reasoning; empty where the template knows none."""
    content_mark: str = ""
    """The text an answer's content begins behind, if it was asked for and there is one."""
    make_parser: Callable[[], MessageParser] = ContentParser
    """Makes what reads one answer."""

    @property
    def begins_with_reasoning(self) -> bool:
        """Whether the prompt ends inside the reasoning of the answer."""
        start, end = self.reasoning_start, self.reasoning_end
        return bool(start) and self.generation_prompt.rfind(start) > self.generation_prompt.rfind(end)


class ChatTemplate(Protocol):
    """Renders conversations."""

    def render(self, messages: Messages, options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
        """Render a conversation. Raises BadTemplate when the template refuses it."""
