"""The openai package against the real server and the default model."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.http_server import MODEL_NAME, N_CTX, RealServer

CAPITAL: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
]
COMPUTED = {"cache_prompt": False}
"""For texts that are compared: a prompt of which a part was cached may round otherwise."""


@pytest.fixture
def sdk(http_server: RealServer) -> Generator[openai.OpenAI, None, None]:
    with openai.OpenAI(base_url=f"{http_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models_are_listed_and_shown(sdk: openai.OpenAI) -> None:
    (model,) = sdk.models.list().data
    assert model.id == MODEL_NAME
    assert sdk.models.retrieve(MODEL_NAME).id == MODEL_NAME


def test_a_chat_answers_sensibly(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model=MODEL_NAME, messages=CAPITAL, temperature=0, max_tokens=32)
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat_is_the_whole_chat_in_pieces(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(
        model=MODEL_NAME, messages=CAPITAL, temperature=0, max_tokens=24, extra_body=COMPUTED
    )
    chunks = list(
        sdk.chat.completions.create(
            model=MODEL_NAME,
            messages=CAPITAL,
            temperature=0,
            max_completion_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=COMPUTED,
        )
    )
    usage_chunk = chunks.pop()
    assert usage_chunk.choices == []
    assert usage_chunk.usage == whole.usage
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_completion_continues_its_prompt(sdk: openai.OpenAI) -> None:
    prompt = "The capital of France is"
    asked: dict[str, Any] = {"prompt": prompt, "temperature": 0, "max_tokens": 8, "extra_body": COMPUTED}
    whole = sdk.completions.create(model=MODEL_NAME, **asked)
    assert whole.id.startswith("cmpl-")
    assert "Paris" in whole.choices[0].text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 8
    chunks = list(sdk.completions.create(model=MODEL_NAME, stream=True, **asked))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_a_stop_string_ends_a_completion_and_is_left_out(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(
        model=MODEL_NAME, prompt="Count: one, two, three,", temperature=0, max_tokens=32, stop=[","]
    )
    assert answer.choices[0].finish_reason == "stop"
    assert "," not in answer.choices[0].text


def test_the_same_seed_draws_the_same_text(sdk: openai.OpenAI) -> None:
    def story(seed: int) -> str:
        return (
            sdk.completions.create(
                model=MODEL_NAME, prompt="Once", temperature=1.5, seed=seed, max_tokens=16, extra_body=COMPUTED
            )
            .choices[0]
            .text
        )

    assert story(1) == story(1)
    assert len({story(seed) for seed in (1, 2, 3, 4)}) > 1


def test_choices_are_what_each_would_be_alone_and_their_prompt_is_computed_once(sdk: openai.OpenAI) -> None:
    prompt = "A prompt that nobody has sent before: the capital of France is"
    several = sdk.completions.create(model=MODEL_NAME, prompt=prompt, temperature=0, max_tokens=8, n=6)
    assert several.usage is not None
    assert several.usage.completion_tokens == 48
    assert several.usage.prompt_tokens_details is not None
    assert several.usage.prompt_tokens_details.cached_tokens == 0
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3, 4, 5]
    alone = sdk.completions.create(model=MODEL_NAME, prompt=prompt, temperature=0, max_tokens=8, extra_body=COMPUTED)
    assert {choice.text for choice in several.choices} == {alone.choices[0].text}
    drawn = sdk.completions.create(model=MODEL_NAME, prompt=prompt, temperature=1.5, seed=3, max_tokens=16, n=4)
    assert len({choice.text for choice in drawn.choices}) > 1


def test_the_default_model_cannot_fill_in_the_middle_and_says_so(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no tokens for filling in the middle"):
        sdk.completions.create(model=MODEL_NAME, prompt="a", suffix="b")


def test_eight_at_once_chat_and_completions_streamed_and_not(http_server: RealServer) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{http_server.url}/v1", api_key="none", max_retries=0) as sdk:

            async def chat() -> str:
                answer = await sdk.chat.completions.create(
                    model=MODEL_NAME, messages=CAPITAL, temperature=0, max_tokens=24
                )
                return answer.choices[0].message.content or ""

            async def chat_stream() -> str:
                stream = await sdk.chat.completions.create(
                    model=MODEL_NAME, messages=CAPITAL, temperature=0, max_tokens=24, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            async def completion() -> str:
                answer = await sdk.completions.create(
                    model=MODEL_NAME, prompt="The capital of France is", temperature=0, max_tokens=8
                )
                return answer.choices[0].text

            async def completion_stream() -> str:
                stream = await sdk.completions.create(
                    model=MODEL_NAME, prompt="The capital of France is", temperature=0, max_tokens=8, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            kinds = (chat, chat_stream, completion, completion_stream)
            texts = await asyncio.gather(*(kind() for kind in kinds * 2))
            assert all("Paris" in text for text in texts), texts

    asyncio.run(main())


def test_errors_arrive_as_the_sdks_own_exceptions(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        sdk.chat.completions.create(model="gpt-4o", messages=CAPITAL)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.chat.completions.create(model=MODEL_NAME, messages=CAPITAL, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as too_long:
        sdk.completions.create(model=MODEL_NAME, prompt="word " * (N_CTX + 10), stream=True)
    assert too_long.value.code == "context_length_exceeded"
