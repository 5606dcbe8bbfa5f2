"""What the arguments of calls in a conversation may be like before a template gets them. Pure; any thread.

They come as text, which no limit on a body's nesting sees, and some templates write them out in a time that grows with
the square of their nesting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from llamaserve.chat.template import Messages
from llamaserve.errors import BadRequest

MAX_NESTING = 63
"""Objects and arrays of a call's arguments within each other."""
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKET = re.compile(r"[\[{\]}]")


def check_call_arguments(messages: Messages) -> None:
    """Raises BadRequest, with the place."""
    for index, message in enumerate(messages):
        calls = message.get("tool_calls")
        for number, call in enumerate(calls if isinstance(calls, Sequence) and not isinstance(calls, str) else ()):
            function = call.get("function") if isinstance(call, Mapping) else None
            arguments = function.get("arguments") if isinstance(function, Mapping) else None
            if isinstance(arguments, str):
                check_arguments(arguments, f"messages[{index}].tool_calls[{number}].function.arguments")


def check_arguments(arguments: str, place: str) -> None:
    """The arguments of one call. Raises BadRequest, with the place."""
    if _nesting(arguments) > MAX_NESTING:
        raise BadRequest(f"{place} is nested more than {MAX_NESTING} deep", place)


def _nesting(text: str) -> int:
    depth = deepest = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest
