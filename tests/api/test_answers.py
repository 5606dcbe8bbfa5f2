"""The JSON of whole answers and of chunks, fed directly with events."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from llamaserve.api.openai.answer_plan import AnswerHead, AnswerPlan, PlannedPrompt
from llamaserve.api.openai.answers import Answer, ChatAnswer, CompletionAnswer
from llamaserve.api.openai.chunks import AnswerStream, chat_stream, completion_stream
from llamaserve.api.openai.shown import Shown
from llamaserve.chat.message import MessageParser
from llamaserve.engine.fake import BOS, EOS, FakeVocabulary
from llamaserve.errors import ContextFull
from llamaserve.request import Finished, FinishReason, Progress, PromptLogprobs, TextDelta, Timings, TokenLogprob
from tests.api.scripted_parser import ScriptedParser

USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 4},
}
TIMINGS = {
    "cache_n": 4,
    "prompt_n": 1,
    "prompt_ms": 500.0,
    "prompt_per_token_ms": 500.0,
    "prompt_per_second": 2.0,
    "predicted_n": 3,
    "predicted_ms": 1000.0,
    "predicted_per_token_ms": 500.0,
    "predicted_per_second": 2.0,
}
HEAD = AnswerHead("chatcmpl-1", 1700000000, 'quo"ted', "llamaserve-1")
PROMPT = (BOS, *b"hey")
COMMON: dict[str, object] = {
    "id": "chatcmpl-1",
    "created": 1700000000,
    "model": 'quo"ted',
    "system_fingerprint": "llamaserve-1",
}

Happening = TextDelta | PromptLogprobs | Progress


def plan(n: int = 1, make_parser: Any = None, echo: str = "", **shown: Any) -> AnswerPlan:
    """The plan of ``n`` choices of one prompt."""
    prompts = (PlannedPrompt(PROMPT, echo),)
    parser: dict[str, Any] = {} if make_parser is None else {"make_parser": make_parser}
    return AnswerPlan(Shown(has_echo=bool(echo), **shown), prompts, n, FakeVocabulary(), **parser)


def finished(reason: FinishReason = FinishReason.EOS, stop: str | None = None, n_tokens: int = 3) -> Finished:
    return Finished(reason, stop, 5, n_tokens, Timings(9.0, 0.5, 1.0), cached_tokens=4)


def logprob(text: bytes | int, value: float | None = -0.5, *top: tuple[bytes, float]) -> TokenLogprob:
    """The probability of a token that is one byte, or a control token."""
    piece = b"<bos>" if text == BOS else bytes(text) if isinstance(text, bytes) else b""
    token = text if isinstance(text, int) else text[0]
    return TokenLogprob(token, piece, value, tuple((other[0], other, chance) for other, chance in top))


def delta(text: str, *tokens: TokenLogprob) -> TextDelta:
    return TextDelta(text, tuple(token.token for token in tokens) or (1,), tokens)


def events(data: bytes) -> list[Any]:
    """The payloads of server-sent events; the end mark as it is."""
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    payloads = [block.removeprefix("data: ") for block in blocks]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


def feed(stream: AnswerStream, happenings: Sequence[Happening], end: Finished, choice: int = 0) -> list[Any]:
    """The chunks of one choice, the usage chunk and the end mark."""
    encoder, data = stream.choices[choice], b""
    for event in happenings:
        if isinstance(event, TextDelta):
            data += encoder.encode_text(event)
        elif isinstance(event, PromptLogprobs):
            encoder.note_prompt(event)
        else:
            data += encoder.encode_progress(event, 250.0)
    return events(data + encoder.encode_end(end) + stream.encode_tail([end]))


def whole(answer: Answer, happenings: Sequence[Happening], end: Finished) -> Any:
    """The answer with one choice."""
    for event in happenings:
        answer.take(0, event)
    return json.loads(answer.whole(HEAD, [end]))


def choices_of(chunks: Sequence[Any]) -> list[Any]:
    """The choices of all chunks, of the end mark none."""
    return [choice for chunk in chunks if chunk != "[DONE]" for choice in chunk["choices"]]


# Text alone.


def test_a_chat_stream_has_role_deltas_finish_and_end_in_this_order() -> None:
    """S42"""
    *chunks, end = feed(chat_stream(plan(), HEAD), [TextDelta('a"\n', (1,)), TextDelta("é", (2,))], finished())
    assert end == "[DONE]"
    shape = {**COMMON, "object": "chat.completion.chunk"}
    choices: list[dict[str, object]] = [
        {"delta": {"role": "assistant", "content": ""}, "finish_reason": None},
        {"delta": {"content": 'a"\n'}, "finish_reason": None},
        {"delta": {"content": "é"}, "finish_reason": None},
        {"delta": {}, "finish_reason": "stop"},
    ]
    expected = [{**shape, "choices": [{"index": 0, "logprobs": None, **choice}]} for choice in choices]
    expected[-1]["timings"] = TIMINGS
    assert chunks == expected


def test_the_role_comes_with_the_first_token_even_if_its_text_is_held_back() -> None:
    (choice,) = chat_stream(plan(), HEAD).choices
    assert len(events(choice.encode_text(TextDelta("", (1,))))) == 1
    assert choice.encode_text(TextDelta("", (2,))) == b""


def test_an_answer_without_text_still_has_a_role_and_a_reason() -> None:
    role, end, _ = feed(chat_stream(plan(), HEAD), [], finished())
    assert "role" in json.dumps(role)
    assert '"finish_reason": "stop"' in json.dumps(end)


def test_usage_comes_only_in_a_last_chunk_without_choices_and_so_do_the_times() -> None:
    *chunks, usage, end = feed(chat_stream(plan(has_usage_chunk=True), HEAD), [TextDelta("a", (1,))], finished())
    assert end == "[DONE]"
    assert (usage["choices"], usage["usage"], usage["timings"]) == ([], USAGE, TIMINGS)
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)


def test_a_completion_stream_has_text_and_no_role() -> None:
    first, last, _ = feed(completion_stream(plan(), HEAD), [TextDelta("a", (1,))], finished())
    assert first == {
        **COMMON,
        "object": "text_completion",
        "choices": [{"index": 0, "logprobs": None, "text": "a", "finish_reason": None}],
    }
    assert last["choices"] == [{"index": 0, "logprobs": None, "text": "", "finish_reason": "stop"}]


def test_an_error_in_a_stream_is_an_object_with_message_type_and_code() -> None:
    (error,) = events(chat_stream(plan(), HEAD).encode_error(ContextFull("no cell left")))
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
def test_whole_answers_carry_text_reason_usage_and_times(reason: FinishReason, word: str) -> None:
    chat = whole(ChatAnswer(plan()), [TextDelta("h", (1,)), TextDelta("é", (2,))], finished(reason))
    message = {"role": "assistant", "content": "hé", "refusal": None}
    assert chat == {
        **COMMON,
        "object": "chat.completion",
        "choices": [{"index": 0, "logprobs": None, "message": message, "finish_reason": word}],
        "usage": USAGE,
        "timings": TIMINGS,
    }
    text = whole(CompletionAnswer(plan()), [TextDelta("h", (1,)), TextDelta("é", (2,))], finished(reason))
    assert text["object"] == "text_completion"
    assert text["choices"] == [{"index": 0, "logprobs": None, "text": "hé", "finish_reason": word}]
    assert text["usage"] == USAGE


def test_the_stop_string_is_named_as_vllm_does() -> None:
    end = finished(FinishReason.STOP_SEQUENCE, "END")
    assert whole(ChatAnswer(plan()), [], end)["choices"][0]["stop_reason"] == "END"
    assert whole(CompletionAnswer(plan()), [], end)["choices"][0]["stop_reason"] == "END"
    assert choices_of(feed(completion_stream(plan(), HEAD), [], end))[-1]["stop_reason"] == "END"


# Several choices.


def test_choices_have_an_index_and_a_role_each_and_usage_counts_their_prompt_once() -> None:
    stream = chat_stream(plan(n=2, has_usage_chunk=True), HEAD)
    first, second = stream.choices
    data = second.encode_text(TextDelta("b", (1,))) + first.encode_text(TextDelta("a", (1,)))
    ends = [finished(), Finished(FinishReason.LENGTH, None, 5, 7, Timings(0.0, 0.0, 0.0), cached_tokens=1)]
    data += second.encode_end(ends[1]) + first.encode_end(ends[0]) + stream.encode_tail(ends)
    *chunks, usage, end = events(data)
    assert end == "[DONE]"
    told = [(choice["index"], choice["delta"].get("content"), choice["finish_reason"]) for choice in choices_of(chunks)]
    assert told == [
        (1, "", None),
        (1, "b", None),
        (0, "", None),
        (0, "a", None),
        (1, None, "length"),
        (0, None, "stop"),
    ]
    assert usage["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 10,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert "timings" not in usage


def test_a_whole_answer_has_its_choices_in_order_and_each_prompt_counts_once() -> None:
    prompts = (PlannedPrompt(PROMPT, "one"), PlannedPrompt((BOS, *b"ho"), "two"))
    answer = CompletionAnswer(AnswerPlan(Shown(has_echo=True, has_token_ids=True), prompts, 2, FakeVocabulary()))
    for index in (3, 1, 0, 2):
        answer.take(index, TextDelta(f"-{index}", (index,)))
    body = json.loads(answer.whole(HEAD, [finished()] * 4))
    assert [choice["text"] for choice in body["choices"]] == ["one-0", "one-1", "two-2", "two-3"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["token_ids"] for choice in body["choices"]] == [[0], [1], [2], [3]]
    assert [len(choice["prompt_token_ids"]) for choice in body["choices"]] == [4, 4, 3, 3]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (10, 12)


# Messages.

MESSAGE = [TextDelta(text, (1,)) for text in ("HM ", "so ", "<find ", "1 2 ", "<look ", "3 _")]


def parsed(**options: Any) -> AnswerPlan:
    return plan(make_parser=ScriptedParser, **options)


def test_a_message_is_streamed_as_reasoning_content_and_tool_calls() -> None:
    *chunks, end = choices_of(feed(chat_stream(parsed(), HEAD), MESSAGE, finished()))
    assert [chunk["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "HM", "reasoning": "HM"},
        {"content": "so"},
        {
            "tool_calls": [
                {"index": 0, "id": "call_0", "type": "function", "function": {"name": "find", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": "1"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "2"}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 1, "function": {"arguments": "3"}}]},
        {"content": "_"},
    ]
    assert (end["delta"], end["finish_reason"]) == ({}, "tool_calls")


def test_a_whole_message_is_what_its_stream_adds_up_to() -> None:
    (choice,) = whole(ChatAnswer(parsed()), MESSAGE, finished())["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "so_",
        "refusal": None,
        "reasoning_content": "HM",
        "reasoning": "HM",
        "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "find", "arguments": "12"}},
            {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "3"}},
        ],
    }


def test_content_is_null_beside_tool_calls_only_and_a_cut_call_is_not_one_to_make() -> None:
    (choice,) = whole(ChatAnswer(parsed()), [TextDelta("<find 1", (1,))], finished(FinishReason.LENGTH))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "length")
    (choice,) = whole(ChatAnswer(parsed()), [TextDelta("HM", (1,))], finished())["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")


def test_each_choice_has_a_parser_of_its_own() -> None:
    answer = ChatAnswer(parsed(n=2))
    answer.take(0, TextDelta("<find 1", (1,)))
    answer.take(1, TextDelta("text", (1,)))
    first, second = json.loads(answer.whole(HEAD, [finished(), finished()]))["choices"]
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")


# Log probabilities.

A = logprob(b"a", -0.25, (b"a", -0.25), (b"b", -1.5))
HALF = logprob(b"\xc3", -2.0, (b"\xe2", -1.0), (b"\xc3", -2.0))
REST = logprob(b"\xa9", -0.125, (b"\xa9", -0.125))
LIKELY = [delta("a", A), delta("", HALF), delta("é", REST)]


def test_a_chats_log_probabilities_have_token_bytes_and_alternatives() -> None:
    (choice,) = whole(ChatAnswer(plan(n_top=1)), LIKELY, finished())["choices"]
    assert choice["logprobs"]["refusal"] is None
    assert choice["logprobs"]["content"] == [
        {
            "token": "a",
            "logprob": -0.25,
            "bytes": [97],
            "top_logprobs": [{"token": "a", "logprob": -0.25, "bytes": [97]}],
        },
        {
            "token": "\ufffd",
            "logprob": -2.0,
            "bytes": [0xC3],
            "top_logprobs": [{"token": "\ufffd", "logprob": -1.0, "bytes": [0xE2]}],
        },
        {
            "token": "\ufffd",
            "logprob": -0.125,
            "bytes": [0xA9],
            "top_logprobs": [{"token": "\ufffd", "logprob": -0.125, "bytes": [0xA9]}],
        },
    ]


@pytest.mark.parametrize("make_parser", [None, ScriptedParser], ids=["text", "parsed"])
def test_a_streams_log_probabilities_are_those_of_the_whole_and_come_with_the_text_behind_them(
    make_parser: type[MessageParser] | None,
) -> None:
    options = plan(n_top=2, make_parser=make_parser)
    (expected,) = whole(ChatAnswer(options), LIKELY, finished())["choices"]
    chunks = choices_of(feed(chat_stream(options, HEAD), LIKELY, finished()))
    parts = [chunk["logprobs"]["content"] if chunk["logprobs"] else [] for chunk in chunks]
    assert [token for part in parts for token in part] == expected["logprobs"]["content"]
    assert [len(part) for part in parts] == [0, 1, 2, 0]


def test_tokens_whose_text_never_comes_have_their_log_probabilities_in_the_last_chunk() -> None:
    chunks = choices_of(feed(chat_stream(plan(n_top=0), HEAD), [delta("", A)], finished()))
    assert [chunk["logprobs"] and len(chunk["logprobs"]["content"]) for chunk in chunks] == [None, 1]


def test_a_completions_log_probabilities_are_lists_side_by_side() -> None:
    end = finished(FinishReason.LENGTH)
    (choice,) = whole(CompletionAnswer(plan(n_top=1)), LIKELY, end)["choices"]
    assert choice["logprobs"] == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9"],
        "token_logprobs": [-0.25, -2.0, -0.125],
        "top_logprobs": [{"a": -0.25}, {"bytes:\\xe2": -1.0, "bytes:\\xc3": -2.0}, {"bytes:\\xa9": -0.125}],
        "text_offset": [0, 1, 1],
    }
    chunks = choices_of(feed(completion_stream(plan(n_top=1), HEAD), LIKELY, end))
    parts = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
    for name, values in choice["logprobs"].items():
        assert [value for part in parts for value in part[name]] == values


def test_minus_infinity_is_a_number() -> None:
    impossible = logprob(b"a", -math.inf, (b"b", -math.inf))
    (choice,) = whole(ChatAnswer(plan(n_top=1)), [delta("a", impossible)], finished())["choices"]
    assert choice["logprobs"]["content"][0]["logprob"] == -9999.0
    (choice,) = whole(CompletionAnswer(plan(n_top=1)), [delta("a", impossible)], finished())["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"b": -9999.0, "a": -9999.0}]


# The prompt.

PROMPT_LOGPROBS = PromptLogprobs(
    (logprob(BOS, None), logprob(b"h", -1.0, (b"x", -0.5), (b"h", -1.0)), logprob(b"e", -2.0), logprob(b"y", -3.0))
)


def test_an_echo_comes_first_with_its_own_log_probabilities() -> None:
    """lm-eval reads token_logprobs from the end of the context on."""
    options = plan(echo="hey", n_top=1)
    happenings: list[Happening] = [PROMPT_LOGPROBS, delta("a", A)]
    (choice,) = whole(CompletionAnswer(options), happenings, finished())["choices"]
    assert choice["text"] == "heya"
    assert choice["logprobs"] == {
        "tokens": ["<bos>", "h", "e", "y", "a"],
        "token_logprobs": [None, -1.0, -2.0, -3.0, -0.25],
        "top_logprobs": [None, {"x": -0.5, "h": -1.0}, {"e": -2.0}, {"y": -3.0}, {"a": -0.25}],
        "text_offset": [0, 0, 1, 2, 3],
    }
    chunks = choices_of(feed(completion_stream(options, HEAD), happenings, finished()))
    assert [chunk["text"] for chunk in chunks] == ["hey", "a", ""]
    assert [chunk["logprobs"] and chunk["logprobs"]["text_offset"] for chunk in chunks] == [[0, 0, 1, 2], [3], None]


def test_an_echo_without_anything_behind_it_is_the_prompt() -> None:
    options = plan(echo="hey")
    (choice,) = whole(CompletionAnswer(options), [], finished(FinishReason.LENGTH))["choices"]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == ("hey", "length", None)
    chunks = choices_of(feed(completion_stream(options, HEAD), [], finished(FinishReason.LENGTH)))
    assert [chunk["text"] for chunk in chunks] == ["hey", ""]


def test_prompt_log_probabilities_have_vllms_shape() -> None:
    expected = [
        None,
        {
            "120": {"logprob": -0.5, "rank": 1, "decoded_token": "x"},
            "104": {"logprob": -1.0, "rank": 2, "decoded_token": "h"},
        },
        {"101": {"logprob": -2.0, "rank": None, "decoded_token": "e"}},
        {"121": {"logprob": -3.0, "rank": None, "decoded_token": "y"}},
    ]
    options = plan(n_prompt_top=1)
    assert whole(ChatAnswer(options), [PROMPT_LOGPROBS], finished())["prompt_logprobs"] == expected
    completion = whole(CompletionAnswer(options), [PROMPT_LOGPROBS], finished())
    assert completion["choices"][0]["prompt_logprobs"] == expected
    happenings = [PROMPT_LOGPROBS, TextDelta("a", (1,))]
    chunks = feed(chat_stream(options, HEAD), happenings, finished())
    assert [chunk.get("prompt_logprobs") for chunk in chunks[:-1]] == [expected, None, None]
    chunks = choices_of(feed(completion_stream(options, HEAD), happenings, finished()))
    assert [(chunk["text"], chunk.get("prompt_logprobs")) for chunk in chunks] == [
        ("", expected),
        ("a", None),
        ("", None),
    ]


def test_token_ids_are_shown_of_prompt_and_text() -> None:
    options = plan(has_token_ids=True)
    happenings = [TextDelta("a", (97,)), TextDelta("", (98, 99)), TextDelta("d", (100,)), TextDelta("", (EOS,))]
    chat = whole(ChatAnswer(options), happenings, finished())
    assert (chat["prompt_token_ids"], chat["choices"][0]["token_ids"]) == ([*PROMPT], [97, 98, 99, 100, EOS])
    (text,) = whole(CompletionAnswer(options), happenings, finished())["choices"]
    assert (text["prompt_token_ids"], text["token_ids"]) == ([*PROMPT], [97, 98, 99, 100, EOS])
    chunks = feed(chat_stream(options, HEAD), happenings, finished())
    assert [chunk.get("prompt_token_ids") for chunk in chunks[:-1]] == [[*PROMPT], None, None, None]
    assert [choice.get("token_ids") for choice in choices_of(chunks)] == [None, [97], [98, 99, 100], [EOS]]
    chunks = choices_of(feed(completion_stream(options, HEAD), happenings, finished()))
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [[*PROMPT], None, None, None]


# How far it is.

PROGRESS = Progress(total=4, cached=1, computed=3)


def test_usage_and_times_so_far_stand_in_every_chunk_if_asked_for() -> None:
    options = plan(has_running_usage=True, has_running_timings=True)
    happenings = [PROGRESS, TextDelta("a", (1,)), TextDelta("bc", (2, 3))]
    *chunks, _ = feed(completion_stream(options, HEAD), happenings, finished())
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 3, 3]
    assert [chunk["usage"]["prompt_tokens_details"]["cached_tokens"] for chunk in chunks] == [1, 1, 1]
    assert chunks[0]["usage"]["prompt_tokens"] == len(PROMPT)
    times = chunks[1]["timings"]
    assert (times["cache_n"], times["prompt_n"], times["prompt_ms"], times["predicted_n"]) == (1, 3, 250.0, 3)
    assert chunks[-1]["timings"] == TIMINGS


def test_progress_is_shown_only_if_asked_for() -> None:
    for shown in (False, True):
        options = plan(has_running_usage=True, has_progress=shown)
        chunks = feed(chat_stream(options, HEAD), [PROGRESS, TextDelta("a", (1,))], finished())
        progress = {"total": 4, "cache": 1, "processed": 4, "time_ms": 250}
        assert [chunk.get("prompt_progress") for chunk in chunks[:-1]] == [progress if shown else None, None, None]
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
