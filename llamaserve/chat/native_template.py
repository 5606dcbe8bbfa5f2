"""The chat template of a model, rendered by llama.cpp. Any thread; rendering releases the GIL."""

from __future__ import annotations

from functools import partial

import msgspec

from llamaserve import _engine
from llamaserve.chat.answer_parser import AnswerParser
from llamaserve.chat.content_mark import content_mark
from llamaserve.chat.message import ContentParser
from llamaserve.chat.own_tools import with_described_tools, with_written_calls
from llamaserve.chat.system_messages import with_one_system_message
from llamaserve.chat.template import (
    PLAIN_CHAT,
    CallForm,
    CallTrigger,
    ChatOptions,
    Messages,
    RenderedChat,
    ToolSupport,
)
from llamaserve.errors import BadTemplate

_TWO_SYSTEM_MESSAGES = ("first-of-two", "second-of-two")


class NativeChatTemplate:
    """A ChatTemplate. What llama.cpp finds out about it was found out when the native one was made."""

    def __init__(self, template: _engine.ChatTemplate) -> None:
        self._template = template
        self.tool_support = ToolSupport(template.tool_support)
        self.takes_system_messages = self._takes_system_messages()
        """Whether it writes several that come first; else they are one. Some templates refuse them, others leave out
        all but one of them without a word."""

    def render(self, messages: Messages, options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
        """Render a conversation. Raises BadTemplate."""
        if not self.takes_system_messages:
            messages = with_one_system_message(messages)
        return self._render(messages, options)

    def _takes_system_messages(self) -> bool:
        messages = [{"role": "system", "content": text} for text in _TWO_SYSTEM_MESSAGES]
        try:
            prompt = self._render([*messages, {"role": "user", "content": "Hi"}], PLAIN_CHAT).prompt
        except BadTemplate:
            return False
        return all(text in prompt for text in _TWO_SYSTEM_MESSAGES)

    def _render(self, messages: Messages, options: ChatOptions) -> RenderedChat:
        if self.tool_support is ToolSupport.NONE:
            messages = with_written_calls(messages)
        if options.tools and self.tool_support is not ToolSupport.NATIVE:
            has_form = self.tool_support is ToolSupport.NONE
            messages = with_described_tools(messages, options.tools, has_form=has_form)
        parallel_calls = self._template.calls_in_parallel if options.parallel_calls is None else options.parallel_calls
        rendered = self._template.render(
            _json("messages", messages),
            tools=_json("tools", options.tools) if options.tools else b"",
            must_call=options.must_call,
            parallel_calls=parallel_calls,
            add_generation_prompt=options.add_generation_prompt,
            continue_final=options.continue_final_message,
            enable_thinking=options.enable_thinking,
            extract_reasoning=options.extract_reasoning,
            variables={name: _json(name, value) for name, value in options.variables.items()},
        )
        syntax = rendered.syntax
        return RenderedChat(
            prompt=rendered.prompt,
            stops=rendered.stops,
            generation_prompt=rendered.generation_prompt,
            marks=rendered.preserved,
            call_form=_call_form(rendered, options, in_parallel=parallel_calls),
            reasoning_start=rendered.reasoning_start,
            reasoning_end=rendered.reasoning_end,
            content_mark=content_mark(syntax.parser, rendered.generation_prompt)
            if options.wants_content_mark and syntax
            else "",
            make_parser=ContentParser if syntax is None else partial(AnswerParser, syntax),
        )


def _call_form(rendered: _engine.RenderedChat, options: ChatOptions, *, in_parallel: bool) -> CallForm | None:
    if not options.tools or rendered.syntax is None:
        return None
    triggers = tuple(CallTrigger(value, is_pattern) for is_pattern, value in rendered.triggers)
    return CallForm(rendered.syntax.parser, triggers, in_parallel)


def _json(name: str, value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise BadTemplate(f"{name} cannot be written as JSON: {error}") from error
