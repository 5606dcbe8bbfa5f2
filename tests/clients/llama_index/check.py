"""llama-index's OpenAILike: completions by default, chats when it is told that the model chats."""

from __future__ import annotations

import asyncio

from llama_index.core.llms import ChatMessage, MessageRole
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, ConfigDict, Field

from tests.clients.checking import API_KEY, MODEL, N_CTX, main

PROMPT = "The capital of France is"
MESSAGES = [
    ChatMessage(role=MessageRole.SYSTEM, content="You answer in one sentence."),
    ChatMessage(role=MessageRole.USER, content="What is the capital of France?"),
]


class Country(BaseModel):
    """A country of the world."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    is_island: bool


def get_weather(city: str, days: int) -> str:
    """The weather of a city in the next days."""
    return f"Sunny in {city} for {days} days"


def model(url: str, **options: object) -> OpenAILike:
    """The model as its users set it up."""
    defaults: dict[str, object] = {"max_tokens": 16, "temperature": 0, "max_retries": 0, "context_window": N_CTX}
    return OpenAILike(model=MODEL, api_base=f"{url}/v1", api_key=API_KEY, **{**defaults, **options})


def check_a_completion_and_its_stream_begin_the_same(url: str) -> None:
    """Far into a text a prefix that comes from the cache may round otherwise in the shared profile."""
    whole = model(url).complete(PROMPT)
    assert whole.raw.usage.completion_tokens <= 16
    pieces = list(model(url).stream_complete(PROMPT))
    assert pieces[-1].text.split()[:2] == whole.text.split()[:2]
    assert "".join(piece.delta for piece in pieces) == pieces[-1].text


def check_a_chat_through_completions(url: str) -> None:
    """What users get who do not set ``is_chat_model``: a prompt of its own making."""
    answer = model(url).chat(MESSAGES)
    assert answer.message.role == MessageRole.ASSISTANT
    assert isinstance(answer.message.content, str)


def check_a_chat_and_its_stream_are_the_same(url: str) -> None:
    chats = model(url, is_chat_model=True)
    whole = chats.chat(MESSAGES)
    pieces = list(chats.stream_chat(MESSAGES))
    assert pieces[-1].message.content == whole.message.content
    assert whole.raw.usage.total_tokens == whole.raw.usage.prompt_tokens + whole.raw.usage.completion_tokens


def check_async_calls_at_once(url: str) -> None:
    async def ask_all() -> list[str]:
        chats = model(url, is_chat_model=True)
        answers = await asyncio.gather(chats.achat(MESSAGES), chats.acomplete(PROMPT), chats.achat(MESSAGES))
        return [str(answer) for answer in answers]

    first, _, third = asyncio.run(ask_all())
    assert first == third


def check_structured_output(url: str) -> None:
    chats = model(
        url,
        is_chat_model=True,
        max_tokens=100,
        additional_kwargs={
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "country", "schema": Country.model_json_schema()},
            }
        },
    )
    assert Country.model_validate_json(chats.complete("Describe Iceland as JSON.").text)


def check_structured_output_of_a_prediction(url: str) -> None:
    chats = model(url, is_chat_model=True, max_tokens=100, should_use_structured_outputs=True)
    assert isinstance(chats.as_structured_llm(Country).complete("Describe Iceland as JSON.").raw, Country)


def check_a_required_tool_is_called(url: str) -> None:
    chats = model(url, is_chat_model=True, is_function_calling_model=True, max_tokens=200)
    weather = FunctionTool.from_defaults(get_weather)
    answer = chats.chat_with_tools([weather], user_msg="What is the weather in Paris?", tool_required=True)
    (call,) = chats.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather"
    assert set(call.tool_kwargs) == {"city", "days"}


if __name__ == "__main__":
    main("llama-index-llms-openai-like")
