"""litellm: one call for every provider, and one set of exceptions for all their errors."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import litellm

from tests.clients.checking import API_KEY, MODEL, N_CTX, main, raised

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PROVIDERS = ("openai", "hosted_vllm")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
COUNTRY = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "is_island": {"type": "boolean"}},
    "required": ["name", "is_island"],
    "additionalProperties": False,
}


def options(url: str, provider: str = "openai", model: str = MODEL) -> dict[str, object]:
    """What every call needs."""
    return {"model": f"{provider}/{model}", "api_base": f"{url}/v1", "api_key": API_KEY, "num_retries": 0}


def check_a_chat_answers_with_usage(url: str) -> None:
    for provider in PROVIDERS:
        answer = litellm.completion(**options(url, provider), messages=QUESTION, max_tokens=16, temperature=0)
        assert isinstance(answer.choices[0].message.content, str)
        assert answer.choices[0].finish_reason in ("stop", "length")
        assert 0 < answer.usage.completion_tokens <= 16
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def check_a_stream_is_the_whole_answer_and_ends_with_usage(url: str) -> None:
    whole = litellm.completion(**options(url), messages=QUESTION, max_tokens=16, temperature=0)
    stream = litellm.completion(
        **options(url),
        messages=QUESTION,
        max_tokens=16,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    built = litellm.stream_chunk_builder(chunks, messages=QUESTION)
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason


def check_eight_async_calls_at_once(url: str) -> None:
    async def ask(seed: int) -> str:
        answer = await litellm.acompletion(**options(url), messages=QUESTION, max_tokens=8, seed=seed)
        return answer.choices[0].finish_reason

    async def ask_all() -> list[str]:
        return await asyncio.gather(*(ask(seed) for seed in range(8)))

    assert set(asyncio.run(ask_all())) <= {"stop", "length"}


def check_an_async_stream(url: str) -> None:
    async def read() -> str | None:
        stream = await litellm.acompletion(**options(url), messages=QUESTION, max_tokens=8, stream=True)
        return [chunk.choices[0].finish_reason async for chunk in stream][-1]

    assert asyncio.run(read()) in ("stop", "length")


def check_a_text_completion(url: str) -> None:
    answer = litellm.text_completion(
        **{**options(url), "model": f"text-completion-openai/{MODEL}"}, prompt="Once upon a time", max_tokens=8, n=2
    )
    assert len(answer.choices) == 2
    assert all(isinstance(choice.text, str) for choice in answer.choices)


def check_a_json_schema_is_kept(url: str) -> None:
    for provider in PROVIDERS:
        answer = litellm.completion(
            **options(url, provider),
            messages=[{"role": "user", "content": "Describe Iceland as JSON."}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "country", "strict": True, "schema": COUNTRY},
            },
            max_tokens=100,
        )
        country = json.loads(answer.choices[0].message.content)
        assert set(country) == {"name", "is_island"}
        assert isinstance(country["is_island"], bool)


def check_a_prompt_that_is_too_long_raises_the_error_of_full_contexts(url: str) -> None:
    too_long = [{"role": "user", "content": "word " * (N_CTX + 10)}]
    for is_streamed in (False, True):
        error = raised(
            litellm.ContextWindowExceededError,
            partial(litellm.completion, **options(url), messages=too_long, stream=is_streamed),
        )
        assert error.status_code == 400
        assert str(N_CTX) in str(error)


def check_another_model_raises_not_found(url: str) -> None:
    call = partial(litellm.completion, **options(url, model="no-such-model"), messages=QUESTION)
    assert "no-such-model" in str(raised(litellm.NotFoundError, call))


def check_a_bad_value_raises_bad_request(url: str) -> None:
    call = partial(litellm.completion, **options(url), messages=QUESTION, temperature=-1)
    assert "temperature" in str(raised(litellm.BadRequestError, call))


def check_log_probabilities(url: str) -> None:
    answer = litellm.completion(
        **options(url), messages=QUESTION, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 3 for token in tokens)


def check_a_required_tool_is_called(url: str) -> None:
    for provider in PROVIDERS:
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            answer = litellm.completion(
                **options(url, provider),
                messages=[{"role": "user", "content": "What is the weather in Paris?"}],
                tools=[WEATHER],
                tool_choice=choice,
                parallel_tool_calls=False,
                max_tokens=200,
            )
            (call,) = answer.choices[0].message.tool_calls
            assert call.function.name == "get_weather"
            assert set(json.loads(call.function.arguments)) == {"city", "unit"}
            assert answer.choices[0].finish_reason == "tool_calls"


def check_a_streamed_tool_call_and_the_turn_after_it(url: str) -> None:
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    stream = litellm.completion(
        **options(url),
        messages=messages,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=200,
        stream=True,
    )
    message = litellm.stream_chunk_builder(list(stream), messages=messages).choices[0].message
    (call,) = message.tool_calls
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 20 degrees"},
    ]
    answer = litellm.completion(**options(url), messages=messages, tools=[WEATHER], tool_choice="none", max_tokens=16)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert not answer.choices[0].message.tool_calls


if __name__ == "__main__":
    litellm.telemetry = False
    main("litellm")
