"""From a chat's messages to a prompt as token ids. Preparing threads only: templates and tokenisers block."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from llamaserve.api.openai.body import ChatBody, ChatMessage, ContentPart
from llamaserve.api.openai.tokenizing import tokenize
from llamaserve.chat.boundaries import message_boundaries
from llamaserve.chat.message import ContentParser, MessageParser
from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadRequest, BadTemplate, PromptTooLong

if TYPE_CHECKING:
    from llamaserve.chat.template import ChatTemplate

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles a message may have, and the one its template sees."""


class PromptTokens(NamedTuple):
    """A prompt, and what its template says of it."""

    tokens: tuple[int, ...]
    stops: tuple[str, ...] = ()
    """Strings that end the answer."""
    boundaries: tuple[int, ...] = ()
    """Positions where messages end, if they were asked for."""
    make_parser: Callable[[], MessageParser] = ContentParser
    """Reads the answer; one for each choice."""


def chat_prompt(
    body: ChatBody,
    template: ChatTemplate | None,
    vocab: Vocabulary,
    n_ctx: int,
    *,
    wants_boundaries: bool = False,
) -> PromptTokens:
    """The tokens of a conversation, the stop strings its template adds and, if wanted, where its messages end.

    Raises BadRequest for messages we cannot use, BadTemplate when the template cannot render them, PromptTooLong for a
    text far over the context and, before anything is rendered, for more messages than the context has tokens.
    """
    if template is None:
        raise BadTemplate("the model has no chat template: use /v1/completions")
    # Templates take their time for each message, not for its text, of which they may leave some out. A message is a
    # token at least: a template marks where each begins.
    if len(body.messages) > n_ctx:
        raise PromptTooLong(len(body.messages), n_ctx, is_at_least=True)
    messages = template_messages(body.messages)
    rendered = template.render(messages)
    tokens = tokenize(rendered.prompt, vocab, n_ctx)
    boundaries = message_boundaries(template, messages, vocab, tokens) if wants_boundaries else ()
    return PromptTokens(tokens, rendered.stops, boundaries)


def template_messages(messages: list[ChatMessage]) -> list[dict[str, object]]:
    """The messages as a chat template reads them: role and text. Raises BadRequest naming the message at fault."""
    if not messages:
        raise BadRequest("messages is empty: it must have at least 1 message", "messages")
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: ChatMessage, path: str) -> dict[str, object]:
    role = ROLES.get(message.role)
    if role is None:
        raise BadRequest(
            f"{path}.role is {message.role[:64]!r}: it must be one of {', '.join(sorted(ROLES))}", f"{path}.role"
        )
    for name in ("tool_calls", "function_call"):
        if getattr(message, name):
            raise BadRequest(f"{path}.{name}: this server does not support tool calls", f"{path}.{name}")
    return {"role": role, "content": _text(message, path)}


def _text(message: ChatMessage, path: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    # Several parts are lines of one text, as in llama.cpp's own templates.
    return "\n".join(
        part if isinstance(part, str) else _part_text(part, f"{path}.content[{index}]")
        for index, part in enumerate(content or ())
    )


def _part_text(part: ContentPart, path: str) -> str:
    if part.type != "text":
        raise BadRequest(
            f"{path}.type is {part.type[:64]!r}: this server reads parts of type 'text' only", f"{path}.type"
        )
    if part.text is None:
        raise BadRequest(f"{path}.text: this field is required", f"{path}.text")
    return part.text
