"""Restrictions of every kind, their limits, and what is said of bad ones."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from llamaserve.engine.fake_masks import N_MASK_BYTES, allowed_tokens
from llamaserve.engine.fake_text import BOS, EOS, FakeVocabulary
from llamaserve.errors import BadGrammar, EngineDown, GrammarFailed
from llamaserve.grammar.compiler import CACHED_GRAMMARS, GrammarCompiler
from llamaserve.grammar.spec import GrammarKind, GrammarSpec
from tests.unit.grammar.walk import may_end, takes, takes_start

REFUSED_WITHIN_S = 2.0  # a second, and some for a busy machine


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(FakeVocabulary())
    yield compiler
    compiler.close()


def schema_spec(schema: object) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema))


@pytest.mark.parametrize(
    ("kind", "source", "whole", "not_whole"),
    [
        (GrammarKind.JSON_OBJECT, "", [b"{}", b'{"a": [1, null]}'], [b"[]", b"1", b"{"]),
        (GrammarKind.JSON_SCHEMA, '{"type": "integer", "minimum": 3}', [b"3", b"12"], [b"2", b"x", b'"3"']),
        (GrammarKind.JSON_SCHEMA, "true", [b"1", b'"x"', b"{}"], [b"x"]),
        (GrammarKind.REGEX, "a/b+|c", [b"a/b", b"a/bb", b"c"], [b"a", b"a/bc", b"xc"]),
        (GrammarKind.REGEX, "\\d{2}", [b"12"], [b"1", b"123"]),
        (GrammarKind.CHOICE, '["yes", "no \\"x\\"", "yes, sir"]', [b"yes", b"yes, sir", b'no "x"'], [b"y", b"no"]),
        (GrammarKind.LARK, 'start: "a" b\nb: /[0-9]+/', [b"a1", b"a22"], [b"a", b"b1"]),
        (GrammarKind.LARK, '%llguidance {}\nstart: %json {"type": "null"}', [b"null"], [b"1"]),
        (GrammarKind.GBNF, 'root ::= "a"+', [b"a", b"aa"], [b"", b"b"]),
    ],
)  # fmt: skip
def test_every_kind_takes_its_texts_and_no_others(
    compiler: GrammarCompiler, kind: GrammarKind, source: str, whole: list[bytes], not_whole: list[bytes]
) -> None:
    constraint = compiler.compile(GrammarSpec(kind, source))
    assert [text for text in whole if not takes(constraint, text)] == []
    assert [text for text in not_whole if takes(constraint, text)] == []


def test_json_may_have_some_white_space_but_never_lines_without_end(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(schema_spec({"type": "array", "items": {"type": "integer"}}))
    for text in (b"[1,2]", b"[1, 2]", b"[\n  1,\n  2\n]", b"[ 1 , 2 ]"):
        assert takes(constraint, text), text
    for text in (b"[\n\n\n", b"[  ", b" [", b"[\t", b"[\n" + b" " * 21):
        assert not takes_start(constraint, text), text


def test_an_answer_that_is_whole_says_so(compiler: GrammarCompiler) -> None:
    """And one that may end, but need not, does not."""
    state = compiler.compile(schema_spec({"type": "object", "additionalProperties": False})).begin()
    for token in b"{}":
        assert not state.is_complete
        state.accept(token)
    assert state.is_complete
    mask = state.mask()
    assert mask is not None
    assert allowed_tokens(mask) == [EOS]
    state.accept(EOS)

    open_ended = compiler.compile(GrammarSpec(GrammarKind.REGEX, "a+")).begin()
    open_ended.accept(ord("a"))
    assert may_end(open_ended)
    assert not open_ended.is_complete


def test_a_mask_is_of_the_vocabularys_size_and_the_same_when_asked_twice(compiler: GrammarCompiler) -> None:
    state = compiler.compile(GrammarSpec(GrammarKind.REGEX, "[ab]x")).begin()
    mask = state.mask()
    assert mask is not None
    assert len(mask) == N_MASK_BYTES
    assert state.mask() == mask
    assert allowed_tokens(mask) == [ord("a"), ord("b")]
    assert BOS not in allowed_tokens(mask)


def test_a_token_that_is_not_allowed_fails_the_answer(compiler: GrammarCompiler) -> None:
    state = compiler.compile(GrammarSpec(GrammarKind.REGEX, "ab")).begin()
    with pytest.raises(GrammarFailed, match="the grammar does not allow token 98 here"):
        state.accept(ord("b"))
    for token in (EOS, BOS):
        with pytest.raises(GrammarFailed):
            compiler.compile(GrammarSpec(GrammarKind.REGEX, "ab")).begin().accept(token)


def test_answers_of_one_restriction_do_not_know_of_each_other(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(GrammarSpec(GrammarKind.REGEX, "ab|cd"))
    one, other = constraint.begin(), constraint.begin()
    one.accept(ord("a"))
    other.accept(ord("c"))
    one_mask, other_mask = one.mask(), other.mask()
    assert one_mask is not None
    assert other_mask is not None
    assert (allowed_tokens(one_mask), allowed_tokens(other_mask)) == ([ord("b")], [ord("d")])


def test_a_prefix_is_taken_before_the_first_token(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(GrammarSpec(GrammarKind.GBNF, 'root ::= "a<bos>" [0-9]', prefix="a<bos>"))
    assert takes(constraint, b"7")
    assert not takes_start(constraint, b"a")
    with pytest.raises(BadGrammar, match="does not allow"):
        compiler.compile(GrammarSpec(GrammarKind.GBNF, 'root ::= "a"', prefix="b"))


# What cannot be held to is refused, with a reason and a place.


@pytest.mark.parametrize(
    ("schema", "place", "reason"),
    [
        ({"type": "strin"}, None, "Invalid type: strin"),
        ({"properties": {"a": {"items": {"uniqueItems": True}}}}, "properties.a.items.uniqueItems", "uniqueItems"),
        ({"properties": {"a": {"type": "array", "items": {"pattern": "(a"}}}}, "properties.a.items", "unclosed group"),
        ({"anyOf": [{"type": "integer"}, {"type": "string", "format": "zzz"}]}, "anyOf[1]", "Unknown format: zzz"),
        ({"$defs": {"d": {"not": {}}}, "properties": {"x": {"$ref": "#/$defs/d"}}}, "$defs.d.not", "not"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, None, "oneOf is not supported where"),
        ({"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}, None, "'a' is unsatisfiable"),
        ({"properties": {"a": {"x-guidance": {"lenient": True}}}}, "properties.a.x-guidance", "x-guidance is not"),
        ({"properties": {f"p{index}": {} for index in range(401)}}, "properties", "401 properties: at most 400"),
        ({"properties": {"a": {"pattern": "a" * 2001}}}, "properties.a", "2001 characters: at most 2000"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, None, "requires has no end"),
        ({"$ref": "https://example.com/x"}, None, "example.com"),
        (3, None, "the schema is 3: it must be an object"),
    ],
    ids=str,
)  # fmt: skip
def test_a_schema_that_cannot_be_held_to_is_refused_with_its_place(
    compiler: GrammarCompiler, schema: object, place: str | None, reason: str
) -> None:
    with pytest.raises(BadGrammar, match=re.escape(reason)) as caught:
        compiler.compile(schema_spec(schema))
    assert caught.value.param == place


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        (GrammarKind.REGEX, "", "the regular expression is empty"),
        (GrammarKind.REGEX, "(", "unclosed group"),
        (GrammarKind.REGEX, "(?=a)b", "look-around"),
        (GrammarKind.REGEX, "(a)\\1", "backreferences are not supported"),
        (GrammarKind.REGEX, "\ud800", "not valid Unicode"),
        (GrammarKind.CHOICE, "[]", "at least 1 text is needed"),
        (GrammarKind.CHOICE, '["a", 5]', "choice 1 is 5"),
        (GrammarKind.CHOICE, '["a", ""]', "choice 1 is ''"),
        (GrammarKind.CHOICE, json.dumps(["a"] * 1001), "1001 choices: at most 1000"),
        (GrammarKind.LARK, "start: foo", "unknown name"),
        (GrammarKind.LARK, "x: /a/", "start"),
        (GrammarKind.LARK, "start: <no-such-token>", "unknown special token"),
        (GrammarKind.LARK, '%llguidance {"no_forcing": false}\nstart: "a"', "sets no_forcing"),
        (GrammarKind.JSON_SCHEMA, "{", "no valid JSON"),
        (GrammarKind.GBNF, "root ::= root", "nothing may follow"),
    ],
)
def test_a_bad_source_is_refused_with_a_reason(
    compiler: GrammarCompiler, kind: GrammarKind, source: str, reason: str
) -> None:
    with pytest.raises(BadGrammar, match=re.escape(reason)):
        compiler.compile(GrammarSpec(kind, source))


def _nested(depth: int) -> object:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


BOMBS = {
    "brackets of a schema": (GrammarKind.JSON_SCHEMA, "[" * 200_000),
    "a deep schema": (GrammarKind.JSON_SCHEMA, json.dumps(_nested(200))),
    "a large schema": (GrammarKind.JSON_SCHEMA, json.dumps({"enum": [f"v{index}" for index in range(20_000)]})),
    "brackets of a regex": (GrammarKind.REGEX, "(" * 200_000 + "a" + ")" * 200_000),
    "some brackets of a regex": (GrammarKind.REGEX, "(" * 900 + "a" + ")" * 900),
    "many letters": (GrammarKind.REGEX, "(?i)" + "\\p{L}" * 5_000),
    "patterns that all hold": (
        GrammarKind.JSON_SCHEMA,
        json.dumps({"allOf": [{"type": "string", "pattern": f".*{letter}.*"} for letter in "abcdefghijklmnopqrst"]}),
    ),
    "alternatives that multiply": (
        GrammarKind.JSON_SCHEMA,
        json.dumps({"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(5)]} for i in range(9)]}),
    ),
    "terminals that double": (
        GrammarKind.LARK,
        "start: A0\n" + "\n".join(f"A{index}: A{index + 1} A{index + 1}" for index in range(40)) + "\nA40: /a/",
    ),
    "brackets of lark": (GrammarKind.LARK, "start: " + "(" * 30_000),
    "a large grammar": (GrammarKind.LARK, 'start: "' + "a" * 200_000 + '"'),
    "repeated gbnf": (GrammarKind.GBNF, 'root ::= ("a"{1000}){100000}'),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_a_second(compiler: GrammarCompiler, name: str) -> None:
    began = time.monotonic()
    with pytest.raises(BadGrammar):
        compiler.compile(GrammarSpec(*BOMBS[name]))
    assert time.monotonic() - began < REFUSED_WITHIN_S


SLOW_FUSES = {
    "nested repetitions": (GrammarKind.REGEX, "((a{1,100}){1,100}){1,100}"),
    "a long way from a letter": (GrammarKind.REGEX, "[ab]*a[ab]{1900}"),
    "many times nothing": (GrammarKind.REGEX, "(?:a?){1500}a{1500}"),
    "a text that can only go on": (GrammarKind.LARK, 'start: /[bc]/ A{3000}\nA: "x"{3000}'),
    "rules that repeat": (GrammarKind.LARK, 'start: a{100000}\na: b{100000}\nb: "x"'),
    "rules that double": (
        GrammarKind.LARK,
        "start: a0\n" + "\n".join(f"a{index}: a{index + 1} a{index + 1}" for index in range(40)) + "\na40: /a/",
    ),
}


@pytest.mark.parametrize("name", SLOW_FUSES)
def test_what_compiles_costs_little_in_every_step_or_fails_alone(compiler: GrammarCompiler, name: str) -> None:
    """Some of them are found out in the middle of an answer only, which ends it."""
    state = compiler.compile(GrammarSpec(*SLOW_FUSES[name])).begin()
    try:
        for _ in range(30):
            began = time.monotonic()
            mask = state.mask()
            assert mask is not None
            state.accept(allowed_tokens(mask)[0])
            assert time.monotonic() - began < REFUSED_WITHIN_S / 4
    except GrammarFailed as error:
        assert "too" in str(error).lower()  # noqa: PT017


# The cache, and the end.


def test_equal_restrictions_are_compiled_once_and_the_oldest_is_forgotten() -> None:
    compiler = GrammarCompiler(FakeVocabulary())
    first = compiler.compile(GrammarSpec(GrammarKind.REGEX, "first"))
    second = compiler.compile(GrammarSpec(GrammarKind.REGEX, "second"))
    for index in range(CACHED_GRAMMARS - 1):
        assert compiler.compile(GrammarSpec(GrammarKind.REGEX, "first")) is first
        compiler.compile(GrammarSpec(GrammarKind.REGEX, f"x{index}"))
    assert compiler.compile(GrammarSpec(GrammarKind.REGEX, "first")) is first
    assert compiler.compile(GrammarSpec(GrammarKind.REGEX, "second")) is not second
    compiler.close()


def test_a_refused_restriction_is_not_kept(compiler: GrammarCompiler) -> None:
    for _ in range(2):
        with pytest.raises(BadGrammar):
            compiler.compile(GrammarSpec(GrammarKind.REGEX, "("))


def test_nothing_is_compiled_after_the_end() -> None:
    compiler = GrammarCompiler(FakeVocabulary())
    spec = GrammarSpec(GrammarKind.REGEX, "a")
    compiler.compile(spec)
    compiler.close()
    compiler.close()
    with pytest.raises(EngineDown):
        compiler.compile(spec)


class EndlessVocabulary(FakeVocabulary):
    """No token ends a text."""

    def is_eog(self, token: int) -> bool:
        return False


def test_a_model_whose_texts_do_not_end_cannot_be_restricted() -> None:
    with pytest.raises(BadGrammar, match="no token that ends a text"):
        GrammarCompiler(EndlessVocabulary()).compile(GrammarSpec(GrammarKind.REGEX, "a"))
