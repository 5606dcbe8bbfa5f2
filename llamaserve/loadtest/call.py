"""One request to send. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COMPLETIONS_PATH = "/v1/completions"
CHAT_PATH = "/v1/chat/completions"

DEFAULT_STALL_TIMEOUT = 120.0
"""Seconds without an event after which a request has failed."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to send, and what a good answer to it is."""

    body: Mapping[str, Any]
    """The JSON body without ``stream`` and ``stream_options``, which the sender adds."""
    path: str = COMPLETIONS_PATH
    expected_tokens: int | None = None
    """``completion_tokens`` a good answer must have; None takes any."""
    stop_after: int | None = None
    """Drop the connection after so many token events; that is no failure."""
    at: float | None = None
    """Open loop: seconds after the start at which the request is due. None elsewhere."""
    label: str = ""
    """Groups outcomes, for instance "long" and "steady"."""
