"""Tools for templates that know none: a system text describes them, and calls have a form of their own. Pure; any
thread.

The form is the one most models that were trained on tools have seen, and the native parser reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from llamaserve.chat.template import Messages

_DESCRIPTION = """# Tools

These functions may be called to help with the user's request, each a JSON object:

{tools}"""
_FORM = """

To call a function, write its name and its arguments as a JSON object between <tool_call> and </tool_call>:

<tool_call>
{"name": "the function's name", "arguments": {"an argument's name": "its value"}}
</tool_call>

Write nothing after a call: its result comes between <tool_response> and </tool_response>."""
_CALL = "<tool_call>\n{call}\n</tool_call>"
_RESULT = "<tool_response>\n{content}\n</tool_response>"


def with_described_tools(messages: Messages, tools: Sequence[Mapping[str, object]], *, has_form: bool) -> Messages:
    """The messages with a system text about the tools, at the end of the first system message if they begin with one.
    ``has_form``: it says how to call them too."""
    shown = "\n".join(json.dumps(_shown(tool), ensure_ascii=False) for tool in tools)
    text = _DESCRIPTION.format(tools=shown) + (_FORM if has_form else "")
    if messages and messages[0].get("role") == "system":
        first = {**messages[0], "content": f"{messages[0].get('content') or ''}\n\n{text}".lstrip()}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _shown(tool: Mapping[str, object]) -> object:
    function = tool.get("function")
    known = ("name", "description", "parameters")
    return {key: function[key] for key in known if key in function} if isinstance(function, Mapping) else tool


def with_written_calls(messages: Messages) -> Messages:
    """The messages with calls as the assistant's content, and results as the user's."""
    written: list[Mapping[str, object]] = []
    results: list[str] = []
    for message in [*messages, {}]:
        if message.get("role") == "tool":
            results.append(_RESULT.format(content=message.get("content") or ""))
            continue
        if results:
            written.append({"role": "user", "content": "\n".join(results)})
            results = []
        if message:
            written.append(_with_written_calls(message))
    return written


def _with_written_calls(message: Mapping[str, object]) -> Mapping[str, object]:
    calls = message.get("tool_calls")
    if not isinstance(calls, Sequence) or not calls:
        return message
    content = message.get("content") or ""
    parts = [str(content)] if content else []
    parts += [_CALL.format(call=_call_json(call)) for call in calls]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": "\n".join(parts)}


def _call_json(call: object) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return "{}"
    arguments = function.get("arguments")
    # Clients send arguments as the text they got; as JSON inside of JSON they would be a string.
    text = arguments if isinstance(arguments, str) and arguments else json.dumps(arguments or {}, ensure_ascii=False)
    return f'{{"name": {json.dumps(function.get("name"), ensure_ascii=False)}, "arguments": {text}}}'
