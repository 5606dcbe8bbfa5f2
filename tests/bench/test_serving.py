"""Arms become command lines and processes."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from bench.harness import peers, serving
from bench.harness.arms import LLAMA_SERVER, LLAMA_SERVER_SPLIT, LLAMASERVE
from bench.harness.serving import Setting, command

SETTING = Setting(Path("model.gguf"), threads=2, n_ctx=8192, slots=4)


@pytest.fixture
def peer_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that holds the peers as far as their names go."""
    monkeypatch.setattr(peers, "PEERS", tmp_path)
    (tmp_path / "llama-server").touch()


def flags(line: list[str]) -> dict[str, str]:
    """Values by flag of those both servers get."""
    common = line[line.index("-m", 3) :] if "llamaserve" in line else line
    return {flag: common[common.index(flag) + 1] for flag in ("-m", "--port", "-np", "-c", "-t")}


@pytest.mark.usefixtures("peer_folder")
def test_both_servers_get_the_same_model_threads_context_and_slots() -> None:
    ours, theirs = command(LLAMASERVE, SETTING, 8123), command(LLAMA_SERVER, SETTING, 8123)
    assert flags(ours) == flags(theirs)
    assert flags(ours) == {"-m": "model.gguf", "--port": "8123", "-np": "4", "-c": "8192", "-t": "2"}
    assert ours[:4] == [sys.executable, "-m", "llamaserve", "serve"]
    assert theirs[0].endswith("llama-server")


@pytest.mark.usefixtures("peer_folder")
def test_llama_server_has_one_pool_by_default_and_parts_when_it_is_split() -> None:
    assert "--kv-unified" in command(LLAMA_SERVER, SETTING, 1)
    assert "--no-kv-unified" in command(LLAMA_SERVER_SPLIT, SETTING, 1)


def test_an_arm_may_have_other_slots_and_more_flags() -> None:
    line = command(replace(LLAMASERVE, slots=8, flags=("--profile", "parity")), SETTING, 1)
    assert flags(line)["-np"] == "8"
    assert line[-2:] == ["--profile", "parity"]


def test_a_peer_that_was_not_built_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PEERS", tmp_path)
    with pytest.raises(RuntimeError, match="llama-server is missing: run 'make bench-peers'"):
        command(LLAMA_SERVER, SETTING, 1)


def test_a_server_that_does_not_start_is_an_error_with_the_end_of_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [sys.executable, "-c", "print('loading'); print('no such model'); raise SystemExit(3)"]
    monkeypatch.setattr(serving, "command", lambda _arm, _setting, _port: failing)
    with (
        pytest.raises(RuntimeError, match=r"(?s)llamaserve ended with 3 before it was ready.*no such model"),
        serving.serving(LLAMASERVE, SETTING),
    ):
        pytest.fail("the block must not run")


SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ.get("ARM_VARIABLE", "").encode())
    def do_DELETE(self):
        print("killed by a request", flush=True)
        os._exit(7)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def tiny_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of both servers: one that is healthy at once."""
    monkeypatch.setattr(serving, "command", lambda _arm, _setting, port: [sys.executable, "-c", SERVER, str(port)])


@pytest.mark.usefixtures("tiny_server")
def test_a_server_runs_inside_the_block_with_the_variables_of_its_arm_and_is_gone_after_it() -> None:
    with serving.serving(replace(LLAMASERVE, env={"ARM_VARIABLE": "quiet"}), SETTING) as running:
        assert httpx.get(f"{running.url}/anything").text == "quiet"
        assert running.peak_rss_mib() > 1
        assert running.cpu_seconds() > 0
        stat = Path(f"/proc/{running.pid}")
        assert stat.exists()
    assert not stat.exists()


def end(running: serving.Running) -> None:
    """Let the server crash, and wait until it has."""
    with pytest.raises(httpx.HTTPError):
        httpx.delete(running.url)
    os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.usefixtures("tiny_server")
def test_a_server_that_dies_in_the_block_is_an_error() -> None:
    with (
        pytest.raises(RuntimeError, match=r"(?s)llamaserve ended with 7.*killed by a request"),
        serving.serving(LLAMASERVE, SETTING) as running,
    ):
        end(running)


@pytest.mark.usefixtures("tiny_server")
def test_what_failed_because_the_server_died_is_told_with_its_log() -> None:
    with (
        pytest.raises(RuntimeError, match=r"(?s)llamaserve ended with 7.*killed by a request") as failed,
        serving.serving(LLAMASERVE, SETTING) as running,
    ):
        httpx.delete(running.url)
    assert isinstance(failed.value.__cause__, httpx.HTTPError)


@pytest.mark.usefixtures("tiny_server")
def test_an_error_of_the_block_stays_what_it_is_while_the_server_lives() -> None:
    with pytest.raises(KeyError, match="a figure"), serving.serving(LLAMASERVE, SETTING):
        raise KeyError("a figure")
