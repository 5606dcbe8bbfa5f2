"""Tools and tool choices: what is taken, and what is refused by its path."""

from __future__ import annotations

import pytest

from llamaserve.chat.tools import MAX_SCHEMA_DEPTH, MAX_SCHEMA_VALUES, MAX_TOOLS, read_tool_use
from llamaserve.errors import BadRequest


def tool(name: object = "f", **function: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **function}}


def names(choice: object) -> tuple[list[object], bool]:
    use = read_tool_use([tool("a"), tool("b"), tool("c")], choice)
    return [given["function"]["name"] for given in use.tools], use.must_call  # type: ignore[index]


def test_a_tool_is_read_with_all_a_template_may_ask_for() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    use = read_tool_use([tool("a", parameters=schema, strict=True), {"function": {"name": "b-2.c:d"}}], None)
    assert use.tools == (
        {"type": "function", "function": {"name": "a", "description": "", "parameters": schema, "strict": True}},
        {"type": "function", "function": {"name": "b-2.c:d", "description": "", "parameters": {}}},
    )
    assert read_tool_use([tool(parameters={"properties": {}})], None).tools[0]["function"] == {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }
    assert read_tool_use(None, None).tools == read_tool_use([], "auto").tools == ()


def test_a_choice_says_which_tools_and_whether_one_has_to_be_called() -> None:
    assert names(None) == names("auto") == (["a", "b", "c"], False)
    assert names("none") == ([], False)
    assert names("required") == (["a", "b", "c"], True)
    assert names({"type": "function", "function": {"name": "b"}}) == (["b"], True)
    allowed = [{"type": "function", "function": {"name": "c"}}, {"type": "function", "function": {"name": "a"}}]
    assert names({"type": "allowed_tools", "allowed_tools": {"tools": allowed}}) == (["a", "c"], False)
    required = {"mode": "required", "tools": allowed[:1]}
    assert names({"type": "allowed_tools", "allowed_tools": required}) == (["c"], True)


def test_null_means_absent() -> None:
    nulls = {"type": None, "function": {"name": "a", "description": None, "parameters": None, "strict": None}}
    assert read_tool_use([nulls], None) == read_tool_use([{"function": {"name": "a"}}], None)
    read = read_tool_use([tool(parameters={"type": None, "properties": None, "title": "x"})], None).tools[0]
    assert read["function"]["parameters"] == {"type": "object", "title": "x"}  # type: ignore[index]  # a function
    allowed = {"mode": None, "tools": [{"type": None, "function": {"name": "c"}}]}
    assert names({"type": "allowed_tools", "allowed_tools": allowed}) == (["c"], False)


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ("f", "tools"),
        ({"a": 1}, "tools"),
        ([tool(str(index)) for index in range(MAX_TOOLS + 1)], "tools"),
        ([3], "tools[0]"),
        ([tool("a"), {"type": "custom"}], "tools[1].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([tool(None)], "tools[0].function.name"),
        ([tool("")], "tools[0].function.name"),
        ([tool("a b")], "tools[0].function.name"),
        ([tool("x" * 129)], "tools[0].function.name"),
        ([tool("a\n")], "tools[0].function.name"),
        ([tool("a"), tool("a")], "tools[1].function.name"),
        ([tool(description=3)], "tools[0].function.description"),
        ([tool(strict="yes")], "tools[0].function.strict"),
        ([tool(parameters=[])], "tools[0].function.parameters"),
        ([tool(parameters={"type": "array"})], "tools[0].function.parameters.type"),
        ([tool(parameters={"properties": []})], "tools[0].function.parameters.properties"),
        ([tool(parameters=nested(MAX_SCHEMA_DEPTH))], "tools[0].function.parameters"),
        ([tool(parameters={"enum": list(range(MAX_SCHEMA_VALUES))})], "tools"),
    ],
    ids=range(19),
)
def test_tools_that_cannot_be_used_are_refused_by_path(tools: object, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_tool_use(tools, None)
    assert caught.value.param == param
    assert str(caught.value).startswith(param)


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("always", "tool_choice"),
        (3, "tool_choice"),
        ({"type": "web_search"}, "tool_choice.type"),
        ({"type": "function"}, "tool_choice.function"),
        ({"type": "function", "function": {}}, "tool_choice.function.name"),
        ({"type": "function", "function": {"name": "z"}}, "tool_choice.function.name"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "all"}}, "tool_choice.allowed_tools.mode"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": []}}, "tool_choice.allowed_tools.tools"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": [3]}}, "tool_choice.allowed_tools.tools[0]"),
    ],
    ids=range(10),
)
def test_choices_that_cannot_be_had_are_refused_by_path(choice: object, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_tool_use([tool("a")], choice)
    assert caught.value.param == param


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "a"}}], ids=str)
def test_a_call_cannot_be_demanded_without_tools(choice: object) -> None:
    with pytest.raises(BadRequest, match="tool_choice"):
        read_tool_use(None, choice)
