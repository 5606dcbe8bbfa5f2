"""Reads a JSON Schema: its limits, what of it says nothing, and where in it a fault is. Pure; any thread."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import cast

from llamaserve.errors import BadGrammar, shown
from llamaserve.grammar.finite import without_endless
from llamaserve.grammar.schema_parts import (
    LISTS_OF_SCHEMAS,
    MAPS_OF_SCHEMAS,
    SCHEMAS,
    Path,
    Schema,
    children,
    json_path,
    parts,
)

MAX_DEPTH = 64
"""Objects and arrays of the schema within each other."""
MAX_VALUES = 10_000
"""Objects, arrays and plain values of the schema."""
MAX_PROPERTIES = 400
"""Of one object: the parser takes more than its limit at once otherwise."""
MAX_PATTERN_LENGTH = 2_000
"""Characters of a regular expression."""
MAX_PATTERNS_LENGTH = 8_000
"""Characters of all of them: large sets of characters take their time."""
MAX_TRIES = 100
"""Parts of a schema that are compiled to find the one at fault."""

_WITHOUT_EFFECT: Mapping[str, tuple[object, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedProperties": (True,),
    "unevaluatedItems": (True,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "propertyNames": (True, {}),
    "minContains": (0,),
}
"""Keywords with the values that ask for nothing, which llguidance does not know."""
_OPTIONS_KEY = "x-guidance"
_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[(?P<names>.*)\]")


def read_schema(source: str) -> Schema:
    """A schema from JSON, checked against the limits, without what has no effect, and with ``false`` where
    there would be no end.

    Raises BadGrammar.
    """
    try:
        schema: object = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise BadGrammar(f"the schema is no valid JSON: {error}") from error
    if not isinstance(schema, (bool, dict)):
        raise BadGrammar(f"the schema is {shown(schema)}: it must be an object, or true or false")
    _check_limits(schema)
    finite = without_endless(cast("Schema", _cleaned(schema)))
    if finite is False and schema is not False:
        raise BadGrammar("no text is an instance of the schema: what it requires has no end")
    return finite


Fails = Callable[[Schema], "str | None"]
"""How a schema fails; None = it does not."""


def place_of_fault(schema: Schema, message: str, failure: Fails, has_time: Callable[[], bool]) -> Path:
    """The innermost part of a schema that fails with ``message`` by itself, or has the keywords the message names; when
    there is no time left, the innermost that was found."""
    match = _UNKNOWN_KEYS.search(message)
    if match is not None:
        names = set(json.loads(f"[{match['names']}]"))
        for path, part in parts(schema):
            if isinstance(part, dict) and (found := sorted(names & part.keys())):
                return (*path, found[0])
    return _innermost(schema, message, failure, has_time)


def _innermost(schema: Schema, message: str, failure: Fails, has_time: Callable[[], bool]) -> Path:
    place: Path = ()
    definitions = {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema, dict) and key in schema}
    n_tries = 0
    within = schema
    while True:
        for step, part in children(within):
            n_tries += 1
            if n_tries > MAX_TRIES or not has_time():
                return place
            alone = {**definitions, **part} if isinstance(part, dict) else part
            if failure(alone) == message:
                place, within = (*place, *step), part
                break
        else:
            return place


def _cleaned(schema: object) -> object:
    """A copy without keywords that ask for nothing. Goes as deep as ``MAX_DEPTH``."""
    if not isinstance(schema, dict):
        return schema
    cleaned: dict[str, object] = {}
    for key, value in schema.items():
        if any(_is_same(value, neutral) for neutral in _WITHOUT_EFFECT.get(key, ())):
            continue
        if key in MAPS_OF_SCHEMAS and isinstance(value, dict):
            cleaned[key] = {name: _cleaned(child) for name, child in value.items()}
        elif isinstance(value, list) and (key in LISTS_OF_SCHEMAS or key == "items"):
            cleaned[key] = [_cleaned(child) for child in value]
        else:
            cleaned[key] = _cleaned(value) if key in SCHEMAS else value
    return cleaned


def _is_same(value: object, neutral: object) -> bool:
    return type(value) is type(neutral) and value == neutral


def _check_limits(schema: Schema) -> None:
    n_values = 0
    n_pattern = 0
    waiting: list[tuple[Path, object]] = [((), schema)]
    while waiting:
        path, value = waiting.pop()
        n_values += 1
        if len(path) > MAX_DEPTH:
            raise _refusal(path[:8], f"the schema is nested more than {MAX_DEPTH} deep")
        if n_values + len(waiting) > MAX_VALUES:
            raise BadGrammar(f"the schema has more than {MAX_VALUES} values: it must be simpler")
        if isinstance(value, dict):
            n_pattern += _check_object(path, value)
            waiting += [((*path, key), child) for key, child in value.items()]
        elif isinstance(value, list):
            waiting += [((*path, index), child) for index, child in enumerate(value)]
    if n_pattern > MAX_PATTERNS_LENGTH:
        raise BadGrammar(
            f"the regular expressions of the schema have {n_pattern} characters: at most {MAX_PATTERNS_LENGTH} are "
            "allowed, in all"
        )


def _check_object(path: Path, schema: Mapping[str, object]) -> int:
    """Characters of regular expressions in it."""
    if _OPTIONS_KEY in schema:
        raise _refusal((*path, _OPTIONS_KEY), f"{_OPTIONS_KEY} is not supported: leave it out")
    properties = schema.get("properties")
    if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
        raise _refusal(
            (*path, "properties"), f"an object has {len(properties)} properties: at most {MAX_PROPERTIES} are allowed"
        )
    patterns = [schema.get("pattern")]
    by_name = schema.get("patternProperties")
    patterns += list(by_name) if isinstance(by_name, dict) else []
    lengths = [len(pattern) for pattern in patterns if isinstance(pattern, str)]
    if max(lengths, default=0) > MAX_PATTERN_LENGTH:
        raise _refusal(
            path,
            f"a regular expression has {max(lengths)} characters: at most {MAX_PATTERN_LENGTH} are allowed",
        )
    return sum(lengths)


def _refusal(path: Path, reason: str) -> BadGrammar:
    where = json_path(path)
    return BadGrammar(f"{reason} (at {where})" if where else reason, where or None)
