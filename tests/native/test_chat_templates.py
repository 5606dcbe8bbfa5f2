"""Every chat template llama.cpp has: conversations are rendered, calls read whole and in pieces, and enforced."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from llamaserve import _engine
from llamaserve.chat.prepared import prepare_chat
from llamaserve.chat.template import ChatOptions, ToolSupport
from llamaserve.engine.native import NativeVocabulary
from llamaserve.grammar.compiler import GrammarCompiler
from llamaserve.grammar.spec import GrammarSpec
from tests.native.chat_answers import CALL_ANSWERS, REASONING
from tests.native.chat_rig import HI, MUST_CALL, TEMPLATE_NAMES, WITH_TOOLS, allows_just, inspect, read, template
from tests.native.tiny_models import EOS, FIRST_BYTE, N_VOCAB, write_dense_model

CALL = ("get_weather", {"city": "Paris", "days": 3})
OWN_FORM = {
    "HuggingFaceTB-SmolLM3-3B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
    "upstage-Solar-Open-100B",
}
"""Templates that know no calls, or calls that llama.cpp cannot tell."""
UNTRIGGERED = {"meetkai-functionary-medium-v3.2", *(name for name in TEMPLATE_NAMES if name.startswith("meta-llama"))}
"""Templates whose calls begin with nothing that only calls begin with."""


CONTROLS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>", "[TOOL_CALLS]")
"""Marks of some templates that are tokens here, as in their models; the others are texts."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> _engine.Model:
    return inspect(write_dense_model(tmp_path_factory.mktemp("models") / "chat.gguf", controls=CONTROLS))


@pytest.fixture(scope="module")
def grammars(model: _engine.Model) -> GrammarCompiler:
    return GrammarCompiler(NativeVocabulary(model))


def test_every_template_has_an_answer_here() -> None:
    assert len(TEMPLATE_NAMES) > 60
    assert sorted(CALL_ANSWERS) == TEMPLATE_NAMES


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_a_plain_conversation_is_rendered_and_its_answer_is_content(name: str, model: _engine.Model) -> None:
    messages = [*HI, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "What is \u4e16?"}]
    rendered = template(name, model).render(messages)
    assert rendered.prompt.index("Hi") < rendered.prompt.index("Hello.") < rendered.prompt.index("\u4e16")
    answer = "I do <b>not</b> know: {1} [2]"
    begun = f"{REASONING}{rendered.reasoning_end}" if rendered.begins_with_reasoning else ""
    marked = template(name, model).render(messages, ChatOptions(wants_content_mark=True))
    text = f"{begun}{marked.content_mark}{answer}"
    message = read(rendered.make_parser(), text)
    assert (message.content.strip(), message.reasoning.strip(), message.calls) == (
        answer,
        REASONING if begun else "",
        [],
    )
    assert read(rendered.make_parser(), [text]) == message


ONE_SYSTEM_MESSAGE = {
    "Apertus-8B-Instruct",
    "Bielik-11B-v3.0-Instruct",
    "HuggingFaceTB-SmolLM3-3B",
    "MiniMax-M1",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "Qwen3.5-4B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it",
    "openai-gpt-oss-120b",
}
"""Some of the templates that refuse a second system message or leave one out."""


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_several_system_messages_are_all_read_once_and_in_their_order(name: str, model: _engine.Model) -> None:
    messages = [{"role": "system", "content": text} for text in ("first_", "second_", "third_")]
    prompt = template(name, model).render([*messages, {"role": "user", "content": "question_"}]).prompt
    assert re.findall("first_|second_|third_|question_", prompt) == ["first_", "second_", "third_", "question_"]
    assert not (template(name, model).takes_system_messages and name in ONE_SYSTEM_MESSAGE)


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
@pytest.mark.parametrize("options", [WITH_TOOLS, MUST_CALL], ids=["auto", "required"])
def test_a_call_is_read_whole_and_in_any_two_pieces_and_letter_by_letter(
    name: str, options: ChatOptions, model: _engine.Model
) -> None:
    answer = CALL_ANSWERS[name]
    make_parser = template(name, model).render(HI, options).make_parser
    whole = read(make_parser(), [answer])
    assert whole.only_call == CALL
    assert whole.content.strip() == ""
    assert whole.reasoning.strip() == (REASONING if REASONING in answer else "")
    cuts = [list(answer), *([answer[:cut], answer[cut:]] for cut in range(1, len(answer)))]
    for pieces in cuts:
        message = read(make_parser(), pieces)
        assert (message.calls, message.content, message.reasoning) == (whole.calls, whole.content, whole.reasoning)


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_a_demanded_call_is_enforced_and_nothing_else_allowed(
    name: str, model: _engine.Model, grammars: GrammarCompiler
) -> None:
    """tool_choice required, for templates that know no tools too."""
    vocab = NativeVocabulary(model)
    chat = prepare_chat(HI, template(name, model), vocab, lambda text: [], MUST_CALL)
    assert chat.calls is not None
    assert accepts(chat.calls, CALL_ANSWERS[name], grammars)
    assert not accepts(chat.calls, "It will rain.", grammars)
    wrong = CALL_ANSWERS[name].replace("get_weather", "get_whether")
    assert not accepts(chat.calls, wrong, grammars)


@pytest.mark.parametrize("name", sorted(set(TEMPLATE_NAMES) - UNTRIGGERED))
def test_a_call_that_may_come_is_held_to_its_grammar_once_it_has_begun(
    name: str, model: _engine.Model, grammars: GrammarCompiler
) -> None:
    vocab = NativeVocabulary(model)
    chat = prepare_chat(HI, template(name, model), vocab, lambda text: [], WITH_TOOLS)
    assert chat.calls is not None
    assert chat.calls.triggers
    reasoning = f"get_whether?{chat.content_after}" if chat.content_after else ""
    assert accepts(chat.calls, f"{reasoning}It will rain.", grammars)
    assert accepts(chat.calls, CALL_ANSWERS[name], grammars)
    wrong = CALL_ANSWERS[name].replace("get_weather", "get_whether")
    assert not accepts(chat.calls, wrong, grammars)


def tokens_of(answer: str) -> Iterator[int]:
    for part in re.split("(" + "|".join(map(re.escape, CONTROLS)) + ")", answer):
        if part in CONTROLS:
            yield N_VOCAB + CONTROLS.index(part)
        else:
            yield from (FIRST_BYTE + byte for byte in part.encode())


def accepts(spec: GrammarSpec, answer: str, grammars: GrammarCompiler) -> bool:
    """Whether an answer may be just this text."""
    return allows_just(grammars.compile(spec), tokens_of(answer), EOS)


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_calls_and_results_are_rendered_and_so_are_tools(name: str, model: _engine.Model) -> None:
    arguments = '{"city": "Zagreb", "days": 7}'
    call = {"id": "abcdef123", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    messages = [
        *HI,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": "hail at noon"},
    ]
    chosen = template(name, model)
    prompt = chosen.render(messages, WITH_TOOLS).prompt
    assert (chosen.tool_support is ToolSupport.NONE) == (name in OWN_FORM)
    if name not in ("LFM2-8B-A1B", "LFM2.5-Instruct"):  # their templates leave calls out
        assert "Zagreb" in prompt
    assert "hail at noon" in prompt
    assert "get_time" in prompt
    assert "The weather to come" in prompt or name == "CohereForAI-c4ai-command-r-plus-tool_use"


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_a_begun_answer_stands_at_the_end_of_the_prompt_and_is_not_given_again(name: str, model: _engine.Model) -> None:
    messages = [*HI, {"role": "assistant", "content": "Well, the"}]
    rendered = template(name, model).render(messages, ChatOptions(continue_final_message=True))
    assert rendered.prompt.endswith("Well, the")
    for pieces in ([" sky."], list(" sky.")):
        message = read(rendered.make_parser(), pieces)
        assert (message.content, message.reasoning, message.calls) == (" sky.", "", [])
