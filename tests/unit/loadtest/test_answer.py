"""What a streamed answer says, in the spellings of several servers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llamaserve.loadtest.answer import Answer, BadChunk, ErrorEvent
from llamaserve.loadtest.events import Event


def event(**chunk: Any) -> Event:
    return Event(b"", json.dumps(chunk).encode())


def delta(**fields: Any) -> Event:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": None}])


def test_only_events_with_text_are_token_events() -> None:
    answer = Answer()
    assert not answer.take(delta(role="assistant", content=None))
    assert not answer.take(delta(role="assistant", content=""))
    assert answer.take(delta(content="Hel"))
    assert answer.take(event(choices=[{"text": "lo"}]))
    assert not answer.take(event(choices=[{"text": "", "finish_reason": "length"}]))
    assert not answer.take(event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2}))
    assert not answer.take(Event(b"", b"[DONE]"))
    assert answer.text == "Hello"
    assert (answer.finish_reason, answer.is_done, answer.is_whole) == ("length", True, True)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_text_too(field: str) -> None:
    answer = Answer()
    assert answer.take(delta(**{field: "because"}))
    assert answer.text == "because"


def test_reasoning_under_two_names_counts_once() -> None:
    answer = Answer()
    assert answer.take(delta(reasoning="because", reasoning_content="because"))
    assert answer.text == "because"


def test_a_tool_call_is_something_the_model_wrote() -> None:
    assert Answer().take(delta(tool_calls=[{"function": {"arguments": "{"}}]))


def test_usage_is_what_the_server_says() -> None:
    answer = Answer()
    answer.take(event(choices=[], usage={"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}))
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (5, 4, None)


def test_without_usage_nothing_is_guessed() -> None:
    answer = Answer()
    answer.take(delta(content="x"))
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (None, None, None)


def test_a_finish_reason_is_an_end_even_without_done() -> None:
    answer = Answer()
    assert not answer.is_whole
    answer.take(event(choices=[{"text": "", "finish_reason": "stop"}]))
    assert answer.is_whole
    assert not answer.is_done


@pytest.mark.parametrize(
    "bad",
    [
        Event(b"", b'{"error": {"message": "no room"}}'),
        Event(b"error", b"no room"),
        Event(b"", b'{"error": "no room"}'),
    ],
)
def test_an_error_event_is_told_with_its_words(bad: Event) -> None:
    with pytest.raises(ErrorEvent, match="no room"):
        Answer().take(bad)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"5",
        b"[1]",
        b'"text"',
        b'{"choices": 1}',
        b'{"choices": [{"text": 1}]}',
        b'{"choices": [{"delta": "x"}]}',
        b'{"choices": [], "usage": {"prompt_tokens": "three"}}',
        b'{"choices": [{"text": "\xff"}]}',
        b'{"choices": ' + b"[" * 100_000,
        b'{"usage": {"prompt_tokens": 1e400}}',
        b'{"usage": {"prompt_tokens": -1}}',
        b'{"usage": {"completion_tokens": 1' + b"0" * 400 + b"}}",
    ],
)
def test_data_that_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(BadChunk):
        Answer().take(Event(b"", data))


def test_an_object_that_says_nothing_is_no_token() -> None:
    assert not Answer().take(Event(b"", b"{}"))
