"""pydantic-ai: agents, with structured output by a schema (NativeOutput) or a tool (ToolOutput), and with tools."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, ModelSettings, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.checking import API_KEY, MODEL, N_CTX, main, raised


class Country(BaseModel):
    """A country of the world."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    is_island: bool


def model(url: str) -> OpenAIChatModel:
    """The model as its users set it up."""
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key=API_KEY))


def settings(max_tokens: int = 32) -> ModelSettings:
    """Short answers, always the same, with one call of a tool at most."""
    return ModelSettings(max_tokens=max_tokens, temperature=0, parallel_tool_calls=False)


def check_an_agent_answers_with_usage(url: str) -> None:
    agent = Agent(model(url), instructions="You answer in one sentence.", model_settings=settings())
    result = agent.run_sync("What is the capital of France?")
    assert isinstance(result.output, str)
    assert 0 < result.usage.output_tokens <= 32
    assert result.usage.input_tokens > 0
    again = agent.run_sync("And of Spain?", message_history=result.all_messages())
    assert isinstance(again.output, str)


def check_a_stream_is_the_whole_answer(url: str) -> None:
    agent = Agent(model(url), system_prompt=("Be brief.", "Be kind."), model_settings=settings())
    whole = agent.run_sync("What is the capital of France?")

    async def read() -> str:
        async with agent.run_stream("What is the capital of France?") as stream:
            return "".join([piece async for piece in stream.stream_text(delta=True)])

    assert asyncio.run(read()) == whole.output


def check_native_output(url: str) -> None:
    agent = Agent(model(url), output_type=NativeOutput(Country), retries=0, model_settings=settings(100))
    assert isinstance(agent.run_sync("Describe Iceland.").output, Country)


def check_native_output_is_streamed(url: str) -> None:
    agent = Agent(model(url), output_type=NativeOutput(Country), retries=0, model_settings=settings(100))

    async def read() -> Country:
        async with agent.run_stream("Describe Iceland.") as stream:
            return await stream.get_output()

    assert isinstance(asyncio.run(read()), Country)


def check_a_prompt_that_is_too_long_is_an_http_error_with_its_code(url: str) -> None:
    error = raised(ModelHTTPError, lambda: Agent(model(url)).run_sync("word " * (N_CTX + 10)))
    assert error.status_code == 400
    assert error.body["code"] == "context_length_exceeded"


def check_tool_output(url: str) -> None:
    agent = Agent(model(url), output_type=ToolOutput(Country), retries=0, model_settings=settings(200))
    assert isinstance(agent.run_sync("Describe Iceland.").output, Country)


def check_strict_tool_output_of_two_kinds(url: str) -> None:
    class Unknown(BaseModel):
        """Nothing is known."""

        reason: str = Field(max_length=20)

    outputs = [ToolOutput(Country, strict=True), ToolOutput(Unknown, strict=True)]
    agent = Agent(model(url), output_type=outputs, retries=0, model_settings=settings(200))
    assert isinstance(agent.run_sync("Describe Iceland.").output, (Country, Unknown))


def check_an_agent_that_may_call_tools(url: str) -> None:
    """Whether this small model calls it is its own affair; the turns must go through."""
    agent = Agent(model(url), model_settings=settings(200))
    cities: list[str] = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return f"Sunny in {city}"

    result = agent.run_sync("What is the weather in Paris?")
    assert isinstance(result.output, str)


if __name__ == "__main__":
    main("pydantic-ai-slim")
