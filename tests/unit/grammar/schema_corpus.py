"""JSON Schemas of growing difficulty: some written by hand, the others drawn from a seed."""
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random

Schema = Mapping[str, object]

N_DRAWN = 250
HARDEST = 5

NAMES = ("id", "name", "a b", 'quo"te', "größe", "x-1", "value", "kind", "items", "$ref", "0", "type", "nested", "é")
PATTERNS = ("^[a-z]{2,6}$", "[0-9]+", "^(red|green|blue)$", "^\\d{3}-\\d{4}$", "^[A-Z][a-z]*( [A-Z][a-z]*)?$", "^$|^x")
FORMATS = ("date", "email", "ipv4", "ipv6", "uuid", "time", "date-time", "hostname", "uri", "duration")
VALUES = ("a", "two words", "", "ü", 0, -1, 3.5, True, False, None, [1, "x"], {"k": [None]}, '"', "\\", "line\nbreak")

BY_HAND: tuple[Schema, ...] = (
    {},
    {"type": "object"},
    {"type": "array"},
    {"type": "null"},
    {"type": "boolean"},
    {"type": "integer"},
    {"type": "number"},
    {"type": "string"},
    {"type": ["string", "null"]},
    {"type": ["integer", "boolean", "array"], "items": {"type": "null"}},
    {"const": {"a": [1, 2, {"b": None}]}},
    {"enum": ["only"]},
    {"enum": [1, "1", True, None, [1], {"one": 1}]},
    {"type": "string", "enum": ["a", 5]},
    {"type": "integer", "minimum": 3, "maximum": 12},
    {"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 5},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    {"type": "number", "minimum": -1.5, "maximum": 2.25},
    {"type": "number", "exclusiveMinimum": 0},
    {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 10},
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "maxLength": 0},
    {"type": "string", "pattern": "^(a|b)+$", "maxLength": 8},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3, "maxItems": 5},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"], "additionalProperties": {"type": "null"}},
    {"type": "object", "properties": {"a": {}, "b": False}, "required": ["a"]},
    {"type": "object", "patternProperties": {"^s_": {"type": "string"}, "^n_": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "properties": {"s_x": {"type": "integer"}}, "patternProperties": {"^s_": {"minimum": 5}}, "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "string"}}, "minProperties": 1},
    {"type": "object", "maxProperties": 2},
    {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}, {"type": "null"}]},
    {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind", "lives"]},
            {"type": "object", "properties": {"kind": {"const": "dog"}, "name": {"type": "string"}}, "required": ["kind"]},
        ],
        "discriminator": {"propertyName": "kind"},
    },
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "null"}}, "required": ["b"]}]},
    {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 8}]},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"allOf": [{"pattern": "^a", "type": "string"}, {"pattern": "b$"}]},
    {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"], "additionalProperties": False}}},
    {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}, "additionalProperties": False},
    {"$ref": "#/definitions/tree", "definitions": {"tree": {"type": "array", "items": {"$ref": "#/definitions/tree"}, "maxItems": 3}}},
    {"$ref": "#"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"], "additionalProperties": False},
    {"$ref": "#/$defs/missing"},
    {"$ref": "https://example.com/schema.json"},
    {"not": {"type": "string"}},
    {"if": {"type": "string"}, "then": {"minLength": 3}},
    {"type": "array", "uniqueItems": True},
    {"type": "array", "uniqueItems": False, "maxItems": 2},
    {"type": "array", "contains": {"const": 1}},
    {"type": "object", "propertyNames": {"pattern": "^a"}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"type": "string", "format": "no-such-format"},
    {"type": "string", "pattern": "^(?=x)y"},
    {"type": "string", "title": "annotated", "description": "d", "default": "x", "examples": ["y"], "x-order": 3, "deprecated": True},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{"type": "integer"}], "additionalItems": False},
    {"type": "object", "properties": {f"p{index}": {"type": "integer"} for index in range(60)}, "additionalProperties": False},
    {"type": "object", "properties": {f"p{index}": {"type": "boolean"} for index in range(40)}, "required": [f"p{index}" for index in range(40)], "additionalProperties": False},
    {"enum": [f"choice number {index}" for index in range(500)]},
    {"anyOf": [{"type": "object", "properties": {f"k{index}": {"const": index}}, "required": [f"k{index}"], "additionalProperties": False} for index in range(60)]},
)  # fmt: skip


def corpus(seed: int = 7) -> Iterator[Schema]:
    """Those by hand, then the drawn ones, easy ones first."""
    yield from BY_HAND
    random = Random(seed)
    for index in range(N_DRAWN):
        yield _with_definitions(random, 1 + index * HARDEST // N_DRAWN)


def _with_definitions(random: Random, level: int) -> Schema:
    """A schema which, from the third level on, may refer to its own definitions."""
    if level < 3 or random.random() < 0.5:
        return _any(random, level, ())
    names = ("one", "two")
    definitions = {name: _object(random, level - 1, names) for name in names}
    return {**_object(random, level, names), "$defs": definitions}


def _any(random: Random, level: int, definitions: tuple[str, ...]) -> Schema:
    if definitions and random.random() < 0.25:
        reference = {"$ref": f"#/$defs/{random.choice(definitions)}"}
        return reference if random.random() < 0.2 else {"anyOf": [reference, {"type": "null"}]}
    simple: list[Callable[[Random], Schema]] = [_integer, _number, _string, _enum, _plain]
    if level <= 1 or random.random() < 0.3:
        return random.choice(simple)(random)
    return random.choice([_object, _object, _array, _union, _both])(random, level, definitions)


def _integer(random: Random) -> Schema:
    low = random.randint(-1000, 1000)
    schema: dict[str, object] = {"type": "integer"}
    if random.random() < 0.6:
        schema["minimum"] = low
    if random.random() < 0.6:
        schema[random.choice(["maximum", "exclusiveMaximum"])] = low + random.randint(2, 5000)
    if random.random() < 0.2:
        schema["multipleOf"] = random.choice([2, 5, 10])
    return schema


def _number(random: Random) -> Schema:
    low = round(random.uniform(-50, 50), 2)
    schema: dict[str, object] = {"type": "number"}
    if random.random() < 0.5:
        schema[random.choice(["minimum", "exclusiveMinimum"])] = low
    if random.random() < 0.5:
        schema["maximum"] = low + 10
    return schema


def _string(random: Random) -> Schema:
    kind = random.randrange(4)
    if kind == 0:
        return {"type": "string", "pattern": random.choice(PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": random.choice(FORMATS)}
    least = random.randint(0, 4)
    return {"type": "string", "minLength": least, "maxLength": least + random.randint(0, 12)}


def _enum(random: Random) -> Schema:
    return {"enum": random.sample(VALUES, random.randint(1, 5))}


def _plain(random: Random) -> Schema:
    return random.choice([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}, {"const": 7}, {}])


def _object(random: Random, level: int, definitions: tuple[str, ...]) -> Schema:
    names = random.sample(NAMES, random.randint(1, min(len(NAMES), 2 + level)))
    schema: dict[str, object] = {
        "type": "object",
        "properties": {name: _any(random, level - 1, definitions) for name in names},
    }
    if random.random() < 0.7:
        schema["required"] = random.sample(names, random.randint(1, len(names)))
    extra = random.random()
    if extra < 0.6:
        schema["additionalProperties"] = False
    elif extra < 0.75:
        schema["additionalProperties"] = _any(random, 1, ())
    if random.random() < 0.15:
        schema["patternProperties"] = {"^p_[a-z]+$": _any(random, 1, ())}
    return schema


def _array(random: Random, level: int, definitions: tuple[str, ...]) -> Schema:
    least = random.randint(0, 2)
    schema: dict[str, object] = {
        "type": "array",
        "items": _any(random, level - 1, definitions),
        "minItems": least,
        "maxItems": least + random.randint(0, 3),
    }
    if random.random() < 0.2:
        schema["prefixItems"] = [_any(random, 1, ()) for _ in range(random.randint(1, 2))]
    return schema


def _union(random: Random, level: int, definitions: tuple[str, ...]) -> Schema:
    parts = [_any(random, level - 1, definitions) for _ in range(random.randint(2, 3))]
    return {random.choice(["anyOf", "anyOf", "anyOf", "anyOf", "oneOf"]): parts}


def _both(random: Random, level: int, definitions: tuple[str, ...]) -> Schema:
    return {"allOf": [_object(random, level - 1, definitions), {"properties": {"kind": _enum(random)}}]}
