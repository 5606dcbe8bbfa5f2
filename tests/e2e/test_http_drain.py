"""The real command with the default model, stopped while it serves: no stream is cut off without a word."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.e2e.http_server import wait_until

N_STREAMS = 4
TIMEOUT_S = 120
pytestmark = pytest.mark.skipif(os.name != "posix", reason="ends the server with a POSIX signal")


@contextmanager
def serving(*flags: str) -> Generator[tuple[subprocess.Popen[str], httpx.Client], None, None]:
    """``llamaserve serve`` in a process of its own, ready; killed at the end if it still runs."""
    command = [sys.executable, "-m", "llamaserve", "serve", "--port", "0", "-c", "4096", "-np", str(N_STREAMS), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            found = (re.search(r" at (http://\S+)$", line) for line in process.stdout)
            url = next(match[1] for match in found if match is not None)
            with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
                yield process, client
        finally:
            if process.poll() is None:
                process.kill()


def last_event(client: httpx.Client, number: int, n_tokens: int) -> str:
    """The last event of a stream, read to its end."""
    body = {"prompt": f"Story {number}:", "max_tokens": n_tokens, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        *_, last = (line for line in response.iter_lines() if line)
    return last.removeprefix("data: ")


def n_generating(client: httpx.Client) -> int:
    return sum(slot["state"] == "generating" for slot in client.get("/slots").json())


@pytest.mark.parametrize(("drain_s", "n_tokens", "is_served"), [("60", 120, True), ("0.3", 900, False)])
def test_streams_that_run_when_the_server_is_stopped_end_as_they_should(
    drain_s: str, n_tokens: int, is_served: bool
) -> None:
    """In time: with ``[DONE]``; else with an error event. The process ends with 0 and says nothing but its log."""
    with serving("--drain-timeout", drain_s) as (process, client), ThreadPoolExecutor(N_STREAMS) as pool:
        lasts = [pool.submit(last_event, client, number, n_tokens) for number in range(N_STREAMS)]
        wait_until(lambda: n_generating(client) == N_STREAMS)
        process.send_signal(signal.SIGTERM)
        if is_served:
            wait_until(lambda: client.get("/ready").status_code == 503)
            assert client.get("/health").status_code == 200
            refused = client.post("/v1/completions", json={"prompt": "too late"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        for last in lasts:
            if is_served:
                assert last.result() == "[DONE]"
            else:
                assert json.loads(last.result())["error"]["code"] == "unavailable"
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert f"{N_STREAMS} requests have {float(drain_s):g} s to end" in errors
