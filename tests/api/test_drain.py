"""The end of a server: what was taken is served, what comes is told, and nothing is cut off without a word."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from tests.api.process import first_line, server_process
from tests.api.served import PATIENCE_S, wait_until

SERVER = """
import sys, threading
from llamaserve.config import HttpConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.server.run import run_server
from llamaserve.service import Service

may_run = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), may_run.set()), daemon=True).start()

def wait(plan, flag):
    may_run.wait(0.05)  # steps go on, so that the scheduler sees who comes

class StubbornService(Service):
    def close(self):
        threading.Event().wait()

kind = StubbornService if sys.argv[2] == "stubborn" else Service
engine = FakeEngine(n_slots=1, n_ctx=64_000, before_step=wait if sys.argv[2] == "gated" else None, step_s=0.002)
run_server(
    lambda: kind(engine, None, SchedulerConfig(), "fake"),
    HttpConfig(port=0, drain_timeout_s=float(sys.argv[1])),
    on_ready=lambda _, url: print(url, flush=True),
)
"""
LONG_S = "3600"
BOTH_SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


def payloads(response: httpx.Response) -> Iterator[str]:
    """What stands behind ``data: `` of a stream's events."""
    return (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))


def post(client: httpx.Client, **fields: object) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": "a", **fields})


def n_waiting(client: httpx.Client) -> float:
    """Requests that wait or run, as the metrics have it."""
    found = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if not line.startswith("#"))
    return float(found["llamacpp:requests_processing"]) + float(found["llamacpp:requests_deferred"])


def let_run(process: subprocess.Popen[str]) -> None:
    """Let steps take no time."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@BOTH_SIGNALS
def test_what_was_taken_is_served_to_its_end_and_what_comes_is_refused(number: signal.Signals) -> None:
    """Running and queued, streamed and not; the probes tell the difference between alive and ready."""
    with server_process(SERVER, LONG_S, "gated") as process, ExitStack() as cleanup:
        url = first_line(process)
        client = cleanup.enter_context(httpx.Client(base_url=url, timeout=PATIENCE_S))
        pool = cleanup.enter_context(ThreadPoolExecutor(2))
        streamed = client.stream("POST", "/v1/completions", json={"prompt": "a", "max_tokens": 300, "stream": True})
        running = cleanup.enter_context(streamed)
        whole: list[Future[httpx.Response]] = [pool.submit(post, client, max_tokens=3) for _ in range(2)]
        wait_until(lambda: n_waiting(client) == 3)
        assert client.get("/ready").status_code == 200

        process.send_signal(number)
        wait_until(lambda: client.get("/ready").status_code == 503)
        assert client.get("/health").status_code == 200
        assert client.get("/slots").json()[0]["is_processing"]
        for stream in (False, True):
            refused = post(client, stream=stream)
            assert refused.status_code == 503
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            error = refused.json()["error"]
            assert (error["type"], error["code"]) == ("unavailable_error", "unavailable")
            assert "shutting down" in error["message"]
        assert 'llamaserve_rejections_total{reason="draining"} 2.0' in client.get("/metrics").text
        assert httpx.get(f"{url}/health").status_code == 200, "a new connection is still answered"

        let_run(process)
        *texts, end = payloads(running)
        assert end == "[DONE]"
        assert json.loads(texts[-1])["choices"][0]["finish_reason"] == "length"
        assert [answer.result().json()["usage"]["completion_tokens"] for answer in whole] == [3, 3]
        assert process.wait(timeout=PATIENCE_S) == 0


def test_what_is_not_done_in_time_ends_with_an_error_event_or_a_503() -> None:
    """No truncated stream without an error event, and nobody who waits without an answer."""
    with server_process(SERVER, "0.3", "free") as process, ExitStack() as cleanup:
        client = cleanup.enter_context(httpx.Client(base_url=first_line(process), timeout=PATIENCE_S))
        pool = cleanup.enter_context(ThreadPoolExecutor(1))
        streams = []
        for _ in range(2):  # one runs, one waits
            stream = client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True})
            streams.append(cleanup.enter_context(stream))
        waiting = pool.submit(post, client)
        wait_until(lambda: n_waiting(client) == 3)
        process.send_signal(signal.SIGTERM)
        for response in streams:
            *_, last = payloads(response)
            assert json.loads(last)["error"]["code"] == "unavailable"
        answer = waiting.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert process.wait(timeout=PATIENCE_S) == 0


@BOTH_SIGNALS
def test_a_second_signal_ends_what_runs_at_once_with_an_error_event(number: signal.Signals) -> None:
    with (
        server_process(SERVER, LONG_S, "free") as process,
        httpx.Client(base_url=first_line(process), timeout=PATIENCE_S) as client,
    ):
        with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as response:
            chunks = payloads(response)
            next(chunks)
            process.send_signal(number)
            wait_until(lambda: client.get("/ready").status_code == 503)
            process.send_signal(number)
            *_, last = chunks
        assert process.wait(timeout=PATIENCE_S) == 0
    assert json.loads(last)["error"]["code"] == "unavailable"


def test_a_server_that_nobody_uses_ends_at_once() -> None:
    with (
        server_process(SERVER, LONG_S, "free") as process,
        httpx.Client(base_url=first_line(process), timeout=PATIENCE_S) as client,
    ):
        assert client.get("/health").status_code == 200  # and its connection stays open
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")


def test_a_client_that_leaves_while_the_server_drains_is_not_waited_for() -> None:
    """S51"""
    with (
        server_process(SERVER, LONG_S, "free") as process,
        httpx.Client(base_url=first_line(process), timeout=PATIENCE_S) as client,
    ):
        with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as response:
            chunks = payloads(response)  # kept: collecting it would close the stream
            next(chunks)
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: client.get("/ready").status_code == 503)
        assert process.wait(timeout=PATIENCE_S) == 0


def test_a_second_signal_ends_even_a_server_whose_engine_does_not_stop() -> None:
    with server_process(SERVER, "0", "stubborn") as process:
        first_line(process)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None, "without a hurry it waits for the engine"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0
