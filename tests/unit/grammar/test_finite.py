"""Parts of a schema that no finite text is an instance of: found all, and in linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.grammar.finite import without_endless
from llamaserve.grammar.schema_parts import Schema

SOON_S = 1.0
"""What follows takes milliseconds, and took minutes where the work grew faster than the schema."""


@pytest.mark.parametrize(
    ("schema", "pruned"),
    [
        ({"$ref": "#"}, False),
        ({"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, False),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a", "a", 5]}, False),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, False),
        ({"type": "array", "prefixItems": [{}], "items": {"$ref": "#"}, "minItems": 2}, False),
        ({"type": "array", "items": [{"$ref": "#"}, {}], "minItems": 1}, False),
        ({"type": "array", "items": False, "minItems": 1}, False),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, {"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
        ({"anyOf": [{"$ref": "#"}, False]}, False),
        ({"allOf": [{"$ref": "#"}, {}]}, False),
        ({"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/a"}}}, {"not": False, "$defs": {"a": False}}),
        ({"$ref": "#/anyOf/1/x", "anyOf": [{}, {"x": {}}]}, {"$ref": "#/anyOf/1/x", "anyOf": [{}, {"x": {}}]}),
        ({"$ref": "#/anyOf/" + "9" * 5000, "anyOf": [{}]}, {"$ref": "#/anyOf/" + "9" * 5000, "anyOf": [{}]}),
        ({"$ref": "elsewhere"}, {"$ref": "elsewhere"}),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_has_no_end_becomes_false(schema: Schema, pruned: Schema) -> None:
    assert without_endless(schema) == pruned


def test_names_that_are_required_again_and_again_cost_nothing() -> None:
    schema: Schema = {"type": "integer"}
    for _ in range(30):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"] * 100}
    begun = time.monotonic()
    assert without_endless(schema) == schema
    assert time.monotonic() - begun < SOON_S


@pytest.mark.parametrize("last", [{"type": "integer"}, {"$ref": "#/$defs/d0"}])
def test_a_long_chain_of_references_costs_linear_time(last: Schema) -> None:
    n = 20_000
    chain = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(n)}
    begun = time.monotonic()
    found = without_endless({"$defs": {**chain, f"d{n}": last}, "properties": {"x": {"$ref": "#/$defs/d0"}}})
    assert time.monotonic() - begun < SOON_S
    assert isinstance(found, dict)
    is_endless = "$ref" in last if isinstance(last, dict) else False
    assert (found["properties"]["x"] is False) == is_endless


def test_one_schema_that_all_others_need_costs_linear_time() -> None:
    users = {f"d{index}": {"allOf": [{"$ref": "#/$defs/x"}] * 5} for index in range(5_000)}
    begun = time.monotonic()
    without_endless({"$defs": {**users, "x": {"$ref": "#/$defs/d0"}}})
    assert time.monotonic() - begun < SOON_S


NAMES = "abc"
references = st.sampled_from([{"$ref": "#"}, {"$ref": "#/nowhere"}, *({"$ref": f"#/$defs/{name}"} for name in NAMES)])
schemas = st.recursive(
    st.one_of(st.booleans(), st.just({"type": "null"}), references),
    lambda part: st.one_of(
        st.builds(lambda parts: {"anyOf": parts}, st.lists(part, max_size=3)),
        st.builds(lambda parts: {"allOf": parts}, st.lists(part, max_size=3)),
        st.builds(
            lambda parts, names: {"type": "object", "properties": parts, "required": names},
            st.dictionaries(st.sampled_from(NAMES), part, max_size=3),
            st.lists(st.sampled_from(NAMES), max_size=3),
        ),
        st.builds(lambda part, n: {"type": "array", "items": part, "minItems": n}, part, st.integers(0, 2)),
    ),
    max_leaves=8,
)


@given(definitions=st.fixed_dictionaries(dict.fromkeys(NAMES, schemas)), root=schemas)
def test_it_agrees_with_looking_for_an_instance_of_growing_depth(definitions: dict[str, Schema], root: Schema) -> None:
    """An instance takes no more references within each other than there are places to refer to."""
    whole = {**root, "$defs": definitions} if isinstance(root, dict) else root
    found = without_endless(whole)
    assert (found is False) == (not has_instance(whole, whole, definitions, n_references=len(NAMES) + 2))


def has_instance(schema: object, root: Schema, definitions: dict[str, Schema], n_references: int) -> bool:
    """Whether a part has an instance that goes through so many references within each other at most."""

    def has(part: object) -> bool:
        return has_instance(part, root, definitions, n_references)

    if not isinstance(schema, dict):
        return schema is not False
    pointer = schema.get("$ref")
    if pointer == "#" or (pointer and pointer.startswith("#/$defs/")):
        target = root if pointer == "#" else definitions[pointer[-1]]
        if n_references == 0 or not has_instance(target, root, definitions, n_references - 1):
            return False
    if schema.get("anyOf") and not any(map(has, schema["anyOf"])):
        return False
    if not all(map(has, schema.get("allOf", ()))):
        return False
    if schema.get("minItems") and not has(schema["items"]):
        return False
    return all(has(schema["properties"][name]) for name in schema.get("required", ()) if name in schema["properties"])
