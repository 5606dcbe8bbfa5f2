"""Answers read while they are written: any pieces give the same message, in linear time, whatever the text is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserve import _engine
from llamaserve.chat.template import ChatOptions
from tests.native.chat_rig import HI, WITH_TOOLS, inspect, read, template
from tests.native.tiny_models import write_dense_model

QWEN3, GPT_OSS, GEMMA4, QWEN_CODER = "Qwen-Qwen3-0.6B", "openai-gpt-oss-120b", "google-gemma-4-31B-it", "Qwen3-Coder"
LLAMA3 = "meta-llama-Llama-3.1-8B-Instruct"
TOOLS = ChatOptions(tools=WITH_TOOLS.tools, parallel_calls=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> _engine.Model:
    return inspect(write_dense_model(tmp_path_factory.mktemp("models") / "chat.gguf"))


def parser(model: _engine.Model, name: str, options: ChatOptions = TOOLS) -> _engine.ChatParser:
    """The native parser alone, which counts what it parses."""
    variables: dict[str, bytes] = {}
    rendered = _engine.ChatTemplate(model, _source(name)).render(
        json.dumps(HI).encode(),
        tools=json.dumps(options.tools).encode(),
        must_call=False,
        parallel_calls=True,
        add_generation_prompt=True,
        continue_final=False,
        enable_thinking=True,
        extract_reasoning=True,
        variables=variables,
    )
    assert rendered.syntax is not None
    return _engine.ChatParser(rendered.syntax)


def _source(name: str) -> bytes:
    return (Path(__file__).resolve().parents[2] / f"vendor/llama.cpp/models/templates/{name}.jinja").read_bytes()


WORDS = 'So <b>x</b> {y} [1] < tool > é世 \\n "q" '
LONG = (WORDS * 500)[:16_000]
CALL = '<tool_call>\n{{"name": "get_weather", "arguments": {}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        (QWEN3, LONG),
        (QWEN3, f"<think>{LONG}</think>\n\nHello"),
        (QWEN3, CALL.format(json.dumps({"city": LONG}))),
        (QWEN3, CALL.format(json.dumps({"city": "x", "l": list(range(3000))}))),
        (
            QWEN_CODER,
            f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{LONG}\n</parameter>\n</function>\n</tool_call>",
        ),
        (GPT_OSS, f"<|channel|>analysis<|message|>{LONG}<|end|><|start|>assistant<|channel|>final<|message|>Hello"),
    ],
    ids=["content", "reasoning", "text argument", "many arguments", "tagged argument", "channels"],
)
def test_a_long_answer_comes_token_by_token_and_is_parsed_a_few_times_only(
    name: str, answer: str, model: _engine.Model
) -> None:
    """Parsing again after each token would be some 2000 times."""
    reader = parser(model, name)
    pieces = [answer[start : start + 4] for start in range(0, len(answer), 4)]
    n_silent = sum(reader.feed(piece) == ("", "", []) for piece in pieces)
    assert n_silent < 120  # marks, and what may become one
    assert reader.n_parsed < 30 * len(answer.encode())


def test_a_long_answer_whose_every_token_may_end_a_part_costs_linear_time_too(model: _engine.Model) -> None:
    numbers = ",".join(map(str, range(3500)))
    for n_characters in (4_000, 16_000):
        reader = parser(model, GEMMA4)
        answer = f"<|tool_call>call:get_weather{{l:[{numbers[:n_characters]}"
        for start in range(0, len(answer), 4):
            reader.feed(answer[start : start + 4])
        assert reader.n_parsed <= 512 * 1024 + 130 * len(answer)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pieces_of_any_length_give_the_same_message(model: _engine.Model, data: st.DataObject) -> None:
    text = st.text('ab {}[]"\\<>/\né世', max_size=12)
    reasoning, content, city = data.draw(text), data.draw(text), data.draw(st.text('aé "\\{[', max_size=8))
    n_calls = data.draw(st.integers(0, 3))
    calls = "\n".join([CALL.format(json.dumps({"city": city, "days": 2}))] * n_calls)
    answer = f"<think>{reasoning}</think>{content}{calls}"
    make_parser = template(QWEN3, model).render(HI, TOOLS).make_parser
    whole = read(make_parser(), [answer])
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer)), max_size=20)))
    pieces = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    message = read(make_parser(), pieces)
    assert (message.content, message.reasoning, message.calls) == (whole.content, whole.reasoning, whole.calls)
    assert [(name, json.loads(arguments)) for name, arguments in whole.calls] == [
        ("get_weather", {"city": city, "days": 2})
    ] * n_calls
    assert whole.reasoning.strip() == reasoning.strip()
    assert whole.content.strip() == content.strip()


def test_a_beginning_of_a_mark_is_held_back_until_it_is_none(model: _engine.Model) -> None:
    reader = template(QWEN3, model).render(HI, TOOLS).make_parser()
    assert [delta.content for delta in reader.feed("a <tool_ca")] == ["a "]
    assert [delta.content for delta in reader.feed("ll x")] == ["<tool_call x"]
    assert [delta.content for delta in reader.feed("<tool")] == []
    assert [delta.content for delta in reader.finish()] == ["<tool"]


@pytest.mark.parametrize("pieces", [1, 4, 100])
@pytest.mark.parametrize(
    ("name", "answer", "content"),
    [
        (QWEN3, "<think>a</think><", "<"),
        (QWEN3, "<think></think>\n\n<tool_c", "<tool_c"),
        (QWEN3, '<think>a</think>b<tool_call>\n{"na', "b"),
        (LLAMA3, "{", "{"),
        (LLAMA3, "Hi {", "Hi {"),
        (LLAMA3, 'Hi {"a": 1}', 'Hi {"a": 1}'),
    ],
)
def test_an_end_that_might_have_become_a_call_is_content_and_a_call_without_a_name_is_none(
    name: str, answer: str, content: str, pieces: int, model: _engine.Model
) -> None:
    make_parser = template(name, model).render(HI, TOOLS).make_parser
    message = read(make_parser(), [answer[start : start + pieces] for start in range(0, len(answer), pieces)])
    assert (message.content.strip(), message.calls) == (content, [])


def test_calls_have_ids_that_every_template_takes(model: _engine.Model) -> None:
    """Mistral's templates refuse others."""
    answer = f"{CALL.format('{}')}\n{CALL.format('{}')}"
    ids = read(template(QWEN3, model).render(HI, TOOLS).make_parser(), list(answer)).ids
    assert len(set(ids)) == 2
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)


@pytest.mark.parametrize(
    "garbage",
    [
        "<tool_call>\nget_weather(Paris)",
        "<tool_call>\n" * 3,
        '<tool_call>\n{"name": "get_whether", "arguments": {}}\n</tool_call>',
        "</think></think>",
        "<|start|>assistant<|channel|>nowhere<|message|>x",
    ],
)
@pytest.mark.parametrize("name", [QWEN3, GPT_OSS, GEMMA4])
def test_a_text_that_does_not_fit_is_content_and_nothing_of_it_lost(
    garbage: str, name: str, model: _engine.Model
) -> None:
    for pieces in ([garbage], list(garbage)):
        message = read(template(name, model).render(HI, TOOLS).make_parser(), pieces)
        assert message.calls == []
        for word in ("get_weather(Paris)", "get_whether", "nowhere"):
            assert (word in message.content + message.reasoning) == (word in garbage)


@pytest.mark.parametrize("opening", ["[", '{"a":', '<tool_call>\n{"name": "get_weather", "arguments": {"city": ['])
def test_brackets_without_end_neither_crash_nor_hang(opening: str, model: _engine.Model) -> None:
    """llama.cpp's parser recurses with them."""
    reader = template(QWEN3, model).render(HI, TOOLS).make_parser()
    for _ in range(400):
        reader.feed(opening + "[" * 500)
    reader.finish()


@pytest.mark.parametrize("depth", [500, 10_000])
@pytest.mark.parametrize("part", ["content", "reasoning_content"])
def test_a_continued_message_of_brackets_without_end_does_not_crash(
    part: str, depth: int, model: _engine.Model
) -> None:
    """It is the client's text; what follows it is content if the whole cannot be read."""
    begun = '<tool_call>\n{"name": "get_weather", "arguments": {"city": ' + "[" * depth
    messages = [*HI, {"role": "assistant", "content": "", part: begun}]
    options = ChatOptions(tools=WITH_TOOLS.tools, continue_final_message=True)
    rendered = template(QWEN3, model).render(messages, options)
    assert begun in rendered.generation_prompt
    for pieces in (["1, 2"], list("1, 2")):
        reader = rendered.make_parser()
        deltas = [*(delta for piece in pieces for delta in reader.feed(piece)), *reader.finish()]
        given = "".join(delta.content + delta.reasoning for delta in deltas)
        given += "".join(call.arguments for delta in deltas for call in delta.tool_calls)
        assert given == "1, 2"


def test_an_unfinished_call_gives_what_there_is_of_its_arguments(model: _engine.Model) -> None:
    answer = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par'
    for pieces in ([answer], list(answer)):
        message = read(template(QWEN3, model).render(HI, TOOLS).make_parser(), pieces)
        assert message.calls == [("get_weather", '{"city": "Par')]
