"""The JSON of answers and chunks, fed directly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llamaserve.api.openai.answers import (
    CHAT_CHUNKS,
    COMPLETION_CHUNKS,
    AnswerHead,
    ChunkEncoder,
    chat_answer,
    completion_answer,
)
from llamaserve.errors import ContextFull
from llamaserve.request import Finished, FinishReason, TextDelta, Timings

USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 4},
}
HEAD = AnswerHead("chatcmpl-1", 1700000000, 'quo"ted', "llamaserve-1")


def finished(reason: FinishReason = FinishReason.EOS) -> Finished:
    return Finished(reason, None, 5, 3, Timings(0.0, 0.0, 0.0), cached_tokens=4)


def events(data: bytes) -> list[Any]:
    """The payloads of server-sent events; the end mark as it is."""
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    payloads = [block.removeprefix("data: ") for block in blocks]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


def test_a_chat_stream_has_role_deltas_finish_and_end_in_this_order() -> None:
    """S42"""
    encoder = ChunkEncoder(CHAT_CHUNKS, HEAD, has_usage_chunk=False)
    data = encoder.encode_text(TextDelta('a"\n', (1,)))
    data += encoder.encode_text(TextDelta("é", (2,)))
    data += encoder.encode_end(finished())
    *chunks, end = events(data)
    assert end == "[DONE]"
    common: dict[str, object] = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": 'quo"ted',
        "system_fingerprint": "llamaserve-1",
    }
    choices: list[dict[str, object]] = [
        {"delta": {"role": "assistant", "content": ""}, "finish_reason": None},
        {"delta": {"content": 'a"\n'}, "finish_reason": None},
        {"delta": {"content": "é"}, "finish_reason": None},
        {"delta": {}, "finish_reason": "stop"},
    ]
    assert chunks == [{**common, "choices": [{"index": 0, "logprobs": None, **choice}]} for choice in choices]


def test_the_role_comes_with_the_first_token_even_if_its_text_is_held_back() -> None:
    encoder = ChunkEncoder(CHAT_CHUNKS, HEAD, has_usage_chunk=False)
    assert len(events(encoder.encode_text(TextDelta("", (1,))))) == 1
    assert encoder.encode_text(TextDelta("", (2,))) == b""


def test_an_answer_without_text_still_has_a_role_and_a_reason() -> None:
    role, end, _ = events(ChunkEncoder(CHAT_CHUNKS, HEAD, has_usage_chunk=False).encode_end(finished()))
    assert "role" in json.dumps(role)
    assert '"finish_reason": "stop"' in json.dumps(end)


def test_usage_comes_only_in_a_last_chunk_without_choices() -> None:
    encoder = ChunkEncoder(CHAT_CHUNKS, HEAD, has_usage_chunk=True)
    *chunks, usage, end = events(encoder.encode_text(TextDelta("a", (1,))) + encoder.encode_end(finished()))
    assert end == "[DONE]"
    assert isinstance(usage, dict)
    assert usage["choices"] == []
    assert usage["usage"] == USAGE
    assert all(isinstance(chunk, dict) and chunk["usage"] is None and chunk["choices"] for chunk in chunks)


def test_a_completion_stream_has_text_and_no_role() -> None:
    encoder = ChunkEncoder(COMPLETION_CHUNKS, HEAD, has_usage_chunk=False)
    first, last, _ = events(encoder.encode_text(TextDelta("a", (1,))) + encoder.encode_end(finished()))
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert first["object"] == "text_completion"
    assert first["choices"] == [{"index": 0, "logprobs": None, "text": "a", "finish_reason": None}]
    assert last["choices"] == [{"index": 0, "logprobs": None, "text": "", "finish_reason": "stop"}]


def test_an_error_in_a_stream_is_an_object_with_message_type_and_code() -> None:
    (error,) = events(ChunkEncoder(CHAT_CHUNKS, HEAD, has_usage_chunk=False).encode_error(ContextFull("no cell left")))
    assert error == {
        "error": {"message": "no cell left", "type": "server_error", "param": None, "code": "context_full"}
    }


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (FinishReason.EOS, "stop"),
        (FinishReason.STOP_SEQUENCE, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.CONTEXT_EXHAUSTED, "length"),
    ],
)
def test_whole_answers_carry_text_reason_and_usage(reason: FinishReason, word: str) -> None:
    chat = json.loads(chat_answer(HEAD, "hé", finished(reason)))
    assert chat["object"] == "chat.completion"
    message = {"role": "assistant", "content": "hé", "refusal": None}
    assert chat["choices"] == [{"index": 0, "logprobs": None, "message": message, "finish_reason": word}]
    text = json.loads(completion_answer(HEAD, "hé", finished(reason)))
    assert text["object"] == "text_completion"
    assert text["choices"] == [{"index": 0, "logprobs": None, "text": "hé", "finish_reason": word}]
    assert chat["usage"] == text["usage"] == USAGE
