"""Tools and the choice among them, as OpenAI's API has them, checked. Pure; any thread.

Whatever does not fit is a BadRequest that names the place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from llamaserve.errors import BadRequest, shown

MAX_TOOLS = 128
MAX_SCHEMA_DEPTH = 64
"""Objects and arrays of a function's parameters within each other."""
MAX_SCHEMA_VALUES = 10_000
"""Values of all functions' parameters."""
_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")
_NAME_LIMIT = "1 to 128 letters, digits, underscores, dots, colons and dashes"
_CHOICES = ("none", "auto", "required")

Tool = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions an answer may call."""

    tools: tuple[Tool, ...] = ()
    """As a template reads them: type and function, which has name, description and parameters."""
    must_call: bool = False
    """Whether it has to call one."""
    is_named: bool = False
    """Whether that one was named: it is called once."""


def read_tool_use(tools: object, choice: object) -> ToolUse:
    """From the fields ``tools`` and ``tool_choice``; None is an absent field.

    Raises BadRequest.
    """
    known = _read_tools(tools)
    names = [str(cast("Tool", tool["function"])["name"]) for tool in known]
    allowed, must_call = _read_choice(choice, names)
    if must_call and not known:
        raise BadRequest(f"tool_choice is {shown(choice)}: there are no tools to call", "tool_choice")
    chosen = tuple(tool for tool, name in zip(known, names, strict=True) if name in allowed)
    return ToolUse(chosen, must_call, is_named=isinstance(choice, Mapping) and choice.get("type") == "function")


def _read_tools(tools: object) -> Sequence[Tool]:
    if tools is None:
        return ()
    if isinstance(tools, (str, bytes)) or not isinstance(tools, Sequence):
        raise BadRequest(f"tools is {shown(tools)}: it must be an array of tools", "tools")
    if len(tools) > MAX_TOOLS:
        raise BadRequest(f"tools has {len(tools)} tools: at most {MAX_TOOLS} are allowed", "tools")
    read = [_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    names: set[object] = set()
    n_values = 0
    for index, tool in enumerate(read):
        function = cast("Tool", tool["function"])
        name = function["name"]
        if name in names:
            path = f"tools[{index}].function.name"
            raise BadRequest(f"{path} is {shown(name)}: another tool has it", path)
        names.add(name)
        n_values += _count_values(function["parameters"], f"tools[{index}].function.parameters", 1)
    if n_values > MAX_SCHEMA_VALUES:
        raise BadRequest(
            f"tools has {n_values} values in its functions' parameters: at most {MAX_SCHEMA_VALUES} are allowed",
            "tools",
        )
    return read


def _read_tool(tool: object, path: str) -> Tool:
    fields = _object(tool, path)
    kind = fields.get("type")
    if kind not in (None, "function"):
        raise BadRequest(f"{path}.type is {shown(kind)}: only 'function' is supported", f"{path}.type")
    function = _object(fields.get("function"), f"{path}.function")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest(f"{path}.function.name is {shown(name)}: it must be {_NAME_LIMIT}", f"{path}.function.name")
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise BadRequest(
            f"{path}.function.description is {shown(description)}: it must be a string", f"{path}.function.description"
        )
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise BadRequest(
            f"{path}.function.strict is {shown(strict)}: it must be true or false", f"{path}.function.strict"
        )
    parameters = function.get("parameters")
    shape = {} if parameters is None else _parameters(parameters, f"{path}.function.parameters")
    read: dict[str, object] = {"name": name, "description": description or "", "parameters": shape}
    return {"type": "function", "function": {**read, "strict": True} if strict else read}


def _parameters(parameters: object, path: str) -> Mapping[str, object]:
    given = _object(parameters, path)
    schema = {name: value for name, value in given.items() if value is not None or name not in ("type", "properties")}
    kind = schema.get("type", "object")
    if kind != "object":
        raise BadRequest(f"{path}.type is {shown(kind)}: a function's parameters must be an 'object'", f"{path}.type")
    if "properties" in schema:
        _object(schema["properties"], f"{path}.properties")
    return schema if "type" in schema or not schema else {"type": "object", **schema}


def _object(value: object, path: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise BadRequest(f"{path} is {shown(value)}: it must be an object", path)
    return value


def _count_values(value: object, path: str, depth: int) -> int:
    if depth > MAX_SCHEMA_DEPTH:
        raise BadRequest(f"{path} is nested more than {MAX_SCHEMA_DEPTH} deep", path)
    if isinstance(value, Mapping):
        return 1 + sum(_count_values(part, path, depth + 1) for part in value.values())
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return 1 + sum(_count_values(part, path, depth + 1) for part in value)
    return 1


def _read_choice(choice: object, names: Sequence[str]) -> tuple[Sequence[str], bool]:
    """The names of the functions that may be called, and whether one has to be."""
    if choice is None or choice == "auto":
        return names, False
    if choice == "none":
        return (), False
    if choice == "required":
        return names, True
    if not isinstance(choice, Mapping):
        words = ", ".join(map(repr, _CHOICES))
        raise BadRequest(f"tool_choice is {shown(choice)}: it must be {words} or an object", "tool_choice")
    kind = choice.get("type")
    if kind == "function":
        return (_chosen_name(choice, names, "tool_choice"),), True
    if kind == "allowed_tools":
        return _allowed_tools(choice, names)
    raise BadRequest(f"tool_choice.type is {shown(kind)}: it must be 'function' or 'allowed_tools'", "tool_choice.type")


def _allowed_tools(choice: Mapping[str, object], names: Sequence[str]) -> tuple[Sequence[str], bool]:
    path = "tool_choice.allowed_tools"
    allowed = _object(choice.get("allowed_tools"), path)
    mode = allowed.get("mode")
    if mode not in (None, "auto", "required"):
        raise BadRequest(f"{path}.mode is {shown(mode)}: it must be 'auto' or 'required'", f"{path}.mode")
    tools = allowed.get("tools")
    if isinstance(tools, str) or not isinstance(tools, Sequence) or not tools:
        raise BadRequest(f"{path}.tools is {shown(tools)}: it must be an array of at least 1 tool", f"{path}.tools")
    chosen = [
        _chosen_name(_object(tool, f"{path}.tools[{index}]"), names, f"{path}.tools[{index}]")
        for index, tool in enumerate(tools)
    ]
    return chosen, mode == "required"


def _chosen_name(choice: Mapping[str, object], names: Sequence[str], path: str) -> str:
    function = _object(choice.get("function"), f"{path}.function")
    name = function.get("name")
    if not isinstance(name, str) or name not in names:
        known = ", ".join(map(repr, names[:10])) or "none"
        raise BadRequest(
            f"{path}.function.name is {shown(name)}: it must be the name of one of the tools ({known})",
            f"{path}.function.name",
        )
    return name
