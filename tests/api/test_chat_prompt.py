"""From a chat's body to messages, tools and options: what is refused, and what the template and the engine get."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from llamaserve.api.openai.body import ChatBody, decode_body
from llamaserve.api.openai.chat_messages import template_messages
from llamaserve.api.openai.chat_prompt import BUDGET_FIELDS, MAX_VARIABLES_BYTES, chat_prompt
from llamaserve.api.openai.fields import UnknownFieldLog
from llamaserve.chat.prepared import PreparedChat
from llamaserve.chat.template import PLAIN_CHAT, ChatOptions, RenderedChat
from llamaserve.engine.fake import BOS, FakeVocabulary
from llamaserve.errors import BadRequest, BadTemplate, PromptTooLong
from tests.api.served import LineTemplate

N_CTX = 1024
HI = [{"role": "user", "content": "hi"}]
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
TIME = {"type": "function", "function": {"name": "get_time"}}


def chat(messages: object, **fields: object) -> ChatBody:
    return decode_body(json.dumps({"messages": messages, **fields}).encode(), ChatBody, UnknownFieldLog())


class KeepingTemplate(LineTemplate):
    """Keeps what it was asked to render; knows reasoning between tags."""

    options = PLAIN_CHAT
    n_rendered = 0

    def render(self, messages: Sequence[Mapping[str, object]], options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
        self.options = options
        self.n_rendered += len(messages)
        rendered = super().render(messages, options)
        return RenderedChat(rendered.prompt, rendered.stops, reasoning_start="<think>", reasoning_end="</think>")


def prepared(messages: object = HI, **fields: object) -> tuple[PreparedChat, ChatOptions]:
    template = KeepingTemplate()
    return chat_prompt(chat(messages, **fields), template, FakeVocabulary(), N_CTX), template.options


def refused(messages: object = HI, **fields: object) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        prepared(messages, **fields)
    return caught.value


class CountingVocabulary(FakeVocabulary):
    """Eight characters a token."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [1] * (len(text) // 8 + 1)


def test_a_chat_prompt_is_rendered_and_brings_the_templates_stops() -> None:
    chat_tokens = chat_prompt(chat(HI), LineTemplate(("\nuser:",)), FakeVocabulary(), N_CTX)
    assert chat_tokens == PreparedChat((BOS, *b"user: hi\nassistant: "), ("\nuser:",))


def test_a_model_without_a_template_says_where_to_go() -> None:
    with pytest.raises(BadTemplate, match="/v1/completions"):
        chat_prompt(chat(HI), None, FakeVocabulary(), N_CTX)


def test_a_text_far_over_the_context_is_refused_before_it_is_tokenised_whole() -> None:
    messages = [{"role": "user", "content": "x" * 2_000_000}]
    with pytest.raises(PromptTooLong, match="at least"):
        chat_prompt(chat(messages), LineTemplate(), CountingVocabulary(), N_CTX)


def test_more_messages_than_the_context_has_tokens_are_refused_before_they_are_rendered() -> None:
    """Rendering 20,000 messages takes seconds."""
    template = KeepingTemplate()
    with pytest.raises(PromptTooLong, match=f"at least {N_CTX + 1} tokens") as caught:
        chat_prompt(chat([{"role": "user"}] * (N_CTX + 1)), template, CountingVocabulary(), N_CTX)
    assert (caught.value.n_prompt, caught.value.n_ctx) == (N_CTX + 1, N_CTX)
    assert template.n_rendered == 0
    chat_prompt(chat([{"role": "user"}] * N_CTX), template, CountingVocabulary(), N_CTX)
    assert template.n_rendered == N_CTX


# --- messages ---


def test_messages_become_what_templates_read() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    body = chat(
        [
            {"role": "developer", "content": "be brief"},
            {"role": "system", "content": None},
            {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "one"}, "two"]},
            {"role": "assistant", "tool_calls": [], "reasoning_content": "hm"},
            {"role": "assistant", "content": None, "reasoning": "so", "tool_calls": [call]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "now"}}]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": {"b": [2]}}}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "refusal": None},
            {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "42"},
            {"role": "assistant", "content": ""},
        ]
    )
    assert template_messages(body.messages) == [
        {"role": "system", "content": "be brief"},
        {"role": "system", "content": ""},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
        {"role": "assistant", "content": "", "reasoning_content": "so", "tool_calls": [call]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "now", "arguments": "{}"}}],
        },
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "now", "arguments": '{"b":[2]}'}}],
        },
        {"role": "assistant", "content": "no"},
        {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "add"},
        {"role": "assistant", "content": ""},
    ]


def assistant(**function: object) -> list[dict[str, object]]:
    return [{"role": "assistant", "tool_calls": [{"function": {"name": "f", **function}}]}]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "oracle", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([*HI, {"role": "assistant", "tool_calls": [{}]}], "messages[1].tool_calls[0].function"),
        ([{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}], "messages[0].tool_calls"),
        (
            [{"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]}],
            "messages[0].tool_calls[0].type",
        ),
        (assistant(name=""), "messages[0].tool_calls[0].function.name"),
        (assistant(arguments="{"), "messages[0].tool_calls[0].function.arguments"),
        (assistant(arguments="[1]"), "messages[0].tool_calls[0].function.arguments"),
        (assistant(arguments='{"a":' * 100 + "1" + "}" * 100), "messages[0].tool_calls[0].function.arguments"),
        ([{"role": "assistant", "function_call": {"name": "f"}}], "messages[0].function_call"),
    ],
    ids=range(13),
)
def test_messages_that_cannot_be_used_are_refused_by_path(messages: object, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        template_messages(chat(messages).messages)
    assert caught.value.param == param
    assert str(caught.value).startswith(param)


@pytest.mark.parametrize(
    "messages", ["hi", [1], {}, None, [{"role": 1, "content": "x"}], [{"role": "user", "content": 3}]]
)
def test_messages_of_the_wrong_type_are_refused(messages: object) -> None:
    with pytest.raises(BadRequest, match=r"^messages"):
        chat(messages)


# --- tools ---


def test_tools_reach_the_template_and_the_choice_says_which_and_whether_one_must_be_called() -> None:
    for choice in (None, "auto"):
        chat_tokens, options = prepared(tools=[WEATHER, TIME], tool_choice=choice)
        assert [tool["function"]["name"] for tool in options.tools] == ["get_weather", "get_time"]  # type: ignore[index]
        assert (options.must_call, options.parallel_calls) == (False, None)
        assert (chat_tokens.has_tools, chat_tokens.must_call) == (True, False)
    assert prepared(tools=[WEATHER], tool_choice="none")[1].tools == ()
    chat_tokens, options = prepared(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    assert (options.must_call, options.parallel_calls, chat_tokens.must_call) == (True, False, True)


def test_the_words_of_the_former_api_are_refused_and_name_the_new_ones() -> None:
    with pytest.raises(BadRequest, match="use tools"):
        chat(HI, functions=[{"name": "f"}])
    with pytest.raises(BadRequest, match="use tool_choice"):
        chat(HI, function_call={"name": "f"})


def test_a_template_in_the_body_is_refused() -> None:
    with pytest.raises(BadRequest, match="the model's own template is used"):
        chat(HI, chat_template="{{ 1 }}")


def test_tools_that_cannot_be_used_are_refused_by_path() -> None:
    assert refused(tools=[{"type": "retrieval"}]).param == "tools[0].type"
    assert refused(tools=[WEATHER], tool_choice="never").param == "tool_choice"
    with pytest.raises(BadRequest, match=r"^tools: expected array"):
        chat(HI, tools={"type": "function"})


# --- options ---


def test_options_reach_the_template() -> None:
    _, options = prepared(
        add_generation_prompt=False,
        chat_template_kwargs={"enable_thinking": False, "style": "old"},
        reasoning_format="none",
        reasoning_effort="high",
    )
    assert options == ChatOptions(
        add_generation_prompt=False,
        enable_thinking=False,
        extract_reasoning=False,
        variables={"style": "old", "reasoning_effort": "high"},
    )
    assert prepared()[1] == PLAIN_CHAT
    assert prepared(reasoning_format="deepseek", reasoning_effort="none")[1] == ChatOptions(enable_thinking=False)
    assert prepared(chat_template_kwargs={"enable_thinking": None})[1] == ChatOptions()


def test_a_begun_answer_is_gone_on_with() -> None:
    _, options = prepared([*HI, {"role": "assistant", "content": "Well"}], continue_final_message=True)
    assert options.continue_final_message


@pytest.mark.parametrize(
    ("messages", "fields", "param"),
    [
        (HI, {"continue_final_message": True}, "continue_final_message"),
        (assistant(), {"continue_final_message": True}, "continue_final_message"),
        (
            [{"role": "assistant", "content": "a"}],
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        (HI, {"reasoning_format": "raw"}, "reasoning_format"),
        (HI, {"reasoning_effort": "heroic"}, "reasoning_effort"),
        (HI, {"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
        (HI, {"chat_template_kwargs": {"a": "x" * MAX_VARIABLES_BYTES}}, "chat_template_kwargs"),
        (HI, {"reasoning_budget": -2}, "reasoning_budget"),
    ],
    ids=range(8),
)
def test_options_that_cannot_be_had_are_refused_by_name(
    messages: object, fields: dict[str, object], param: str
) -> None:
    assert refused(messages, **fields).param == param


@pytest.mark.parametrize("name", BUDGET_FIELDS)
def test_a_reasoning_has_a_budget_by_any_of_its_names(name: str) -> None:
    assert prepared(**{name: 5})[0].reasoning_budget == 5
    assert prepared(**{name: -1})[0].reasoning_budget is None


def test_a_budget_for_a_reasoning_the_template_does_not_know_is_refused() -> None:
    with pytest.raises(BadRequest, match="knows no reasoning") as caught:
        chat_prompt(chat(HI, reasoning_budget=5), LineTemplate(), FakeVocabulary(), N_CTX)
    assert caught.value.param == "reasoning_budget"
