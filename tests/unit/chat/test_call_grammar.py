"""The grammar of calls: what of a function's parameters is enforced, and what is refused with its place."""

from __future__ import annotations

import json

import pytest

from llamaserve.chat.call_grammar import call_grammar
from llamaserve.chat.tool_schemas import MAX_ARGUMENTS, check_tools, tool_schemas
from llamaserve.engine.fake_text import FakeVocabulary
from llamaserve.errors import BadGrammar
from llamaserve.grammar.compiler import GrammarCompiler
from llamaserve.grammar.sources import MAX_SOURCE_LENGTH
from llamaserve.grammar.spec import GrammarKind, GrammarSpec
from tests.unit.grammar.walk import takes

PARSER = json.dumps(
    {
        "parsers": [
            {"type": "literal", "literal": "<call>"},
            {"type": "schema", "child": 2, "name": "tool-f-schema", "raw": False},
            {"type": "rule", "name": "json-value", "child": 0, "trigger": False},
            {"type": "sequence", "children": [0, 1]},
            {"type": "rule", "name": "tool-call", "child": 3, "trigger": True},
            {"type": "until", "delimiters": ["<call>"]},
            {"type": "tag", "tag": "content", "child": 5},
            {"type": "sequence", "children": [6, 4]},
        ],
        "rules": {"tool-call": 4, "json-value": 2},
        "root": 7,
    }
)


def grammar(parameters: object, *, must_call: bool = False, strict: bool = False) -> str:
    tool = {"function": {"name": "f", "parameters": parameters, **({"strict": True} if strict else {})}}
    return call_grammar(PARSER, [tool], lambda text: [text], must_call=must_call)


def schema_of(source: str) -> dict[str, object]:
    (line,) = [line for line in source.splitlines() if "%json" in line]
    schema: dict[str, object] = json.loads(line.partition("%json ")[2])
    return schema


def test_a_call_that_may_come_begins_the_grammar_and_one_that_must_has_no_content_before_it() -> None:
    lines = grammar({}).splitlines()
    assert lines[0] == "start: r0"
    assert '("<call>" ' in grammar({})
    assert grammar({}, must_call=True).splitlines()[0] == "start: ((/[ \\t\\r\\n]{1,20}/)? r0)"


def test_arguments_are_held_to_their_schema_and_to_no_others_unless_it_says_so() -> None:
    described = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    schema = schema_of(grammar(described))
    options = schema.pop("x-guidance")
    assert schema == {**described, "additionalProperties": False}
    assert isinstance(options, dict)
    assert options["lenient"] is True
    assert schema_of(grammar(described, strict=True))["x-guidance"]["lenient"] is False  # type: ignore[index]
    assert schema_of(grammar({**described, "additionalProperties": True}))["additionalProperties"] is True
    assert "additionalProperties" not in schema_of(grammar({**described, "anyOf": [{}]}))
    assert schema_of(grammar({}))["additionalProperties"] is False  # a function without arguments


def test_parameters_that_cannot_be_read_are_refused_with_their_place() -> None:
    with pytest.raises(BadGrammar, match=r"^tools\[0\]\.function\.parameters: ") as caught:
        grammar({"type": "object", "properties": {"x": {"x-guidance": {}}}})
    assert caught.value.param == "tools[0].function.parameters.properties.x.x-guidance"


def test_schemas_too_long_for_a_grammar_are_left_out() -> None:
    long = {"type": "object", "properties": {f"argument {index}": {"enum": ["x" * 200]} for index in range(300)}}
    source = grammar({**long, "properties": {**long["properties"]}})  # type: ignore[dict-item]
    assert len(source) < MAX_SOURCE_LENGTH
    assert "argument 7" not in source


def test_schemas_of_strict_functions_are_never_left_out() -> None:
    long = {"type": "object", "properties": {f"argument {index}": {"enum": ["x" * 200]} for index in range(300)}}
    with pytest.raises(BadGrammar, match=f"at most {MAX_SOURCE_LENGTH} are allowed") as caught:
        grammar(long, strict=True)
    assert caught.value.param == "tools"
    tools = [
        {"function": {"name": "f", "parameters": {"type": "object", "properties": {"kept": {}}}, "strict": True}},
        {"function": {"name": "g", "parameters": long}},
    ]
    source = call_grammar(PARSER, tools, lambda text: [text], must_call=False)
    assert '"kept"' in source


ODD = {
    "look-around": ({"type": "string", "pattern": "^(?!x)[a-z]+$"}, "pattern", {"type": "string"}),
    "back-reference": ({"pattern": r"(a)\1"}, "pattern", {}),
    "names": ({"patternProperties": {"(?<=a)b": {}}}, "patternProperties", {}),
    "nowhere": ({"$ref": "#/properties/zz"}, "$ref", {}),
    "elsewhere": ({"$ref": "https://example.com/x"}, "$ref", {}),
}


@pytest.mark.parametrize("name", ODD)
def test_what_cannot_be_enforced_is_left_out_and_with_strict_refused_with_its_place(name: str) -> None:
    part, key, kept = ODD[name]
    parameters = {"type": "object", "properties": {"x": part, "y": {"type": "integer"}}}
    properties = schema_of(grammar(parameters))["properties"]
    assert properties == {"x": kept, "y": {"type": "integer"}}
    with pytest.raises(BadGrammar) as caught:
        grammar(parameters, strict=True)
    assert caught.value.param == f"tools[0].function.parameters.properties.x.{key}"


def test_an_arguments_schema_has_what_it_refers_to() -> None:
    parameters = {
        "type": "object",
        "properties": {"x": {"$ref": "#/properties/y"}, "y": {"type": "integer"}, "z": {"$ref": "#/$defs/d"}},
        "$defs": {"d": {"items": {"$ref": "#"}}},
    }
    schemas = tool_schemas([{"function": {"name": "f", "parameters": parameters}}])
    compiler = GrammarCompiler(FakeVocabulary())
    for argument, right, wrong in (("x", b"5", b'"a"'), ("y", b"5", b"{}"), ("z", b'[{"x": 5}]', b'[{"x": "a"}]')):
        schema = json.dumps(schemas[f"tool-f-arg-{argument}-schema"])
        constraint = compiler.compile(GrammarSpec(GrammarKind.LARK, f"start: %json {schema}"))
        assert takes(constraint, right), argument
        assert not takes(constraint, wrong), argument
    compiler.close()


def test_functions_of_very_many_arguments_are_refused() -> None:
    properties = {f"p{index}": {} for index in range(MAX_ARGUMENTS // 10)}
    tools = [{"function": {"name": f"f{index}", "parameters": {"properties": properties}}} for index in range(11)]
    check_tools(tools[:10])
    with pytest.raises(BadGrammar, match="functions of 2200 arguments: at most 2000"):
        check_tools(tools)


def test_control_tokens_are_tokens() -> None:
    tool = {"function": {"name": "f", "parameters": {}}}
    source = call_grammar(PARSER, [tool], lambda text: [7] if text == "<call>" else [text], must_call=False)
    assert "<[7]>" in source
    assert '"<call>"' not in source
