"""Structured output over a real socket and a fake engine: every spelling, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Generator

import pytest
from jsonschema import Draft202012Validator

from llamaserve.api.openai.body import ChatBody, decode_body
from llamaserve.api.openai.fields import UnknownFieldLog
from llamaserve.api.openai.structured import WantedGrammar, wanted_grammar
from llamaserve.engine.fake import FakeEngine
from llamaserve.errors import BadRequest
from llamaserve.grammar.spec import GrammarKind
from llamaserve.scheduler.scheduler import MAX_CONSECUTIVE_FAILED_STEPS
from llamaserve.server_api import Server
from tests.api.served import LineTemplate, Served, serving

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "name": {"type": "string", "pattern": "^[a-z]{2,5}$"},
    },
    "required": ["kind", "age", "name"],
    "additionalProperties": False,
}
GBNF = 'root ::= "yes" | "no"'
VLLM_GBNF = """
    root ::= select_statement
    select_statement ::= "SELECT " column "FROM " table
    column ::= "col_1 " | "col_2 "
    table ::= "table_1 " | "table_2 "
"""
VLLM_LARK = """
    ?start: select_statement
    ?select_statement: "SELECT " column " FROM " table
    ?column: NAME
    ?table: NAME
    NAME: /[a-z]{1,3}/
"""
LARK = "start: ANSWER\nANSWER: /(yes|no)/"
SMALL = {"type": "integer", "minimum": 10, "maximum": 19}


@pytest.fixture(scope="module")
def served() -> Generator[Served, None, None]:
    """A model that says a letter or the end of something, whatever it is asked."""
    with serving(
        FakeEngine(continuation=lambda history: b'a}"bc'[len(history) % 5]), template=LineTemplate()
    ) as running:
        yield running


def error_of(response: object) -> dict[str, object]:
    assert response.status_code == 400, response.text  # type: ignore[attr-defined]  # httpx's
    detail: dict[str, object] = response.json()["error"]  # type: ignore[attr-defined]  # httpx's
    return detail


SPELLINGS = [
    ({"response_format": {"type": "json_object"}}, r"\{.*\}"),
    ({"response_format": {"type": "json_object", "schema": SMALL}}, "1[0-9]"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SMALL}}}, "1[0-9]"),
    ({"response_format": {"type": "json_schema", "json_schema": {"strict": True, "schema": SMALL}}}, "1[0-9]"),
    ({"response_format": {"type": "json_schema", "schema": SMALL}}, "1[0-9]"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "any"}}}, r"\{.*\}"),
    ({"response_format": {"type": "regex", "value": "[xy]{3}"}}, "[xy]{3}"),
    ({"response_format": {"type": "grammar", "grammar": GBNF}}, "yes|no"),
    ({"guided_grammar": VLLM_GBNF}, "SELECT col_[12] FROM table_[12] "),
    ({"structured_outputs": {"grammar": VLLM_LARK}}, "SELECT [a-z]{1,3} FROM [a-z]{1,3}"),
    ({"json_schema": SMALL}, "1[0-9]"),
    ({"json_schema": json.dumps(SMALL)}, "1[0-9]"),
    ({"grammar": GBNF}, "yes|no"),
    ({"grammar": LARK}, "yes|no"),
    ({"grammar": "%llguidance {}\n" + LARK}, "yes|no"),
    ({"regex": "[xy]{3}"}, "[xy]{3}"),
    ({"ebnf": GBNF}, "yes|no"),
    ({"guided_json": SMALL}, "1[0-9]"),
    ({"guided_json": json.dumps(SMALL)}, "1[0-9]"),
    ({"guided_regex": "[xy]{3}"}, "[xy]{3}"),
    ({"guided_choice": ["left", "right"]}, "left|right"),
    ({"guided_grammar": GBNF}, "yes|no"),
    ({"structured_outputs": {"json": SMALL}}, "1[0-9]"),
    ({"structured_outputs": {"regex": "[xy]{3}", "json": None}}, "[xy]{3}"),
    ({"structured_outputs": {"choice": ["left", "right"], "disable_fallback": True}}, "left|right"),
    ({"structured_outputs": {"grammar": LARK}}, "yes|no"),
    ({"structured_outputs": {"json_object": True}}, r"\{.*\}"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "expected"), SPELLINGS, ids=str)
def test_every_spelling_restricts_chat_and_completion(served: Served, fields: dict[str, object], expected: str) -> None:
    for response, text_of in (
        (served.chat(max_tokens=400, **fields), lambda choice: choice["message"]["content"]),
        (served.complete(max_tokens=400, **fields), lambda choice: choice["text"]),
    ):
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        assert re.fullmatch(expected, text_of(choice), re.DOTALL), text_of(choice)
        assert choice["finish_reason"] == "stop"


def test_a_stream_brings_the_same_text(served: Served) -> None:
    fields = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "seed": 1}
    whole = served.chat(max_tokens=400, **fields).json()["choices"][0]["message"]["content"]
    Draft202012Validator(SCHEMA).validate(json.loads(whole))
    streamed = served.chat(max_tokens=400, stream=True, **fields).text
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == whole


def test_max_tokens_cuts_an_answer_to_a_beginning_of_it(served: Served) -> None:
    whole = served.chat(guided_json=SCHEMA).json()["choices"][0]["message"]["content"]
    (choice,) = served.chat(guided_json=SCHEMA, max_tokens=9).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (whole[:9], "length")


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"response_format": {}},
        {"response_format": None, "grammar": "", "regex": None, "guided_choice": [], "structured_outputs": {}},
        {"structured_outputs": {"json": None, "json_object": False, "disable_any_whitespace": False}},
    ],
    ids=str,
)
def test_what_asks_for_nothing_restricts_nothing(served: Served, fields: dict[str, object]) -> None:
    text = served.complete(max_tokens=12, **fields).json()["choices"][0]["text"]
    assert text == served.complete(max_tokens=12).json()["choices"][0]["text"]


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "it must be one of text, json_object"),
        ({"response_format": {"schema": {}}}, "response_format.type", "response_format.type is None"),
        ({"response_format": {"type": "json_schema", "json_schema": 5}}, "response_format.json_schema", "an object"),
        ({"response_format": {"type": "regex"}}, "response_format.value", "it must be a regular expression"),
        ({"response_format": {"type": "grammar"}}, "response_format.grammar", "it must be a grammar"),
        ({"response_format": {"type": "json_object"}, "grammar": GBNF}, "grammar", "both restrict the answer"),
        ({"guided_regex": "a", "regex": "a"}, "guided_regex", "both restrict the answer"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "both restrict"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "does not support it"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern", "not support"),
        ({"structured_outputs": {"json_object": 3}}, "structured_outputs.json_object", "it must be true or false"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice", "an array of strings"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json", "it must be a JSON Schema"),
        ({"guided_choice": [1]}, "guided_choice[0]", "expected string"),
        ({"grammar": 5}, "grammar", "expected string"),
        ({"json_schema": "{"}, "json_schema", "json_schema: the schema is no valid JSON"),
        ({"grammar": "root ::= x"}, "grammar", "the rule 'x' is not defined (line 1, column 10 of the grammar)"),
        ({"regex": "("}, "regex", "unclosed group"),
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json.uniqueItems", "Unimplemented keys"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"not": {}}}}}}},
            "response_format.json_schema.schema.properties.a.not",
            "(at properties.a.not)",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_held_to_is_refused_by_name(
    served: Served, fields: dict[str, object], param: str, reason: str
) -> None:
    """K32: a 400 before a slot is taken, never an answer without the restriction."""
    n_opened = len(served.engine.opened)
    for response in (served.chat(**fields), served.complete(**fields)):
        detail = error_of(response)
        assert detail["param"] == param
        assert reason in str(detail["message"])
    assert len(served.engine.opened) == n_opened


def test_a_bad_grammar_has_a_code_of_its_own(served: Served) -> None:
    assert error_of(served.complete(grammar="root ::="[:4]))["code"] == "invalid_grammar"


def test_a_bomb_is_refused_while_others_are_served(served: Served) -> None:
    patterns = [{"type": "string", "pattern": f".*{letter}.*"} for letter in "abcdefghijklmnopqrst"]
    assert error_of(served.complete(json_schema={"allOf": patterns}))["code"] == "invalid_grammar"
    assert served.complete(max_tokens=3).status_code == 200


def test_a_grammar_that_turns_out_too_complex_ends_its_answer_with_an_error(served: Served) -> None:
    """In the middle: an error event, and no [DONE]."""
    names = [f"r{index}" for index in range(2_100)]  # more than the parser takes at once
    bomb = f'start: "x" ({"|".join(names)})\n' + "\n".join(f'{name}: "{name}"' for name in names)
    streamed = served.complete(stream=True, grammar=bomb).text
    assert '"code":"grammar_failed"' in streamed
    assert "[DONE]" not in streamed
    response = served.complete(grammar=bomb)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "grammar_failed")
    assert response.headers["x-should-retry"] == "false"
    assert served.complete(max_tokens=3).status_code == 200


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"allowed_token_ids": [ord("z")]}, ""),
        ({"logit_bias": {"y": False}}, ""),
        ({"logit_bias": {str(ord("s")): False}}, "ye"),
        ({"bad_words": ["es"]}, "ye"),
    ],
    ids=str,
)
def test_a_restriction_that_the_request_itself_forbids_is_the_clients_error(
    served: Served, fields: dict[str, object], text: str
) -> None:
    """As often as it is asked, on an idle server too: nothing of it is a failure of the model."""
    for _ in range(MAX_CONSECUTIVE_FAILED_STEPS + 1):
        for answer in (served.complete, served.chat):
            detail = error_of(answer(guided_choice=["yes"], **fields))
            assert (detail["type"], detail["code"], detail["param"]) == ("invalid_request_error", "no_token", None)
            assert "no token is left to draw" in str(detail["message"])
    streamed = served.complete(stream=True, guided_choice=["yes"], **fields).text
    *texts, error = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in texts) == text
    assert error["error"]["code"] == "no_token"
    assert "[DONE]" not in streamed
    assert served.complete(max_tokens=3).status_code == 200


def test_an_answer_that_is_whole_ends_whatever_min_tokens_says(served: Served) -> None:
    for _ in range(3):
        (choice,) = served.complete(guided_choice=["yes"], min_tokens=50).json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("yes", "stop")


def wanted(**fields: object) -> WantedGrammar | None:
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode()
    return wanted_grammar(decode_body(body, ChatBody, UnknownFieldLog()))


def test_a_schema_keeps_the_order_of_its_properties() -> None:
    """In which the answer has them."""
    one = wanted(json_schema={"properties": {"z": {}, "a": {}}})
    assert one is not None
    assert one.spec.kind is GrammarKind.JSON_SCHEMA
    assert list(json.loads(one.spec.source)["properties"]) == ["z", "a"]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (GBNF, GrammarKind.GBNF),
        ('start ::= "a"\nroot ::= start', GrammarKind.GBNF),
        ('start: "a"', GrammarKind.LARK),
        ('?start: "a"', GrammarKind.LARK),
        ('%llguidance {}\n\nstart: "a"', GrammarKind.LARK),
    ],
)
def test_lark_is_told_from_gbnf(source: str, kind: GrammarKind) -> None:
    one = wanted(grammar=source)
    assert one is not None
    assert one.spec.kind is kind


def test_the_python_api_takes_schemas_and_grammars(served: Served) -> None:
    server = Server.from_service(served.service)
    answer = json.loads(server.generate("hi", schema=SCHEMA, max_tokens=400).text)
    Draft202012Validator(SCHEMA).validate(answer)
    assert server.generate("hi", schema=json.dumps(SMALL)).text.startswith("1")
    assert server.chat([{"role": "user", "content": "hi"}], grammar=GBNF).content in ("yes", "no")
    assert "".join(server.stream("hi", grammar=GBNF)) in ("yes", "no")
    for options in ({"schema": SCHEMA, "grammar": GBNF}, {"grammar": 5}, {"schema": {1, 2}}):
        with pytest.raises(BadRequest):
            server.generate("hi", **options)  # type: ignore[arg-type]  # that is the point
