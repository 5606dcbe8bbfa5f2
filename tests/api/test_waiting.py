"""What a request says of its waiting: its deadline, and the signs of life a stream gives meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Sequence

import httpx
import pytest

from llamaserve.api.sse import Take
from llamaserve.config import HttpConfig, PriorityHeader, SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.request import GenerationRequest, Lane
from tests.api.served import PATIENCE_S, LineTemplate, Served, serving, wait_until
from tests.api.test_streaming import payloads

DAYS_30 = 30 * 24 * 3600
BAD_SECONDS = [0, -1, -0.001, DAYS_30 + 1, 1e300, 10**30]


@pytest.fixture
def slow() -> Generator[Served, None, None]:
    """A server with one slot and a text that takes minutes."""
    with serving(FakeEngine(n_slots=1, n_ctx=64_000, step_s=0.002)) as served:
        yield served


def n_deadlines(served: Served) -> str:
    """As the metrics show it."""
    (line,) = [line for line in served.client.get("/metrics").text.splitlines() if line.startswith("llamaserve_deadl")]
    return line.rpartition(" ")[2]


def test_an_answer_that_takes_longer_than_its_timeout_is_a_504(slow: Served) -> None:
    """K7: and its slot is free."""
    response = slow.complete("a", timeout=0.05)
    assert response.status_code == 504
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("timeout", "server_error")
    assert "0.05 s" in error["message"]
    assert response.headers["x-should-retry"] == "false", "the same would take as long again"
    wait_until(lambda: slow.service.stats().active_slots == 0)
    assert n_deadlines(slow) == "1.0"


def test_a_stream_that_takes_longer_than_its_timeout_ends_with_an_error_event(slow: Served) -> None:
    """K7, K38"""
    body = {"prompt": "a", "stream": True, "timeout": 0.1}
    with slow.client.stream("POST", "/v1/completions", json=body) as response:
        *_, last = payloads(response)
    assert json.loads(last)["error"]["code"] == "timeout"
    wait_until(lambda: slow.service.stats().active_slots == 0)
    assert n_deadlines(slow) == "1.0"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_time_in_the_queue_counts(slow: Served, stream: bool) -> None:
    """K7, K15"""
    with slow.client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as running:
        chunks = payloads(running)
        next(chunks)
        answer = slow.complete("b", timeout=0.05, stream=stream)
        assert '"code":"timeout"' in answer.text
        wait_until(lambda: slow.service.stats().queue_depth == 0)
        assert slow.service.stats().active_slots == 1


def test_a_request_that_ends_in_time_is_as_without_a_timeout(slow: Served) -> None:
    for fields in ({}, {"timeout": 30}, {"timeout": DAYS_30}, {"timeout": None}):
        assert slow.complete("a", max_tokens=2, **fields).json()["usage"]["completion_tokens"] == 2
    assert n_deadlines(slow) == "0.0"


@pytest.mark.parametrize("header", ["0.05", ".05", "0.050"])
def test_a_header_may_name_the_timeout(slow: Served, header: str) -> None:
    response = slow.client.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Timeout": header})
    assert response.status_code == 504
    assert "0.05 s" in response.json()["error"]["message"]


def test_the_body_wins_over_the_header(slow: Served) -> None:
    for body, header, status in ((30, "0.01", 200), (0.01, "30", 504)):
        response = slow.client.post(
            "/v1/completions",
            json={"prompt": "a", "max_tokens": 40, "timeout": body},
            headers={"X-Request-Timeout": header},
        )
        assert response.status_code == status


def test_an_empty_header_is_none(slow: Served) -> None:
    response = slow.client.post(
        "/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers={"X-Request-Timeout": ""}
    )
    assert response.status_code == 200


@pytest.mark.parametrize("seconds", BAD_SECONDS)
def test_a_timeout_out_of_range_names_value_and_limit(served: Served, seconds: float) -> None:
    response = served.complete("Hello", timeout=seconds)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "timeout"
    assert str(DAYS_30) in error["message"]


@pytest.mark.parametrize("seconds", ["soon", True, [1], {}])
def test_a_timeout_that_is_no_number_is_refused(served: Served, seconds: object) -> None:
    response = served.complete("Hello", timeout=seconds)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "timeout")


@pytest.mark.parametrize("header", ["0", "-1", "soon", "nan", "inf", "1e3", "1_0", "5 s", "99999999999", "1,5", "٣"])
def test_a_header_that_is_no_timeout_is_refused_by_name(served: Served, header: str) -> None:
    headers = [(b"x-request-timeout", header.encode())]
    response = served.client.post("/v1/completions", json={"prompt": "Hello"}, headers=headers)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "x-request-timeout"
    assert str(DAYS_30) in error["message"]


def comments(response: httpx.Response, n_wanted: int) -> None:
    """Read until so many comments have come."""
    lines = response.iter_lines()
    for _ in range(n_wanted):
        assert next(line for line in lines if line) == ": keep-alive"
    response.close()


def test_a_stream_in_the_queue_and_one_whose_prompt_is_computed_say_that_they_live() -> None:
    may_run = threading.Event()
    engine = FakeEngine(n_slots=1, before_step=lambda plan, flag: may_run.wait(PATIENCE_S))
    body = {"prompt": "a", "stream": True}
    try:
        with serving(engine, http=HttpConfig(sse_ping_interval_s=0.02)) as served:
            with served.client.stream("POST", "/v1/completions", json=body) as computing:
                with served.client.stream("POST", "/v1/completions", json=body) as queued:
                    comments(queued, 2)
                comments(computing, 2)
            may_run.set()
    finally:
        may_run.set()


@pytest.mark.parametrize(("interval", "is_heard"), [(1, True), (0, False), (-1, False), (None, False)])
def test_a_request_may_have_an_interval_of_its_own(interval: int | None, is_heard: bool) -> None:
    """As with llama-server, -1 is never; the server here says 0."""
    may_run = threading.Event()
    engine = FakeEngine(before_step=lambda plan, flag: may_run.wait(PATIENCE_S))
    with serving(engine, http=HttpConfig(sse_ping_interval_s=0)) as served:
        threading.Timer(2.5 if is_heard else 1.3, may_run.set).start()
        answer = served.complete("a", max_tokens=1, stream=True, sse_ping_interval=interval)
    assert answer.text.startswith(": keep-alive\n\n") is is_heard
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("interval", [-2, DAYS_30 + 1, 2**62, 1.5, "1"])
def test_an_interval_out_of_range_is_refused(served: Served, interval: object) -> None:
    response = served.complete("Hello", stream=True, sse_ping_interval=interval)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "sse_ping_interval")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_progress_of_the_prompt_is_streamed_to_whoever_asks(path: str) -> None:
    """In llama-server's words; the opening chunk of a chat comes once."""
    prompt = (
        {"prompt": "x" * 40} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x" * 40}]}
    )
    engine = FakeEngine(step_s=0.02)  # a client that has read nothing meanwhile gets the latest only
    with serving(engine, template=LineTemplate(), scheduler=SchedulerConfig(prefill_chunk=16)) as served:
        answers = []
        for return_progress in (True, False, None):
            body = {
                **prompt,
                "max_tokens": 2,
                "stream": True,
                "return_progress": return_progress,
                "cache_prompt": False,
            }
            with served.client.stream("POST", path, json=body) as response:
                answers.append([json.loads(payload) for payload in payloads(response) if payload != "[DONE]"])
    with_progress, *without = answers
    assert not any("prompt_progress" in chunk for chunks in without for chunk in chunks)
    progress = [chunk["prompt_progress"] for chunk in with_progress if "prompt_progress" in chunk]
    total = progress[0]["total"]
    assert progress[-1]["processed"] == total > 40
    processed = [item["processed"] for item in progress]
    assert processed == sorted(processed)
    assert len(progress) >= 3
    for item in progress:
        assert list(item) == ["total", "cache", "processed", "time_ms"]
        assert (item["total"], item["cache"]) == (total, 0)
    assert [item["time_ms"] for item in progress] == sorted(item["time_ms"] for item in progress)
    if path != "/v1/completions":
        roles = [choice["delta"].get("role") for chunk in with_progress for choice in chunk["choices"]]
        assert roles == ["assistant"] + [None] * (len(roles) - 1)


def test_progress_is_for_streams(served: Served) -> None:
    assert "prompt_progress" not in served.complete("Hello", return_progress=True).json()


def taken_lane(served: Served, monkeypatch: pytest.MonkeyPatch, body: object, header: str | None) -> Lane:
    """The lane with which a request reaches the service."""
    seen: list[GenerationRequest] = []
    listen = served.service.listen

    def recording_listen(requests: Sequence[GenerationRequest], takes: Sequence[Take]) -> Callable[[], None]:
        seen.extend(requests)
        return listen(requests, takes)

    monkeypatch.setattr(served.service, "listen", recording_listen)
    fields = {"prompt": "a", "max_tokens": 1, "stream": True} | ({} if body is None else {"priority": body})
    headers = [] if header is None else [(b"x-priority", header.encode())]
    assert served.client.post("/v1/completions", json=fields, headers=headers).status_code == 200
    return seen[0].priority


WISHES = [
    (None, None, Lane.NORMAL),
    ("high", None, Lane.HIGH),
    ("low", None, Lane.LOW),
    (None, "HIGH", Lane.HIGH),
    (None, "Low", Lane.LOW),
    (None, "urgent", Lane.NORMAL),
    (None, "", Lane.NORMAL),
    ("low", "high", Lane.LOW),
    (0, "low", Lane.LOW),
    (-1, None, Lane.HIGH),
    (1, "high", Lane.LOW),
    (2**70, None, Lane.LOW),
]


@pytest.mark.parametrize(("body", "header", "wanted"), WISHES)
@pytest.mark.parametrize("honoured", list(PriorityHeader))
def test_the_operator_decides_what_of_a_priority_is_honoured(
    monkeypatch: pytest.MonkeyPatch, body: object, header: str | None, wanted: Lane, honoured: PriorityHeader
) -> None:
    """G19, K142: clients are not authenticated. Off: all are equal; cap: none above normal."""
    with serving(FakeEngine(), http=HttpConfig(priority_header=honoured)) as served:
        taken = taken_lane(served, monkeypatch, body, header)
    may_have = {
        PriorityHeader.OFF: {Lane.NORMAL},
        PriorityHeader.CAP: {Lane.NORMAL, Lane.LOW},
        PriorityHeader.ON: set(Lane),
    }
    assert taken == (wanted if wanted in may_have[honoured] else Lane.NORMAL)


@pytest.mark.parametrize("priority", ["urgent", "", "HIGH", "1", True, 0.5, ["high"]])
def test_a_priority_that_is_none_is_refused_whatever_is_honoured(served: Served, priority: object) -> None:
    response = served.complete("Hello", priority=priority)
    assert response.status_code == 400
    assert "priority" in response.json()["error"]["message"]
