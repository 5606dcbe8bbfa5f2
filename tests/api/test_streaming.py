"""Streams over a real socket: their order, their errors, and clients that leave."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from llamaserve.engine.fake import BOS, FakeEngine
from llamaserve.errors import DecodeFailed
from tests.api.served import PATIENCE_S, Served, serving, wait_until


def payloads(response: httpx.Response) -> Iterator[str]:
    """What stands behind ``data: ``, as it arrives."""
    for line in response.iter_lines():
        assert line == "" or line.startswith("data: "), line
        if line:
            yield line.removeprefix("data: ")


def stream_of(served: Served, path: str, **body: object) -> list[str]:
    """The whole stream."""
    with served.client.stream("POST", path, json={"stream": True, **body}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-request-id"]
        return list(payloads(response))


def text_of(chunks: list[str], field: str) -> str:
    """The text of all chunks."""
    parts = []
    for chunk in chunks:
        for choice in json.loads(chunk)["choices"]:
            content = choice["text"] if field == "text" else choice["delta"].get("content")
            parts.append(content or "")
    return "".join(parts)


def test_a_chat_stream_equals_the_whole_answer(served: Served) -> None:
    """S42"""
    messages = [{"role": "user", "content": "hi"}]
    *chunks, end = stream_of(served, "/v1/chat/completions", messages=messages)
    assert end == "[DONE]"
    assert text_of(chunks, "delta") == served.chat("hi").json()["choices"][0]["message"]["content"]
    first, last = json.loads(chunks[0]), json.loads(chunks[-1])
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert all("usage" not in json.loads(chunk) for chunk in chunks)
    assert len({json.loads(chunk)["id"] for chunk in chunks}) == 1


def test_a_completion_stream_equals_the_whole_answer(served: Served) -> None:
    *chunks, end = stream_of(served, "/v1/completions", prompt="euro")
    assert end == "[DONE]"
    assert text_of(chunks, "text") == "5 € a 🍏!"
    assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "stop"


def test_usage_is_streamed_when_asked_for(served: Served) -> None:
    *chunks, usage, _ = stream_of(
        served,
        "/v1/completions",
        prompt="Hello",
        max_tokens=3,
        stream_options={"include_usage": True},
        cache_prompt=False,
    )
    assert json.loads(usage)["choices"] == []
    assert json.loads(usage)["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 3,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "length"


def test_a_stop_string_never_shows_in_a_stream(served: Served) -> None:
    *chunks, _ = stream_of(served, "/v1/completions", prompt="Hello", stop=["good m"])
    assert text_of(chunks, "text") == " world, "


def test_the_status_line_comes_before_the_request_has_a_slot_and_nothing_else_before_the_first_token() -> None:
    """A proxy that hears nothing gives up; a client that measures the first token must not be fooled."""
    may_run = threading.Event()
    engine = FakeEngine(n_slots=1, before_step=lambda plan, flag: assert_released(may_run))
    body = {"prompt": "a", "max_tokens": 1, "stream": True}
    with serving(engine) as served, ExitStack() as streams:
        for n_begun in (1, 2):
            response = streams.enter_context(served.client.stream("POST", "/v1/completions", json=body))
            assert response.status_code == 200
            wait_until(lambda: served.service.stats().active_slots + served.service.stats().queue_depth >= 1)
            assert engine.plans == engine.plans[:1], f"stream {n_begun} waited for a step"
        may_run.set()


def assert_released(event: threading.Event) -> None:
    """Block until the event is set."""
    assert event.wait(PATIENCE_S)


def test_an_error_after_the_first_token_ends_the_stream_without_an_end_mark() -> None:
    """S49"""
    engine = FakeEngine(step_s=0.002)
    with serving(engine) as served:
        body = {"prompt": "a", "stream": True}
        with served.client.stream("POST", "/v1/completions", json=body) as response:
            chunks = payloads(response)
            next(chunks)
            engine.fail_step(DecodeFailed("llama_decode returned -3"))
            *_, last = chunks
        error = json.loads(last)["error"]
        assert error["code"] == "decode_failed"
        assert "llama_decode returned -3" in error["message"]
        assert served.complete("a", max_tokens=1).status_code == 200


def test_an_error_before_the_first_token_is_the_only_event() -> None:
    """S49"""
    engine = FakeEngine()
    with serving(engine) as served:
        engine.fail_step(DecodeFailed("llama_decode returned -3"))
        (only,) = stream_of(served, "/v1/completions", prompt="a")
        assert json.loads(only)["error"]["code"] == "decode_failed"
        assert served.complete("a", max_tokens=1).status_code == 200


def test_a_request_that_is_not_taken_is_a_plain_http_error() -> None:
    """S48: what can be known before anything waits still has a status of its own."""
    with serving(FakeEngine(n_ctx=16)) as served:
        response = served.complete("x" * 40, stream=True)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"


def test_eight_dropped_streams_free_their_slots_with_little_waste() -> None:
    """S51, S52, S54"""
    engine = FakeEngine(n_slots=8, n_ctx=64_000, step_s=0.002)
    with serving(engine) as served:
        for _ in range(8):
            body = {"prompt": "a", "max_tokens": 2000, "stream": True}
            with served.client.stream("POST", "/v1/completions", json=body) as response:
                chunks = payloads(response)
                for _ in range(4):
                    next(chunks)
        wait_until(lambda: served.service.stats().idle_slots == 8)
        stats = served.service.stats()
        assert stats.requests_cancelled == 8
        assert stats.generated_tokens < 8 * 60
        assert stats.used_cells == stats.prefix_gauges.parked_cells
        assert served.complete("a", max_tokens=1).status_code == 200


def raw_request(served: Served, body: dict[str, object]) -> socket.socket:
    """A completion request on a socket of its own, sent but not read."""
    url = served.client.base_url
    connection = socket.create_connection((url.host, url.port or 80), timeout=PATIENCE_S)
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_leaves_frees_its_slot(stream: bool) -> None:
    """S51"""
    with serving(FakeEngine(n_ctx=64_000, step_s=0.002)) as served:
        connection = raw_request(served, {"prompt": "a", "max_tokens": 20_000, "stream": stream})
        wait_until(lambda: served.service.stats().active_slots == 1)
        connection.close()
        wait_until(lambda: served.service.stats().active_slots == 0)
        assert served.service.stats().requests_cancelled == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_leaves_the_queue_is_never_computed(stream: bool) -> None:
    """S53"""
    engine = FakeEngine(n_slots=1, n_ctx=64_000, step_s=0.002)
    with serving(engine) as served:
        running = raw_request(served, {"prompt": "a", "max_tokens": 20_000})
        wait_until(lambda: served.service.stats().active_slots == 1)
        queued = raw_request(served, {"prompt": "queued", "stream": stream})
        wait_until(lambda: served.service.stats().queue_depth == 1)
        queued.close()
        wait_until(lambda: served.service.stats().queue_depth == 0)
        running.close()
        wait_until(lambda: served.service.stats().active_slots == 0)
    computed = [piece.tokens for plan in engine.plans for piece in plan.pieces]
    assert [list(tokens) for tokens in computed] == [[BOS, ord("a")]]


def test_a_client_that_does_not_read_does_not_hold_up_the_others() -> None:
    with serving(FakeEngine(n_ctx=64_000)) as served:
        connection = raw_request(served, {"prompt": "a", "max_tokens": 30_000, "stream": True})
        wait_until(lambda: served.service.stats().active_slots == 1)
        for _ in range(20):
            assert served.complete("b", max_tokens=5).status_code == 200
        connection.close()
