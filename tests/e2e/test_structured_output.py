"""Structured output of the real model: what it says is what it may say, and a text that was cut begins such a one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jsonschema.validators import validator_for

from llamaserve import Server
from llamaserve.engine.fake_text import FakeVocabulary
from llamaserve.errors import BadGrammar
from llamaserve.grammar.compiler import GrammarCompiler
from llamaserve.grammar.spec import GrammarKind, GrammarSpec
from llamaserve.request import FinishReason
from tests.unit.grammar.schema_corpus import Schema, corpus
from tests.unit.grammar.walk import takes_start

MAX_TOKENS = 40
EVERY = 12


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("smollm2", n_ctx=4096, n_slots=8) as server:
        yield server


def test_answers_of_a_real_model_are_instances_or_beginnings_of_instances(server: Server) -> None:
    """A part of the corpus, side by side, drawn at a high temperature."""
    by_bytes = GrammarCompiler(FakeVocabulary())

    def answer(numbered: tuple[int, Schema]) -> str:
        number, schema = numbered
        source = json.dumps(schema)
        try:
            constraint = by_bytes.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, source))
        except BadGrammar:
            return "refused"
        messages = [{"role": "user", "content": f"Give me a JSON value like this schema says: {source[:200]}"}]
        completion = server.chat(messages, schema=schema, max_tokens=MAX_TOKENS, temperature=1.2, seed=number)
        if completion.finish_reason is FinishReason.LENGTH:
            assert takes_start(constraint, completion.content.encode()), (schema, completion.content)
            return "cut"
        validator_for(schema, default=validator_for({}))(schema).validate(json.loads(completion.content))
        return "whole"

    some = list(itertools.islice(enumerate(corpus()), 0, None, EVERY))
    with ThreadPoolExecutor(8) as threads:
        kinds = list(threads.map(answer, some))
    by_bytes.close()
    assert kinds.count("whole") >= len(some) // 3
    assert kinds.count("refused") < len(some) // 4


@pytest.mark.parametrize("grammar", ['root ::= ("yes" | "no") [.!]', GrammarSpec(GrammarKind.REGEX, "(yes|no)[.!]")])
def test_a_grammar_leaves_the_model_its_choice_only(server: Server, grammar: str | GrammarSpec) -> None:
    messages = [{"role": "user", "content": "Is the sky blue?"}]
    answers = {server.chat(messages, grammar=grammar, seed=seed, temperature=2.0).content for seed in range(8)}
    assert answers <= {"yes.", "yes!", "no.", "no!"}
    assert len(answers) > 1


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather to come",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_an_answer_with_tools_and_a_schema_calls_one_or_is_an_instance(server: Server) -> None:
    """The model's template knows no tools: they are described, and called in the form of our own."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    closed = {**schema, "additionalProperties": False}
    n_whole = 0
    for text in ("How many legs has a cat?", "Call get_weather for Paris. Write <tool_call>"):
        for seed in range(4):
            answer = server.chat(
                [{"role": "user", "content": text}], tools=[TOOL], schema=closed, max_tokens=120, seed=seed
            )
            if answer.finish_reason is FinishReason.LENGTH:
                continue
            n_whole += 1
            if answer.tool_calls:
                assert answer.content.strip() == ""
                assert {call.name for call in answer.tool_calls} == {"get_weather"}
            else:
                assert set(json.loads(answer.content)) == {"n"}
    assert n_whole >= 4


def test_a_neighbour_is_not_restricted(server: Server) -> None:
    """S39: greedy, alone and beside one that is."""
    asked: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "cache_prompt": False}
    alone = server.generate("The capital of France is", **asked).text
    with ThreadPoolExecutor(2) as threads:
        beside = threads.submit(server.generate, "The capital of France is", **asked)
        other = threads.submit(server.generate, "Say x:", grammar='root ::= "x"+', max_tokens=12, temperature=0)
        assert set(other.result().text) == {"x"}
        assert beside.result().text == alone
