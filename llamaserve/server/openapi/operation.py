"""One route and method as the document describes it. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = "application/json"
EVENTS = "text/event-stream"
TEXT: Mapping[str, Any] = {"type": "string"}

REASONS: Mapping[int, str] = {
    400: "The request cannot be served as it is; the message names the field, its value and the limit.",
    401: "The server has API keys and the request has none of them.",
    404: "There is no such model here.",
    408: "The body was not there in time.",
    413: "The body is too large.",
    429: "The queue is full; Retry-After says when a place may be free.",
    431: "There is too much before the body.",
    500: "llama.cpp or the server failed.",
    501: "This was turned off when the server was started, or the model cannot do it.",
    503: "There is no model yet or any more, or no room.",
    504: "The request's timeout is over.",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of the address, of the query, or a header."""

    name: str
    place: str
    """"path", "query" or "header"."""
    description: str
    schema: Mapping[str, Any] = field(default_factory=lambda: TEXT)


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path, or of several that are the same route."""

    method: str
    paths: tuple[str, ...]
    summary: str
    tag: str
    answers: Mapping[str, type | Mapping[str, Any]]
    """What a 200 has: media types with the type of their JSON, or its schema."""
    failures: frozenset[int]
    """All other statuses."""
    body: type | None = None
    parameters: tuple[Parameter, ...] = ()
    is_open: bool = False
    """Whether no key is ever needed."""
