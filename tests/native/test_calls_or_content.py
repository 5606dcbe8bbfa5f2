"""Every chat template llama.cpp has: what may call tools and has its content restricted is one or the other."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from llamaserve import _engine
from llamaserve.chat.prepared import PreparedChat, prepare_chat
from llamaserve.chat.restriction import chat_restriction
from llamaserve.chat.template import ChatOptions
from llamaserve.constraint import Constraint
from llamaserve.engine.native import NativeVocabulary
from llamaserve.grammar.compiler import GrammarCompiler
from llamaserve.grammar.spec import GrammarKind, GrammarSpec
from tests.native.chat_answers import CALL_ANSWERS, REASONING
from tests.native.chat_rig import HI, TEMPLATE_NAMES, WITH_TOOLS, allows_just, inspect, read, template
from tests.native.test_chat_templates import CALL, CONTROLS, tokens_of
from tests.native.tiny_models import EOS, write_dense_model

EITHER = ChatOptions(tools=WITH_TOOLS.tools, wants_content_mark=True)
SCHEMA = {
    "type": "object",
    "properties": {"sky": {"enum": ["blue", "grey"]}, "clouds": {"type": "integer"}},
    "required": ["sky", "clouds"],
    "additionalProperties": False,
}
CONTENT = GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
CLOSINGS = {"CohereForAI-c4ai-command-r7b-12-2024-tool_use": "<|END_RESPONSE|>"}
"""What models write behind the content; what else ends it is a token that ends the answer."""
RIGHT, WRONG = '{"sky": "grey", "clouds": 8}', '{"sky": "green", "clouds": 8}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> _engine.Model:
    return inspect(write_dense_model(tmp_path_factory.mktemp("models") / "chat.gguf", controls=CONTROLS))


@pytest.fixture(scope="module")
def grammars(model: _engine.Model) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(NativeVocabulary(model))
    yield compiler
    compiler.close()


def prepared(name: str, model: _engine.Model) -> PreparedChat:
    return prepare_chat(HI, template(name, model), NativeVocabulary(model), lambda text: [], EITHER)


def restriction(chat: PreparedChat, grammars: GrammarCompiler, model: _engine.Model) -> Constraint:
    constraint = chat_restriction(
        chat, CONTENT, lambda spec, param: grammars.compile(spec), NativeVocabulary(model), param="response_format"
    )
    assert constraint is not None
    return constraint


def takes(constraint: Constraint, answer: str) -> bool:
    return allows_just(constraint, tokens_of(answer), EOS)


def answers(name: str, model: _engine.Model, content: str) -> str:
    """An answer that has this content, as the template's models write it."""
    rendered = template(name, model).render(HI, EITHER)
    begun = f"{REASONING}{rendered.reasoning_end}" if rendered.begins_with_reasoning else ""
    return f"{begun}{rendered.content_mark}{content}{CLOSINGS.get(name, '')}"


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_content_is_held_to_its_schema_and_calls_to_theirs(
    name: str, model: _engine.Model, grammars: GrammarCompiler
) -> None:
    constraint = restriction(prepared(name, model), grammars, model)
    call = CALL_ANSWERS[name]
    assert takes(constraint, answers(name, model, RIGHT))
    assert takes(constraint, call)
    for wrong in (
        answers(name, model, WRONG),
        answers(name, model, "It will rain."),
        "It will rain.",
        call.replace("get_weather", "get_whether"),
        answers(name, model, RIGHT + call),
        "",
    ):
        assert not takes(constraint, wrong), wrong


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_both_are_read_as_what_they_are(name: str, model: _engine.Model) -> None:
    make_parser = prepared(name, model).make_parser
    message = read(make_parser(), [answers(name, model, RIGHT)])
    assert (message.content.strip(), message.calls) == (RIGHT, [])
    assert read(make_parser(), [CALL_ANSWERS[name]]).only_call == CALL


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_content_is_read_letter_by_letter(name: str, model: _engine.Model) -> None:
    message = read(prepared(name, model).make_parser(), list(answers(name, model, RIGHT)))
    assert (message.content.strip(), message.calls) == (RIGHT, [])


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_the_prompt_is_the_same_whether_a_call_must_come_or_may(name: str, model: _engine.Model) -> None:
    """Else the grammar would be that of another prompt's answer."""
    may = template(name, model).render(HI, EITHER)
    must = template(name, model).render(
        HI, ChatOptions(tools=WITH_TOOLS.tools, must_call=True, wants_content_mark=True)
    )
    assert (may.prompt, may.generation_prompt) == (must.prompt, must.generation_prompt)
