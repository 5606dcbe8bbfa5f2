"""The messages of a body as a chat template reads them. Any thread; knows no template.

Whatever does not fit is a BadRequest that names the place.
"""

from __future__ import annotations

import msgspec

from llamaserve.api.openai.body import ChatMessage, ContentPart, ToolCall
from llamaserve.chat.call_arguments import check_arguments
from llamaserve.errors import BadRequest, shown

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles a message may have, and the one its template sees."""

TemplateMessage = dict[str, object]


def template_messages(messages: list[ChatMessage]) -> list[TemplateMessage]:
    """The messages in the shape templates read. Raises BadRequest naming the message at fault."""
    if not messages:
        raise BadRequest("messages is empty: it must have at least 1 message", "messages")
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: ChatMessage, path: str) -> TemplateMessage:
    role = ROLES.get(message.role)
    if role is None:
        raise BadRequest(
            f"{path}.role is {message.role[:64]!r}: it must be one of {', '.join(sorted(ROLES))}", f"{path}.role"
        )
    if message.function_call is not None:
        raise BadRequest(f"{path}.function_call is not supported: use tool_calls", f"{path}.function_call")
    read: TemplateMessage = {"role": role, "content": _text(message, path)}
    if message.tool_calls:
        if role != "assistant":
            raise BadRequest(f"{path}.tool_calls: only an assistant's message may have them", f"{path}.tool_calls")
        read["tool_calls"] = [
            _template_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ]
    if role == "tool":
        read |= {
            key: value
            for key, value in (("tool_call_id", message.tool_call_id), ("name", message.name))
            if value is not None
        }
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    if role == "assistant" and reasoning:
        read["reasoning_content"] = reasoning
    return read


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
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type != "text":
        raise BadRequest(
            f"{path}.type is {part.type[:64]!r}: this server reads parts of type 'text' only", f"{path}.type"
        )
    if part.text is None:
        raise BadRequest(f"{path}.text: this field is required", f"{path}.text")
    return part.text


def _template_call(call: ToolCall, path: str) -> TemplateMessage:
    if call.type not in (None, "function"):
        raise BadRequest(f"{path}.type is {shown(call.type)}: only 'function' is supported", f"{path}.type")
    if not call.function.name:
        raise BadRequest(f"{path}.function.name is empty", f"{path}.function.name")
    read: TemplateMessage = {
        "type": "function",
        "function": {"name": call.function.name, "arguments": _arguments(call, f"{path}.function.arguments")},
    }
    return read if call.id is None else {**read, "id": call.id}


def _arguments(call: ToolCall, path: str) -> str:
    """The arguments as the text of a JSON object, which templates may take apart."""
    given = call.function.arguments
    try:
        value: object = msgspec.json.decode(given) if isinstance(given, str) and given else given or {}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadRequest(f"{path} is no valid JSON: {error}", path) from error
    if not isinstance(value, dict):
        raise BadRequest(f"{path} is {shown(value)}: it must be a JSON object, as text", path)
    text = given if isinstance(given, str) and given else msgspec.json.encode(value).decode()
    check_arguments(text, path)
    return text
