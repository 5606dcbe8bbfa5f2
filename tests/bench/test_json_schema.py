"""What the schema scenario takes for an answer."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from bench.json_schema import PERSON, SCHEMA, is_beginning, is_person

SOMEBODY = {"name": "Ada", "age": 36, "city": "Lima", "is_member": True, "tags": ["x"]}


def test_a_whole_person_is_an_instance() -> None:
    Draft202012Validator(PERSON).validate(SOMEBODY)
    assert is_person(SOMEBODY)


@pytest.mark.parametrize(
    "change",
    [{"age": 121}, {"age": True}, {"city": "Rome"}, {"name": "x" * 13}, {"is_member": 1}, {"tags": "x"}, {"more": 1}],
    ids=str,
)
def test_what_the_schema_refuses_is_none(change: dict[str, object]) -> None:
    assert not Draft202012Validator(PERSON).is_valid(SOMEBODY | change)
    assert not is_person(SOMEBODY | change)


def test_a_text_that_was_cut_is_judged_by_its_whole_objects() -> None:
    text = json.dumps([SOMEBODY] * 3)
    assert [end for end in range(1, len(text)) if not is_beginning(text[:end])] == []
    assert not is_beginning("Once upon a time")
    assert not is_beginning(text.replace("36", '"36"'))


def test_no_instance_is_as_short_as_an_answer() -> None:
    """A token has some characters at most."""
    assert SCHEMA["minItems"] * len(json.dumps(SOMEBODY, separators=(",", ":"))) > 128 * 20
