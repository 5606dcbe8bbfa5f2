"""Arguments of calls in a conversation that no template should get."""

from __future__ import annotations

import pytest

from llamaserve.chat.call_arguments import MAX_NESTING, check_call_arguments
from llamaserve.errors import BadRequest


def calls(arguments: object) -> list[dict[str, object]]:
    return [
        {"role": "user"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
    ]


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"]}": ', '{"\\"}": '])
def test_arguments_too_deep_are_refused_with_their_place(opening: str) -> None:
    check_call_arguments(calls(opening * MAX_NESTING))
    with pytest.raises(BadRequest, match="nested more than 63 deep") as caught:
        check_call_arguments(calls(opening * (MAX_NESTING + 1)))
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize("arguments", ['{"a": "' + "[" * 1000 + '"}', "[]" * 1000, "]" * 1000 + "[", {"a": 1}, None, 5])
def test_others_are_left_alone(arguments: object) -> None:
    check_call_arguments(calls(arguments))
    check_call_arguments([{"role": "assistant", "tool_calls": "x"}, {"role": "assistant", "tool_calls": ["x"]}])
