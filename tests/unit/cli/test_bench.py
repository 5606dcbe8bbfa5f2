"""``llamaserve bench`` against a server of our own: what it prints and writes, and how it ends."""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import FakeParts, Run
from tests.unit.loadtest.own_server import Exchange, Hangup, OwnServer, own_server, well

QUICK = ("--requests", "4", "--output-tokens", "3", "--input-tokens", "5")


@pytest.fixture
def server() -> Iterator[OwnServer]:
    with own_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMASERVE_API_KEY", raising=False)


def prompts(server: OwnServer) -> list[str]:
    return [exchange.body["prompt"] for exchange in server.exchanges]


def test_a_good_run_prints_figures_ends_with_0_and_loads_no_model(run: Run, fake: FakeParts, server: OwnServer) -> None:
    ended = run("bench", server.url, *QUICK)
    assert ended.code == 0
    assert re.search(r"^TTFT +\d", ended.out, re.MULTILINE)
    assert "4 requests in" in ended.out
    assert ": 4 ok, 0 failed" in ended.out
    assert "prompt tokens 7 / 7.0 / 7 (min / mean / max)" in ended.out
    assert f"llamaserve bench {server.url}\nmodel tiny, completions" in ended.out
    assert fake.resolved == []


def test_help_sends_and_loads_nothing(run: Run, fake: FakeParts) -> None:
    ended = run("bench", "-h")
    assert ended.code == 0
    assert "llamaserve bench" in ended.out
    assert fake.resolved == []


def test_progress_goes_to_stderr_and_quiet_shows_none(run: Run, server: OwnServer) -> None:
    shown = run("bench", server.url, *QUICK)
    assert "llamaserve: concurrency 1: 4/4 done, " in shown.err
    assert "llamaserve:" not in shown.out
    assert run("bench", server.url, *QUICK, "--quiet").err == ""


def test_flags_reach_the_server(run: Run, server: OwnServer) -> None:
    flags = ["-m", "big", "--api-key", "key", "--header", "X-Tenant: a b", "--temperature", "0.5", "--seed", "9"]
    flags += ["--extra-body", '{"top_k": 7}', "--warmup", "0", "--shared-prefix-tokens", "2"]
    assert run("bench", server.url + "/v1", *QUICK, *flags).code == 0
    got = server.exchanges[0]
    assert got.path == "/v1/completions"
    assert (got.headers["authorization"], got.headers["x-tenant"]) == ("Bearer key", "a b")
    body = {name: value for name, value in got.body.items() if name not in ("prompt", "stream", "stream_options")}
    assert body == {
        "top_k": 7,
        "max_tokens": 3,
        "temperature": 0.5,
        "model": "big",
        "ignore_eos": True,
        "seed": 9,
    }
    assert len(server.exchanges) == 4
    assert len({prompt.split()[2] for prompt in prompts(server)}) == 4
    assert len({tuple(prompt.split()[:2]) for prompt in prompts(server)}) == 1


def test_chat_is_another_endpoint(run: Run, server: OwnServer) -> None:
    assert run("bench", server.url, *QUICK, "--endpoint", "chat").code == 0
    assert server.exchanges[0].path == "/v1/chat/completions"
    assert server.exchanges[0].body["messages"][0]["role"] == "user"


def test_the_key_may_come_from_the_environment(run: Run, server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMASERVE_API_KEY", "from outside")
    assert run("bench", server.url, *QUICK).code == 0
    assert server.exchanges[0].headers["authorization"] == "Bearer from outside"


def test_one_seed_sends_the_same_requests_and_another_others(run: Run, server: OwnServer) -> None:
    for seed in ("1", "1", "2"):
        assert run("bench", server.url, *QUICK, "--seed", seed).code == 0
    one, again, other = prompts(server)[:5], prompts(server)[5:10], prompts(server)[10:]
    assert one == again
    assert not set(one) & set(other)


def test_a_sweep_warms_up_and_measures_each_point_with_new_prompts(run: Run, server: OwnServer) -> None:
    ended = run("bench", server.url, *QUICK, "--concurrency", "1,2", "--warmup", "2")
    assert ended.code == 0
    assert "\nconcurrency 1\n" in ended.out
    assert "\nconcurrency 2\n" in ended.out
    assert "\nsweep " in ended.out
    assert len(set(prompts(server))) == 12


def test_an_open_loop_sends_at_its_rate(run: Run, server: OwnServer, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    ended = run("bench", server.url, *QUICK, "--request-rate", "200,400", "--json", str(path))
    assert ended.code == 0
    assert "\n200 requests/s\n" in ended.out
    points = json.loads(path.read_bytes())["points"]
    assert [point["load"] for point in points] == [
        {"loop": "open", "request_rate": 200},
        {"loop": "open", "request_rate": 400},
    ]
    for point in points:
        times = [request["submitted"] for request in point["requests"]]
        assert times == sorted(times)
        assert times[-1] > 0


def test_files_hold_the_figures(run: Run, server: OwnServer, tmp_path: Path) -> None:
    json_path, markdown_path = tmp_path / "out.json", tmp_path / "out.md"
    flags = ["--json", str(json_path), "--markdown", str(markdown_path), "--slo", "ttft:60000", "--slo", "itl:60000"]
    assert run("bench", server.url, *QUICK, *flags, "--api-key", "secret").code == 0
    document: dict[str, Any] = json.loads(json_path.read_bytes())
    assert document["parameters"]["slo"] == {"ttft": 60, "itl": 60}
    assert document["parameters"]["model"] == "tiny"
    summary = document["points"][0]["summary"]
    assert (summary["ok"], summary["goodput"]["requests"], summary["completion_tokens"]["mean"]) == (4, 4, 3)
    assert [len(request["token_times"]) for request in document["points"][0]["requests"]] == [3] * 4
    assert "secret" not in json_path.read_text() + markdown_path.read_text()
    assert "| TTFT | " in markdown_path.read_text()


def test_failures_are_counted_the_good_ones_shown_and_it_ends_with_1(run: Run, server: OwnServer) -> None:
    async def mostly(exchange: Exchange) -> None:
        if exchange.number == 2:
            raise Hangup
        if exchange.number == 3:
            exchange.body["max_tokens"] = 1
        await well(exchange)

    server.script = mostly
    ended = run("bench", server.url, *QUICK)
    assert ended.code == 1
    assert ": 2 ok, 2 failed" in ended.out
    assert "failed, closed: 1, the first: ServerDisconnectedError" in ended.out
    assert "failed, length: 1, the first: asked for 3 tokens, got 1" in ended.out
    assert re.search(r"^TTFT +\d", ended.out, re.MULTILINE)


def test_any_length_takes_a_short_answer(run: Run, server: OwnServer) -> None:
    async def short(exchange: Exchange) -> None:
        assert "ignore_eos" not in exchange.body
        exchange.body["max_tokens"] = 1
        await well(exchange)

    server.script = short
    ended = run("bench", server.url, *QUICK, "--any-length")
    assert ended.code == 0
    assert "at most 3 out" in ended.out


def test_a_warm_up_that_fails_is_told_and_ends_with_1(run: Run, server: OwnServer) -> None:
    async def after_the_first(exchange: Exchange) -> None:
        if not exchange.number:
            raise Hangup
        await well(exchange)

    server.script = after_the_first
    ended = run("bench", server.url, *QUICK)
    assert ended.code == 1
    assert "4 ok, 0 failed" in ended.out
    assert "warm-up failed, closed: 1" in ended.out


def test_a_stalled_server_is_left_and_ends_with_1(run: Run, server: OwnServer) -> None:
    async def silence(exchange: Exchange) -> None:
        await exchange.head()
        await asyncio.sleep(30)

    server.script = silence
    ended = run("bench", server.url, *QUICK, "--stall-timeout", "0.2", "--concurrency", "4")
    assert ended.code == 1
    assert "failed, stalled: 4, the first: no event for 0.2 s" in ended.out


def test_an_unreachable_server_is_counted_and_ends_with_1(run: Run) -> None:
    ended = run("bench", "http://no..name", *QUICK)
    assert ended.code == 1
    assert "failed, unreachable: 4" in ended.out
    assert "model not named" in ended.out


def test_a_server_without_usage_is_told(run: Run, server: OwnServer) -> None:
    async def no_usage(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.token()
        await exchange.done()

    server.script = no_usage
    ended = run("bench", server.url, *QUICK)
    assert ended.code == 0
    assert "tokens/s unknown: 4 of 4 answers came without token counts" in ended.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["localhost:8080"], ["'localhost:8080'", "http://"]),
        (["http://a", "--concurrency", "0"], ["'0'", "1 to 10000"]),
        (["http://a", "--concurrency", "1,x"], ["'1,x'", "'x'"]),
        (["http://a", "--request-rate", "nan"], ["'nan'", "from 0.001 to 100000"]),
        (["http://a", "--request-rate", "1e-300"], ["'1e-300'", "from 0.001 to 100000"]),
        (["http://a", "--input-tokens", "1000000000"], ["1000000000", "at most 10000000"]),
        (["http://a", "--request-rate", "2", "--concurrency", "3"], ["--concurrency 3", "--request-rate 2"]),
        (["http://a", "--requests", "0"], ["requests are 0", "at least 1"]),
        (["http://a", "--requests", "x"], ["--requests", "valid integer"]),
        (["http://a", "--warmup", "-1"], ["-1", "at least 0"]),
        (["http://a", "--input-tokens", "0"], ["0", "at least 1"]),
        (["http://a", "--output-tokens", "0"], ["0", "at least 1"]),
        (["http://a", "--shared-prefix-tokens", "128"], ["128", "at most 127"]),
        (["http://a", "--temperature", "nan"], ["nan", "at least 0"]),
        (["http://a", "--slo", "ttft:-5"], ["'ttft:-5'", "above 0"]),
        (["http://a", "--slo", "speed:5"], ["'speed:5'", "ttft, itl, tpot, e2e"]),
        (["http://a", "--stall-timeout", "0"], ["0", "above 0"]),
        (["http://a", "--endpoint", "embeddings"], ["'embeddings'", "completions"]),
        (["http://a", "--extra-body", "[1]"], ["[1]", "JSON object"]),
        (["http://a", "--extra-body", "{"], ["{", "JSON object"]),
        (["http://a", "--extra-body", "\udce9"], ["JSON object"]),
        (["http://a", "--extra-body", '{"stream": false}'], ["stream", "itself"]),
        (["http://a", "--header", "no colon"], ["no colon", "Name: value"]),
        (["http://a", "--header", "a b: c"], ["a b: c", "Name: value"]),
        (["http://a", "--header", "X: a\nb"], ["--header X", "printable"]),
        (["http://a", "--header", "Authorization: x"], ["Authorization", "--api-key"]),
        (["http://a", "--header", "Connection: keep-alive"], ["Connection", "itself"]),
        (["http://a", "--api-key", "ключ"], ["API key", "ASCII"]),
        (["http://a", "--json", "no-such-folder/out.json"], ["no-such-folder/out.json", "folder that exists"]),
        (["http://a", "--markdown", "."], [".", "must be a file"]),
        (["http://a", "--json", "same", "--markdown", "same"], ["'same'", "overwrite"]),
        ([], ["URL"]),
    ],
)
def test_wrong_usage_ends_with_2_and_names_value_and_limit(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    ended = run("bench", *arguments)
    assert (ended.code, ended.out) == (2, "")
    said = " ".join(ended.err.replace("│", " ").split())
    for word in words:
        assert word in said


def test_a_file_that_cannot_be_written_does_not_lose_the_figures(
    run: Run, server: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, _data: bytes) -> int:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    ended = run("bench", server.url, *QUICK, "--json", str(tmp_path / "out.json"))
    assert ended.code == 1
    assert "TTFT" in ended.out
    assert "No space left on device" in ended.err


def test_a_key_is_never_quoted(run: Run) -> None:
    assert "hush" not in run("bench", "http://a", "--api-key", "hush\n").err


def test_without_aiohttp_it_says_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_aiohttp(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "aiohttp":
            raise ModuleNotFoundError("No module named 'aiohttp'", name="aiohttp")
        return real_import(name, *rest)

    for name in [name for name in sys.modules if name.startswith(("aiohttp", "llamaserve.loadtest."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_aiohttp)
    ended = run("bench", "http://127.0.0.1:1", "--requests", "1")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == 'llamaserve: error: bench needs aiohttp: pip install "llamaserve[bench]"\n'


def test_other_commands_do_not_load_the_http_client() -> None:
    program = "import sys, llamaserve.cli.commands; print([name for name in sys.modules if name.startswith('aiohttp')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


@pytest.mark.skipif(os.name != "posix", reason="SIGINT")
def test_ctrl_c_shows_what_was_measured_and_ends_with_130(server: OwnServer, tmp_path: Path) -> None:
    async def two_then_silence(exchange: Exchange) -> None:
        if exchange.number < 2:
            await well(exchange)
            return
        await exchange.head()
        while True:
            await exchange.token()
            await asyncio.sleep(0.01)

    server.script = two_then_silence
    path = tmp_path / "out.json"
    command = [sys.executable, "-m", "llamaserve", "bench", server.url, *QUICK, "--warmup", "0", "--json", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(3):
            assert server.started.acquire(timeout=60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "(interrupted: 4 were planned): 2 ok, 0 failed" in out
    assert "Traceback" not in err
    document = json.loads(path.read_bytes())
    assert document["interrupted"] is True
    assert len(document["points"][0]["requests"]) == 2
