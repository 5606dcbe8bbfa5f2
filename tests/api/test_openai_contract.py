"""The openai package against the routes: what it sends arrives, what comes back is what its types say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from llamaserve.api.openai import preparing
from llamaserve.api.sse import Take
from llamaserve.chat.prepared import PreparedChat
from llamaserve.engine.fake import BOS, FakeEngine, scripted
from llamaserve.request import Event, GenerationRequest, PromptLogprobs, TextDelta, TokenLogprob
from tests.api.scripted_parser import WordParser
from tests.api.served import MODEL, LineTemplate, Served, serving

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
ANSWER = "Héllo"
CALLING = "HM so <find 1 2 <look 3"


@pytest.fixture
def own_server() -> Iterator[Served]:
    replies = {"user: hi\nassistant: ": ANSWER, "Once": " upon", "user: call\nassistant: ": CALLING}
    with serving(FakeEngine(continuation=scripted(replies)), template=LineTemplate()) as served:
        yield served


@pytest.fixture
def sdk(own_server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{own_server.client.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_and_its_stream(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert whole.choices[0].message.content == ANSWER
    assert whole.usage is not None
    stream = sdk.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert last.usage is not None
    assert last.usage.total_tokens == whole.usage.total_tokens


def test_several_choices_and_the_streams_of_them(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(model=MODEL, messages=MESSAGES, n=3, seed=5)
    assert [(choice.index, choice.message.content) for choice in whole.choices] == [(n, ANSWER) for n in range(3)]
    with sdk.chat.completions.stream(model=MODEL, messages=MESSAGES, n=3) as stream:
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == [ANSWER] * 3
    assert [choice.finish_reason for choice in final.choices] == ["stop"] * 3


def test_completions_of_a_batch(sdk: openai.OpenAI) -> None:
    whole = sdk.completions.create(model=MODEL, prompt=["Once", "Once"], n=2, echo=True)
    assert [(choice.index, choice.text) for choice in whole.choices] == [(n, "Once upon") for n in range(4)]
    ids = sdk.completions.create(model=MODEL, prompt=[[BOS, *b"Once"]])
    assert ids.choices[0].text == " upon"
    texts = dict.fromkeys(range(2), "")
    for chunk in sdk.completions.create(model=MODEL, prompt="Once", n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert set(texts.values()) == {" upon"}


# Tool calls.


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have answers read by the scripted parser."""

    def parsed_prompt(chat_prompt: Callable[..., PreparedChat], *arguments: Any, **options: Any) -> PreparedChat:
        return replace(chat_prompt(*arguments, **options), make_parser=WordParser)

    monkeypatch.setattr(preparing, "chat_prompt", partial(parsed_prompt, preparing.chat_prompt))


@pytest.mark.usefixtures("parses")
def test_tool_calls_and_reasoning_whole_and_streamed(sdk: openai.OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "call"}]
    whole = sdk.chat.completions.create(model=MODEL, messages=messages)
    (choice,) = whole.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    functions = [call.function for call in choice.message.tool_calls if call.type == "function"]
    assert [(function.name, function.arguments) for function in functions] == [("find", "12"), ("look", "3")]
    assert (choice.message.content, (choice.message.model_extra or {})["reasoning_content"]) == ("so", "HM")
    with sdk.chat.completions.stream(model=MODEL, messages=messages) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls is not None
    assert [call.id for call in final.message.tool_calls] == [call.id for call in choice.message.tool_calls]
    for whole_call, streamed_call in zip(choice.message.tool_calls, final.message.tool_calls, strict=True):
        assert whole_call.type == streamed_call.type == "function"
        assert whole_call.function.arguments == streamed_call.function.arguments
        assert whole_call.function.name == streamed_call.function.name


# Log probabilities, made up of the tokens themselves.


def logprob_of(token: int, n_top: int) -> TokenLogprob:
    likeliest = [token, 65, 66][:n_top]
    top = tuple((other, bytes([other % 256]), -1.0 - rank) for rank, other in enumerate(likeliest))
    return TokenLogprob(token, bytes([token % 256]), -1.0, top)


@pytest.fixture
def has_logprobs(own_server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every event carry log probabilities that are easy to foresee, in place of the engine's."""
    listen = own_server.service.listen

    def enriched(request: GenerationRequest, take: Take, event: Event) -> None:
        if isinstance(event, PromptLogprobs):
            return
        if not isinstance(event, TextDelta):
            take(event)
            return
        if request.logprobs is not None:
            n_top = request.logprobs
            event = replace(event, logprobs=tuple(logprob_of(token, n_top) for token in event.tokens))
        take(event)

    def enriching(requests: Sequence[GenerationRequest], takes: Sequence[Take]) -> Callable[[], None]:
        leave = listen(requests, [partial(enriched, *pair) for pair in zip(requests, takes, strict=True)])
        for request, take in zip(requests, takes, strict=True):
            if request.prompt_logprobs is not None:
                first, *rest = (logprob_of(token, request.prompt_logprobs) for token in request.prompt)
                take(PromptLogprobs((replace(first, logprob=None), *rest)))
        return leave

    monkeypatch.setattr(own_server.service, "listen", enriching)


@pytest.mark.usefixtures("has_logprobs")
def test_a_chats_log_probabilities_whole_and_streamed(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert bytes(byte for token in logprobs.content for byte in token.bytes or ()).decode() == ANSWER
    assert [len(token.top_logprobs) for token in logprobs.content] == [2] * len(ANSWER.encode())
    with sdk.chat.completions.stream(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].logprobs == logprobs


@pytest.mark.usefixtures("has_logprobs")
def test_a_completions_log_probabilities_with_echo(sdk: openai.OpenAI) -> None:
    """What lm-eval reads: the prompt's behind the context, and whether the likeliest was taken."""
    answer = sdk.completions.create(model=MODEL, prompt="Once", echo=True, logprobs=1, max_tokens=1, temperature=0)
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text == "Once "
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert "".join(logprobs.tokens[1:]) == "Once "
    assert logprobs.token_logprobs[0] is None
    assert all(math.isfinite(value) for value in logprobs.token_logprobs[1:])
    assert [max(top, key=lambda name, top=top: top[name]) for top in logprobs.top_logprobs[1:]] == logprobs.tokens[1:]
    assert logprobs.text_offset == [0, 0, 1, 2, 3, 4]


@pytest.mark.usefixtures("has_logprobs")
def test_llama_servers_and_vllms_words_for_them(own_server: Served) -> None:
    chat = own_server.chat("hi", n_probs=2).json()
    assert len(chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2
    completion = own_server.complete("Once", n_probs=2).json()
    assert len(completion["choices"][0]["logprobs"]["top_logprobs"][0]) == 2
    prompt = own_server.complete("Once", prompt_logprobs=0).json()["choices"][0]["prompt_logprobs"]
    assert prompt[0] is None
    assert [next(iter(entry.values()))["decoded_token"] for entry in prompt[1:]] == [*"Once"]
    assert own_server.chat("hi", prompt_logprobs=1).json()["prompt_logprobs"][0] is None


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "from 0 to 20"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs to be true"),
        ({"logprobs": 5}, "logprobs", "must be true or false"),
    ],
    ids=str,
)
def test_a_chats_wish_that_cannot_be_is_named(
    own_server: Served, fields: dict[str, Any], param: str, says: str
) -> None:
    refused = own_server.chat("hi", **fields)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert says in error["message"]


def test_an_error_in_a_stream_is_the_packages_own(sdk: openai.OpenAI) -> None:
    stream = sdk.completions.create(model=MODEL, prompt="a", n=2, stream=True, timeout=30, extra_body={"timeout": 1e-6})
    with pytest.raises(openai.APIError, match="timeout"):
        json.dumps([chunk.to_dict() for chunk in stream])
