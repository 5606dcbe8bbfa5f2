"""The JSON Schemas that the arguments of tool calls are held to. Pure; any thread.

Without ``strict`` a function's schema is kept to as far as it can be; with it, what cannot be kept to is refused, with
its place.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import cast

from llamaserve.errors import BadGrammar, shown
from llamaserve.grammar.json_schema import read_schema
from llamaserve.grammar.schema_parts import json_path, parts, referred
from llamaserve.grammar.sources import JSON_SPACE
from llamaserve.grammar.spec import GrammarKind, GrammarSpec

Node = Mapping[str, object]

_LOOKS_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<|\(\?>")
"""What regular expressions here do not know."""
_WHOLE = "whole-function"
"""The name of a function's schema among the definitions of its arguments', for references to elsewhere in it."""
_SHARED = ("$defs", "definitions")
MAX_ARGUMENTS = 2_000
"""Of all functions: a template's parser takes almost a millisecond for each."""
KEPT_SCHEMAS = 128
"""As many as a request may have functions. They are read at several steps, and the next turn of a chat has the same."""


def check_tools(tools: Sequence[Node]) -> None:
    """Refuse what no call could be held to, before anything is rendered. Raises BadGrammar, with the place."""
    n_arguments = 0
    for index, tool in enumerate(tools):
        schema = tool_schema(tool, index)
        n_arguments += len(cast("Node", schema.get("properties") or {})) if isinstance(schema, dict) else 0
    if n_arguments > MAX_ARGUMENTS:
        raise BadGrammar(
            f"tools has functions of {n_arguments} arguments: at most {MAX_ARGUMENTS} are allowed", "tools"
        )


def is_strict(tool: Node) -> bool:
    """Whether the arguments must be kept to their schema."""
    return bool(cast("Node", tool["function"]).get("strict"))


def parameters_place(index: int) -> str:
    """Where the request has the schema of a function."""
    return f"tools[{index}].function.parameters"


def tool_schemas(tools: Sequence[Node], *, only_strict: bool = False) -> Mapping[str, object]:
    """The schemas of functions and of their arguments, by the names llama.cpp gives them; ``only_strict`` leaves the
    others out. Raises BadGrammar, with the place."""
    schemas: dict[str, object] = {}
    for index, tool in enumerate(tools):
        if only_strict and not is_strict(tool):
            continue
        function = cast("Node", tool["function"])
        read = tool_schema(tool, index)
        if not isinstance(read, dict):
            continue
        name = function["name"]
        options = {"whitespace_pattern": JSON_SPACE, "lenient": not is_strict(tool)}
        schemas[f"tool-{name}-schema"] = {**read, "x-guidance": options}
        properties = cast("Node", read.get("properties") or {})
        shared = _definitions(read) if properties else {}
        for argument, part in properties.items():
            if isinstance(part, dict):
                moved = cast("Node", _moved(part)) if _WHOLE in cast("Node", shared.get("$defs", {})) else part
                schemas[f"tool-{name}-arg-{argument}-schema"] = {**moved, **shared, "x-guidance": options}
    return schemas


def strict_arguments(tools: Sequence[Node]) -> Mapping[str, GrammarSpec]:
    """What the arguments of strict functions are held to, by where the request says so."""
    return {
        parameters_place(index): GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(tool_schema(tool, index)))
        for index, tool in enumerate(tools)
        if is_strict(tool)
    }


def tool_schema(tool: Node, index: int) -> object:
    """What the arguments of a function are held to, all of them together. Raises BadGrammar, with the place."""
    given = cast("Node", tool["function"])["parameters"]
    source = json.dumps(given or {"type": "object", "properties": {}, "additionalProperties": False})
    try:
        return _read(source, is_strict=is_strict(tool))
    except BadGrammar as error:
        place = parameters_place(index)
        raise BadGrammar(f"{place}: {error}", f"{place}.{error.param}" if error.param else place) from error


@functools.lru_cache(KEPT_SCHEMAS)
def _read(source: str, *, is_strict: bool) -> object:
    """Nobody changes what it gives. Raises BadGrammar, with the place in the schema."""
    read = read_schema(source)
    if not isinstance(read, dict):
        return read
    _settle_oddities(read, is_strict=is_strict)
    return read if "additionalProperties" in read or not read.get("properties") else _closed(read)


def _closed(schema: Node) -> Node:
    """No arguments but those that are described, where nothing says otherwise."""
    is_simple = not schema.keys() & {"patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if"}
    return {**schema, "additionalProperties": False} if is_simple else schema


# What llguidance refuses, lenient or not.


def _settle_oddities(root: dict[str, object], *, is_strict: bool) -> None:
    """Take out what names nothing or looks around; with ``is_strict`` refuse it."""
    for path, part in parts(root):
        if not isinstance(part, dict):
            continue
        for key, reason in _oddities(part, root):
            if is_strict:
                place = json_path((*path, key))
                raise BadGrammar(f"{reason} (at {place})", place)
            del part[key]


def _oddities(part: Node, root: Node) -> list[tuple[str, str]]:
    """The keywords of a part that no text can be held to, and why."""
    odd: list[tuple[str, str]] = []
    pattern, by_name, pointer = part.get("pattern"), part.get("patternProperties"), part.get("$ref")
    if isinstance(pattern, str) and _LOOKS_AROUND.search(pattern):
        odd.append(("pattern", f"the regular expression {shown(pattern)} looks around or back: that is not supported"))
    if isinstance(by_name, dict) and any(_LOOKS_AROUND.search(name) for name in by_name):
        odd.append(("patternProperties", "a regular expression looks around or back: that is not supported"))
    if isinstance(pointer, str) and not isinstance(referred(root, pointer), (dict, bool)):
        odd.append(("$ref", f"the reference {shown(pointer)} leads nowhere in the schema"))
    return odd


# An argument's schema by itself has to have what it refers to.


def _definitions(schema: Node) -> Node:
    shared = {key: schema[key] for key in _SHARED if key in schema}
    if not any(_leads_elsewhere(part) for _, part in parts(cast("dict[str, object]", schema))):
        return shared
    definitions = cast("Node", _moved(shared.get("$defs", {})))
    return {**cast("Node", _moved(shared)), "$defs": {**definitions, _WHOLE: _moved(schema)}}


def _leads_elsewhere(part: object) -> bool:
    pointer = part.get("$ref") if isinstance(part, dict) else None
    return isinstance(pointer, str) and pointer.partition("/")[2].partition("/")[0] not in _SHARED


def _moved(value: object) -> object:
    """A copy whose references to elsewhere in the function's schema lead there from an argument's."""
    if isinstance(value, list):
        return [_moved(part) for part in value]
    if not isinstance(value, dict):
        return value
    copy = {key: _moved(part) for key, part in value.items()}
    if _leads_elsewhere(copy):
        copy["$ref"] = f"#/$defs/{_WHOLE}{str(copy['$ref'])[1:]}"
    return copy
