"""Several choices in one answer: their order, their prompt, their admission and their end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from llamaserve.config import CacheConfig, SchedulerConfig
from llamaserve.engine.fake import BOS, FakeEngine, letters, scripted
from llamaserve.engine.port import FimTokens
from llamaserve.errors import DecodeFailed
from tests.api.served import PATIENCE_S, LineTemplate, Served, serving, wait_until

PROMPT = "a prompt that is computed once"
REPLIES = {PROMPT: " one", "other": " two", "user: hi\nassistant: ": "Hello."}


@pytest.fixture
def own_server() -> Iterator[Served]:
    """A server with four slots whose cache nobody else fills."""
    with serving(FakeEngine(continuation=scripted(REPLIES)), template=LineTemplate()) as served:
        yield served


def chunks_of(response: httpx.Response) -> list[Any]:
    """The chunks of a stream that ended well."""
    *chunks, end, rest = response.raise_for_status().text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


def n_computed(served: Served) -> int:
    """Prompt tokens the engine has computed."""
    return sum(len(piece.tokens) for plan in served.engine.plans for piece in plan.pieces)


def is_idle(served: Served) -> bool:
    stats = served.service.stats()
    return stats.active_slots + stats.queue_depth == 0


# What comes back.


@pytest.mark.parametrize("name", ["n", "n_cmpl"])
def test_a_completion_has_n_choices_in_order(own_server: Served, name: str) -> None:
    body = own_server.complete(PROMPT, **{name: 3}).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(n, " one") for n in range(3)]
    assert body["usage"]["prompt_tokens"] == len(PROMPT) + 1
    assert body["usage"]["completion_tokens"] == 3 * len(" one")


def test_a_batch_has_n_choices_of_each_prompt(own_server: Served) -> None:
    body = own_server.complete([PROMPT, [BOS, *b"other"]], n=2).json()
    texts = [(choice["index"], choice["text"]) for choice in body["choices"]]
    assert texts == [(0, " one"), (1, " one"), (2, " two"), (3, " two")]
    assert body["usage"]["prompt_tokens"] == len(PROMPT) + len("other") + 2


def test_a_chat_has_n_choices(own_server: Served) -> None:
    body = own_server.chat("hi", n=2).json()
    assert [(choice["index"], choice["message"]["content"]) for choice in body["choices"]] == [
        (0, "Hello."),
        (1, "Hello."),
    ]


def test_a_stream_of_several_choices_has_one_role_each_one_usage_and_one_end(own_server: Served) -> None:
    *chunks, usage = chunks_of(own_server.chat("hi", n=6, stream=True, stream_options={"include_usage": True}))
    texts = dict.fromkeys(range(6), "")
    roles: list[int] = []
    ends: list[int] = []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert choice["index"] not in ends
        texts[choice["index"]] += choice["delta"].get("content", "")
        roles += [choice["index"]] if "role" in choice["delta"] else []
        ends += [choice["index"]] if choice["finish_reason"] else []
    assert set(texts.values()) == {"Hello."}
    assert sorted(roles) == sorted(ends) == list(range(6))
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6 * len("Hello.")


def test_more_choices_than_slots_wait_for_their_turn(own_server: Served) -> None:
    body = own_server.complete(PROMPT, n=20).json()
    assert [choice["text"] for choice in body["choices"]] == [" one"] * 20


def test_each_choice_has_a_seed_of_its_own_and_the_first_has_the_clients(own_server: Served) -> None:
    own_server.complete([PROMPT, "other"], n=2, seed=2**32 - 2)
    assert [spec.sampling.seed for spec in own_server.engine.opened] == [2**32 - 2, 0, 2**32 - 2, 0]
    own_server.complete(PROMPT, n=2)
    assert [spec.sampling.seed for spec in own_server.engine.opened[4:]] == [None, None]


# Their prompt.


@pytest.mark.parametrize("fields", [{}, {"cache_prompt": False}, {"cache_salt": "s"}], ids=["cached", "off", "salted"])
@pytest.mark.parametrize("n", [3, 9], ids=["slots", "more than slots"])
def test_the_prompt_of_n_choices_is_computed_once(own_server: Served, fields: dict[str, Any], n: int) -> None:
    usage = own_server.complete(PROMPT, n=n, **fields).json()["usage"]
    assert n_computed(own_server) == len(PROMPT) + 1 + n - 1  # and the last token again for each
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_choices_without_the_cache_leave_nothing(own_server: Served) -> None:
    """S17"""
    own_server.complete(PROMPT, n=3, cache_prompt=False)
    wait_until(lambda: is_idle(own_server))
    assert own_server.service.stats().used_cells == 0
    assert own_server.complete(PROMPT).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_the_servers_default_of_the_cache_is_that_of_choices_too() -> None:
    engine = FakeEngine(continuation=scripted(REPLIES))
    with serving(engine, cache=CacheConfig(cache_prompt=False)) as served:
        served.complete(PROMPT, n=4)
        assert n_computed(served) == len(PROMPT) + 4
        wait_until(lambda: is_idle(served))
        assert served.service.stats().used_cells == 0


# All or none.


def test_a_queue_with_room_for_some_refuses_all() -> None:
    """S48"""
    engine = FakeEngine(n_slots=1, n_ctx=64_000, step_s=0.002)
    with serving(engine, scheduler=SchedulerConfig(max_queue=4)) as served:
        body = {"prompt": "a", "stream": True, "max_tokens": 20_000}
        with ExitStack() as streams:
            for _ in range(2):
                streams.enter_context(served.client.stream("POST", "/v1/completions", json=body))
            for stream in (False, True):
                refused = served.complete("b", n=4, stream=stream)
                assert refused.status_code == 429
                assert refused.json()["error"]["code"] == "queue_full"
                wait_until(lambda: served.service.stats().queue_depth == 1)
            taken = streams.enter_context(served.client.stream("POST", "/v1/completions", json={**body, "n": 3}))
            assert taken.status_code == 200
            assert served.service.stats().queue_rejects == 8


def test_more_choices_than_the_queue_can_ever_take_are_no_reason_to_come_back() -> None:
    with serving(FakeEngine(n_slots=2), scheduler=SchedulerConfig(max_queue=3)) as served:
        for prompt, n, param in (("a", 6, "n"), (["a", "b"], 3, "prompt")):
            refused = served.complete(prompt, n=n)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == param
            assert "hold 5" in refused.json()["error"]["message"]
        assert served.complete("a", n=5, max_tokens=1).status_code == 200


def test_best_of_says_why_it_is_not_done(own_server: Served) -> None:
    error = own_server.complete(PROMPT, n=2, best_of=4).json()["error"]
    assert error["param"] == "best_of"
    assert "can only be n, which is 2" in error["message"]
    assert own_server.complete(PROMPT, n=2, best_of=0).json()["error"]["param"] == "best_of"
    assert own_server.complete(PROMPT, n=2, best_of=2).status_code == 200


# The end.


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_one_choice_that_fails_fails_the_answer_and_ends_the_others(stream: bool) -> None:
    engine = FakeEngine(n_ctx=64_000, step_s=0.002)
    with serving(engine) as served:
        answers: list[httpx.Response] = []
        fields = {"n": 3, "stream": stream, "max_tokens": 10_000}
        asker = threading.Thread(target=lambda: answers.append(served.complete("a", **fields)))
        asker.start()
        wait_until(lambda: served.service.stats().generated_tokens > 10)
        engine.fail_step(DecodeFailed("llama_decode returned -3"))
        asker.join(PATIENCE_S)
        (answer,) = answers
        error = answer.text.split("\n\n")[-2].removeprefix("data: ") if stream else answer.text
        assert answer.status_code == (200 if stream else 500)
        assert json.loads(error)["error"]["code"] == "decode_failed"
        assert "[DONE]" not in answer.text
        wait_until(lambda: is_idle(served))
        assert served.complete("a", max_tokens=1, n=2).status_code == 200


def test_a_client_that_leaves_ends_all_choices_running_and_waiting() -> None:
    """S51, S53"""
    with serving(FakeEngine(n_slots=2, n_ctx=64_000, step_s=0.002)) as served:
        body = {"prompt": "a", "stream": True, "max_tokens": 20_000, "n": 5}
        with served.client.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
        wait_until(lambda: is_idle(served))
        assert served.service.stats().requests_cancelled == 5


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_time_limit_is_that_of_all_choices(stream: bool) -> None:
    """K7"""
    with serving(FakeEngine(n_slots=2, n_ctx=64_000, step_s=0.002)) as served:
        answer = served.complete("a", n=3, max_tokens=20_000, timeout=0.2, stream=stream)
        assert answer.status_code == (200 if stream else 504)
        assert '"code":"timeout"' in answer.text
        wait_until(lambda: is_idle(served))


# The prompt in the answer.


@pytest.mark.parametrize("prompt", [PROMPT, [*PROMPT.encode()]], ids=["text", "token ids"])
def test_an_echo_begins_with_the_prompt(own_server: Served, prompt: object) -> None:
    whole = own_server.complete(prompt, echo=True, n=2).json()
    assert [choice["text"] for choice in whole["choices"]] == [PROMPT + " one"] * 2
    chunks = chunks_of(own_server.complete(prompt, echo=True, n=2, stream=True))
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [PROMPT + " one"] * 2


def test_an_echo_of_no_text_needs_no_model(own_server: Served) -> None:
    whole = own_server.complete(["a", "b"], echo=True, max_tokens=0).json()
    assert [(choice["text"], choice["finish_reason"]) for choice in whole["choices"]] == [
        ("a", "length"),
        ("b", "length"),
    ]
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (4, 0)
    chunks = chunks_of(own_server.complete("a", echo=True, max_tokens=0, stream=True))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", ""]
    assert own_server.engine.plans == []


@pytest.mark.parametrize("name", ["max_tokens", "n_predict"])
def test_without_an_echo_the_prompt_is_computed_for_those_who_come_after(own_server: Served, name: str) -> None:
    answer = own_server.complete("a", **{name: 0}).json()
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("", 0)
    assert len(own_server.engine.plans) == 1
    refused = own_server.complete("a", echo=True, **{name: -2})
    assert "must be at least 0" in refused.json()["error"]["message"]


def test_a_chat_has_no_echo_and_no_suffix(own_server: Served) -> None:
    for field in ({"echo": True}, {"suffix": "x"}):
        refused = own_server.chat("hi", **field)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, *field)


# Filling in the middle.

FIM = FimTokens(1, 2, 3)


@pytest.mark.parametrize("prompt", ["def f(", [*b"def f("]], ids=["text", "token ids"])
def test_a_suffix_stands_around_the_gap_as_the_model_was_trained(prompt: object) -> None:
    """The texts around the gap are text: a control token written in them is not read."""
    engine = FakeEngine(continuation=letters, fim_tokens=FIM)
    with serving(engine) as served:
        assert served.complete(prompt, suffix="):<eos>", max_tokens=1).status_code == 200
        (piece,) = (piece for plan in engine.plans for piece in plan.pieces)
        assert tuple(piece.tokens) == (BOS, 1, *b"def f(", 2, *b"):<eos>", 3)


def test_a_suffix_and_an_echo_exclude_each_other() -> None:
    with serving(FakeEngine(fim_tokens=FIM)) as served:
        refused = served.complete("a", suffix="b", echo=True)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "echo")


def test_a_model_without_the_tokens_says_so(own_server: Served) -> None:
    error = own_server.complete("a", suffix="b").json()["error"]
    assert error["param"] == "suffix"
    assert "no tokens for filling in the middle" in error["message"]


# Counts.


@pytest.mark.parametrize("name", ["return_token_ids", "return_tokens"])
def test_token_ids_are_shown_if_asked_for(own_server: Served, name: str) -> None:
    whole = own_server.complete(PROMPT, **{name: True}).json()["choices"][0]
    assert whole["prompt_token_ids"] == [BOS, *PROMPT.encode()]
    assert whole["token_ids"] == [*b" one"]
    chunks = chunks_of(own_server.complete(PROMPT, stream=True, **{name: True}))
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == [*b" one"]
    assert own_server.chat("hi", **{name: True}).json()["choices"][0]["token_ids"] == [*b"Hello."]
    assert "token_ids" not in own_server.complete(PROMPT).json()["choices"][0]


def test_times_are_in_llama_servers_words(own_server: Served) -> None:
    first = own_server.complete(PROMPT).json()["timings"]
    assert (first["cache_n"], first["prompt_n"], first["predicted_n"]) == (0, len(PROMPT) + 1, len(" one"))
    assert first["predicted_per_second"] > 0
    wait_until(lambda: is_idle(own_server))
    *_, last = chunks_of(own_server.complete(PROMPT, stream=True))
    assert (last["timings"]["cache_n"], last["timings"]["prompt_n"]) == (len(PROMPT), 1)


def test_a_stream_counts_while_it_runs_if_asked_to(own_server: Served) -> None:
    options = {"continuous_usage_stats": True}
    chunks = chunks_of(own_server.complete(PROMPT, stream=True, stream_options=options, timings_per_token=True))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 4]
    assert [chunk["timings"]["predicted_n"] for chunk in chunks] == [1, 2, 3, 4, 4]
    assert {chunk["timings"]["prompt_n"] for chunk in chunks} == {len(PROMPT) + 1}
    assert not any("prompt_progress" in chunk for chunk in chunks)
