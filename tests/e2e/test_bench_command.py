"""``llamaserve bench`` in a process of its own, against the real server with the default model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.http_server import RealServer

TIMEOUT_S = 300


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llamaserve", "bench", *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
    )


def run_json(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_bytes())
    assert isinstance(document, dict)
    return document


def test_a_closed_loop_sweep_measures_every_request(http_server: RealServer, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    flags = "--concurrency 1,2 --requests 3 --input-tokens 24 --output-tokens 6 --slo ttft:60000"
    done = bench(http_server.url, *flags.split(), "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^TTFT +\d", done.stdout, re.MULTILINE)
    document = run_json(path)
    assert document["parameters"]["model"] == "smollm2"
    for point in document["points"]:
        assert (point["summary"]["ok"], point["summary"]["without_usage"]) == (3, 0)
        assert point["summary"]["goodput"]["requests"] == 3
        # Some words are two tokens where a text begins.
        assert 24 <= point["summary"]["prompt_tokens"]["min"] <= point["summary"]["prompt_tokens"]["max"] <= 26
        for request in point["requests"]:
            assert request["completion_tokens"] == 6
            assert 0 < request["ttft"] <= request["e2e"] <= request["finished"]


def test_an_open_loop_over_chat_with_a_shared_prefix_measures_every_request(
    http_server: RealServer, tmp_path: Path
) -> None:
    path = tmp_path / "out.json"
    flags = (
        "--request-rate 5 --requests 3 --endpoint chat --input-tokens 20 --shared-prefix-tokens 12 --output-tokens 4"
    )
    done = bench(http_server.url, *flags.split(), "--temperature", "0.8", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    summary = run_json(path)["points"][0]["summary"]
    assert (summary["ok"], summary["completion_tokens"]["min"]) == (3, 4)
    assert summary["prompt_tokens"]["min"] > 20


def test_requests_the_server_refuses_are_counted(http_server: RealServer) -> None:
    done = bench(http_server.url, "--requests", "2", "--warmup", "0", "-m", "no-such-model")
    assert done.returncode == 1
    assert "0 ok, 2 failed" in done.stdout
    assert "failed, status: 2, the first: 404: " in done.stdout
    assert "no-such-model" in done.stdout
