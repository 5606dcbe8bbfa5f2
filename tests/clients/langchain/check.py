"""langchain-openai: chat models with invoke, stream and batch, structured output, and bound tools."""

from __future__ import annotations

import asyncio

import openai
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field

from tests.clients.checking import API_KEY, MODEL, N_CTX, main, raised

MESSAGES = [SystemMessage("You answer in one sentence."), HumanMessage("What is the capital of France?")]


class Country(BaseModel):
    """A country of the world."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    is_island: bool


@tool
def get_weather(city: str, days: int) -> str:
    """The weather of a city in the next days."""
    return f"Sunny in {city} for {days} days"


def chat(url: str, **options: object) -> ChatOpenAI:
    """The chat model."""
    defaults: dict[str, object] = {"max_tokens": 16, "temperature": 0, "max_retries": 0}
    return ChatOpenAI(base_url=f"{url}/v1", api_key=API_KEY, model=MODEL, **{**defaults, **options})


def check_invoke_answers_with_usage(url: str) -> None:
    answer = chat(url).invoke(MESSAGES)
    assert isinstance(answer, AIMessage)
    assert isinstance(answer.content, str)
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    assert answer.response_metadata["model_name"] == MODEL
    assert answer.usage_metadata is not None
    assert 0 < answer.usage_metadata["output_tokens"] <= 16


def check_a_stream_is_the_whole_answer(url: str) -> None:
    whole = chat(url).invoke(MESSAGES)
    for has_usage in (False, True):
        chunks = list(chat(url, stream_usage=has_usage).stream(MESSAGES))
        assert "".join(chunk.content for chunk in chunks) == whole.content
        joined = sum_of(chunks)
        assert joined.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"]
        if has_usage:
            assert joined.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def check_a_batch_answers_each_in_its_place(url: str) -> None:
    answers = chat(url).batch([[HumanMessage(f"Say the number {number}.")] for number in range(6)])
    assert len(answers) == 6
    assert all(0 < answer.usage_metadata["output_tokens"] <= 16 for answer in answers)


def check_async_calls_at_once(url: str) -> None:
    model = chat(url)

    async def ask_all() -> list[AIMessage]:
        return await asyncio.gather(*(model.ainvoke(MESSAGES) for _ in range(4)))

    assert len({answer.content for answer in asyncio.run(ask_all())}) == 1


def check_structured_output_by_json_schema(url: str) -> None:
    for strict in (None, True):
        model = chat(url, max_tokens=100).with_structured_output(Country, method="json_schema", strict=strict)
        assert isinstance(model.invoke("Describe Iceland as JSON."), Country)


def check_structured_output_is_streamed(url: str) -> None:
    model = chat(url, max_tokens=100).with_structured_output(Country.model_json_schema(), method="json_schema")
    *_, last = model.stream("Describe Iceland as JSON.")
    assert Country.model_validate(last)


def check_structured_output_by_json_mode(url: str) -> None:
    model = chat(url, max_tokens=400, temperature=0.8).with_structured_output(
        None, method="json_mode", include_raw=True
    )
    cut_off: str | None = None
    try:
        answer = model.invoke("Reply with a very short JSON object that has the key name.")
    except openai.LengthFinishReasonError as error:
        cut_off = str(error.completion.choices[0].message.content)
    if cut_off is None:
        assert isinstance(answer["parsed"], dict), answer
    else:  # the model found no end: what there is begins an object
        assert cut_off.lstrip().startswith("{")


def check_text_completions_of_several_prompts(url: str) -> None:
    model = OpenAI(base_url=f"{url}/v1", api_key=API_KEY, model=MODEL, max_tokens=8, n=2, best_of=2, max_retries=0)
    result = model.generate(["Once upon a time", "The capital of France is"])
    assert [len(choices) for choices in result.generations] == [2, 2]
    assert result.llm_output["token_usage"]["completion_tokens"] <= 32
    assert "".join(model.bind(n=1, best_of=1).stream("Once upon a time"))


def check_a_prompt_that_is_too_long_is_refused_with_both_numbers(url: str) -> None:
    error = raised(openai.BadRequestError, lambda: chat(url).invoke("word " * (N_CTX + 10)))
    assert error.code == "context_length_exceeded"
    assert error.body["n_ctx"] == N_CTX


def check_log_probabilities(url: str) -> None:
    answer = chat(url, max_tokens=4).bind(logprobs=True, top_logprobs=2).invoke(MESSAGES)
    tokens = answer.response_metadata["logprobs"]["content"]
    assert len(tokens) == answer.usage_metadata["output_tokens"]
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)


def check_a_bound_tool_is_called_and_its_result_taken(url: str) -> None:
    for choice in ("any", "get_weather"):
        model = chat(url, max_tokens=200).bind_tools([get_weather], tool_choice=choice, parallel_tool_calls=False)
        answer = model.invoke("What is the weather in Paris in the next 3 days?")
        (call,) = answer.tool_calls
        assert call["name"] == "get_weather"
        assert isinstance(call["args"]["city"], str)
        assert isinstance(call["args"]["days"], int)
        assert not answer.invalid_tool_calls
        result = get_weather.invoke(call)
        assert isinstance(result, ToolMessage)
        history = [HumanMessage("What is the weather in Paris?"), answer, result]
        last = chat(url).bind_tools([get_weather], tool_choice="none").invoke(history)
        assert last.response_metadata["finish_reason"] in ("stop", "length")


def check_a_strict_tool_is_streamed(url: str) -> None:
    model = chat(url, max_tokens=200).bind_tools(
        [get_weather], tool_choice="any", strict=True, parallel_tool_calls=False
    )
    joined = sum_of(list(model.stream("What is the weather in Paris?")))
    (call,) = joined.tool_calls
    assert set(call["args"]) == {"city", "days"}
    assert joined.response_metadata["finish_reason"] == "tool_calls"


def check_structured_output_by_function_calling(url: str) -> None:
    model = chat(url, max_tokens=100).with_structured_output(Country, method="function_calling")
    assert isinstance(model.invoke("Describe Iceland."), Country)


def sum_of(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    """The message that a stream's chunks add up to."""
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    return joined


if __name__ == "__main__":
    main("langchain-openai")
