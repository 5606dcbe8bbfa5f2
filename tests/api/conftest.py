"""One fake server for the tests that only ask questions."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from llamaserve.engine.fake import FakeEngine, scripted
from tests.api.served import LineTemplate, Served, serving

REPLIES = {
    "Hello": " world, good morning",
    "euro": "5 € a 🍏!",
    "user: hi\nassistant: ": "Hello there.",
    "system: be brief\nuser: hi\nassistant: ": "Hi.",
    "user: one\ntwo\nassistant: ": "parts",
    "assistant: \nuser: go on\nassistant: ": "went on",
    "tool: 42\nassistant: ": "forty-two",
}


@pytest.fixture(scope="package")
def served() -> Generator[Served, None, None]:
    """A server whose answers are REPLIES; anything else ends at once."""
    with serving(FakeEngine(continuation=scripted(REPLIES)), template=LineTemplate()) as running:
        yield running
