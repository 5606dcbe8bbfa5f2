"""A model with random weights calls the tool it must call, over HTTP's way to the engine and in the Python API."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import suppress

import pytest

from llamaserve import Server
from llamaserve.errors import RequestError
from tests.native.chat_rig import HI, TEMPLATES, TIME, WEATHER
from tests.native.tiny_models import FIRST_BYTE, write_dense_model

PINNED = {
    "type": "function",
    "function": {
        "name": "pick",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"color": {"enum": ["red", "green"]}, "n": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["color", "n"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module", params=["Qwen-Qwen2.5-7B-Instruct", "google-gemma-2-2b-it"], ids=["native", "own form"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Server, None, None]:
    source = (TEMPLATES / f"{request.param}.jinja").read_text(encoding="utf-8")
    path = write_dense_model(tmp_path_factory.mktemp("models") / "calls.gguf", chat_template=source)
    with Server(path, n_ctx=8192, n_slots=2, n_threads=1) as server:
        yield server


def test_a_demanded_call_comes_with_arguments_that_fit(server: Server) -> None:
    """Random weights write nothing of the kind by themselves."""
    for seed in range(5):
        answer = server.chat(
            HI, tools=[PINNED], tool_choice="required", parallel_tool_calls=False, max_tokens=600, seed=seed
        )
        assert answer.content == ""
        (call,) = answer.tool_calls
        arguments = json.loads(call.arguments)
        assert call.name == "pick"
        assert arguments["color"] in ("red", "green")
        assert 1 <= arguments["n"] <= 9
        message = answer.message
        told = [*HI, message, {"role": "tool", "content": "done"}]
        assert server.chat(told, max_tokens=2, ignore_eos=True).usage.completion_tokens


def test_only_the_chosen_tool_is_called(server: Server) -> None:
    choice = {"type": "function", "function": {"name": "get_time"}}
    answer = server.chat(
        HI, tools=[WEATHER, TIME], tool_choice=choice, parallel_tool_calls=False, max_tokens=200, seed=1
    )
    assert [(call.name, json.loads(call.arguments)) for call in answer.tool_calls] == [("get_time", {})]


def test_an_answer_that_may_call_a_tool_need_not(server: Server) -> None:
    answer = server.chat(HI, tools=[WEATHER], max_tokens=5, seed=1, ignore_eos=True)
    assert answer.tool_calls == ()
    assert answer.usage.completion_tokens > 0


@pytest.mark.parametrize("calls", [True, False])
def test_an_answer_with_tools_and_a_schema_is_a_call_or_an_instance(server: Server, calls: bool) -> None:
    """Random weights that like the first letter of calls, or of the schema's instances."""
    schema = {"enum": ["red", "green"]}
    liked = FIRST_BYTE + ord("<" if calls else '"')
    for seed in range(3):
        answer = server.chat(
            HI,
            tools=[PINNED],
            schema=schema,
            parallel_tool_calls=False,
            max_tokens=600,
            seed=seed,
            logit_bias={liked: 50.0},
        )
        assert [call.name for call in answer.tool_calls] == ["pick"] * calls
        if calls:
            assert answer.content == ""
            assert json.loads(answer.tool_calls[0].arguments)["color"] in ("red", "green")
        else:
            assert json.loads(answer.content) in ("red", "green")
    alone = server.chat(HI, tools=[PINNED], tool_choice="none", schema=schema, max_tokens=60, seed=1)
    assert json.loads(alone.content) in ("red", "green")


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {"x": {"type": "string", "pattern": "(((a{1,1000}){1,1000}){1,1000}){1,1000}"}},
        },
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/y"}}, "$defs": {"y": {"$ref": "#/$defs/y"}}},
        {"type": "object", "properties": {"x": {"type": "array", "minItems": 10**9, "items": {"type": "string"}}}},
        {"type": "object", "properties": {"x": {"anyOf": [{"type": "string", "pattern": "[a-z]{900}"}] * 500}}},
        {"type": "object", "properties": {str(index): {"type": "string"} for index in range(399)}},
    ],
    ids=["pattern", "cycle", "items", "alternatives", "properties"],
)
def test_a_schema_built_to_hang_is_refused_or_served_in_time(server: Server, schema: dict[str, object]) -> None:
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}
    for choice in ("auto", "required"):
        with suppress(RequestError):
            server.chat(HI, tools=[tool], tool_choice=choice, max_tokens=2, timeout_s=20)
    assert server.chat(HI, max_tokens=1, ignore_eos=True).usage.completion_tokens
