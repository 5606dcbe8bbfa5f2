"""instructor: answers as pydantic models, by a schema or by a tool's arguments. No attempt may need a second one."""

from __future__ import annotations

import asyncio
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict, Field

from tests.clients.checking import API_KEY, MODEL, main

MESSAGES = [{"role": "user", "content": "Extract: Jason is 25 years old and lives in Paris."}]


class City(BaseModel):
    """Where somebody lives."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    kind: Literal["town", "capital"]


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    cities: list[City] = Field(max_length=2)
    nickname: str | None = Field(default=None, max_length=10)


def client(url: str, mode: instructor.Mode) -> instructor.Instructor:
    """The client as its users set it up."""
    return instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key=API_KEY, max_retries=0), mode=mode)


def person(url: str, mode: instructor.Mode, **options: object) -> Person:
    """Asks once."""
    return client(url, mode).chat.completions.create(
        model=MODEL, messages=MESSAGES, response_model=Person, max_retries=0, max_tokens=300, **options
    )


def check_json_schema_mode(url: str) -> None:
    for seed in range(3):
        assert isinstance(person(url, instructor.Mode.JSON_SCHEMA, seed=seed), Person)


def check_a_partial_object_grows(url: str) -> None:
    pieces = list(
        client(url, instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
            model=MODEL, messages=MESSAGES, response_model=Person, max_retries=0, max_tokens=300
        )
    )
    assert len(pieces) > 1
    assert Person.model_validate(pieces[-1].model_dump())


def check_async_json_schema_mode(url: str) -> None:
    async def ask() -> Person:
        sdk = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=API_KEY, max_retries=0)
        asynchronous = instructor.from_openai(sdk, mode=instructor.Mode.JSON_SCHEMA)
        return await asynchronous.chat.completions.create(
            model=MODEL, messages=MESSAGES, response_model=Person, max_retries=0, max_tokens=300
        )

    assert isinstance(asyncio.run(ask()), Person)


def check_the_answer_comes_with_its_usage(url: str) -> None:
    found, answer = client(url, instructor.Mode.JSON_SCHEMA).chat.completions.create_with_completion(
        model=MODEL, messages=MESSAGES, response_model=Person, max_retries=0, max_tokens=300
    )
    assert isinstance(found, Person)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 0


def check_tools_mode(url: str) -> None:
    """It names the tool it wants."""
    for seed in range(3):
        assert isinstance(person(url, instructor.Mode.TOOLS, seed=seed), Person)


def check_strict_tools_mode(url: str) -> None:
    assert isinstance(person(url, instructor.Mode.TOOLS_STRICT), Person)


def check_a_list_of_objects_is_streamed_from_a_tool(url: str) -> None:
    cities = client(url, instructor.Mode.TOOLS).chat.completions.create_iterable(
        model=MODEL, messages=MESSAGES, response_model=City, max_retries=0, max_tokens=200, temperature=0
    )
    assert all(isinstance(city, City) for city in cities)


if __name__ == "__main__":
    main("instructor")
