"""Where JSON Schema has schemas within schemas. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

_MAX_INDEX_DIGITS = 9
Schema = bool | Mapping[str, object]
Path = tuple[str | int, ...]

MAPS_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
LISTS_OF_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SCHEMAS = frozenset(
    {
        "items",
        "additionalItems",
        "additionalProperties",
        "contains",
        "propertyNames",
        "not",
        "if",
        "then",
        "else",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Of these, ``items`` may be a list too."""


def children(schema: Schema) -> Iterator[tuple[Path, Schema]]:
    """The schemas directly within one, with the steps that lead there."""
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in MAPS_OF_SCHEMAS and isinstance(value, dict):
            yield from (((key, name), child) for name, child in value.items() if isinstance(child, (bool, dict)))
        elif isinstance(value, list) and (key in LISTS_OF_SCHEMAS or key == "items"):
            yield from (((key, index), child) for index, child in enumerate(value) if isinstance(child, (bool, dict)))
        elif key in SCHEMAS and isinstance(value, (bool, dict)):
            yield (key,), value


def parts(schema: Schema) -> Iterator[tuple[Path, Schema]]:
    """The schema and every schema in it, outer ones first."""
    waiting: list[tuple[Path, Schema]] = [((), schema)]
    for path, part in waiting:  # grows on the way
        yield path, part
        waiting += [((*path, *step), child) for step, child in children(part)]


def referred(root: object, pointer: str) -> object:
    """What a reference within a schema points to (RFC 6901, as a fragment); None where it leads nowhere."""
    first, *steps = pointer.split("/")
    if first != "#":
        return None
    part = root
    for step in steps:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict) and name in part:
            part = part[name]
        elif isinstance(part, list) and _is_index(name) and int(name) < len(part):
            part = part[int(name)]
        else:
            return None
    return part


def _is_index(name: str) -> bool:
    return name.isdecimal() and len(name) <= _MAX_INDEX_DIGITS


def json_path(path: Path) -> str:
    """A place in the schema as people write it; "" for the whole."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
