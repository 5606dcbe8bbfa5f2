"""The command as users run it: a process of its own, the real model, the real streams."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

TIMEOUT_S = 120


def llamaserve(*arguments: str, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llamaserve", *arguments],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def model_path() -> Path:
    pulled = llamaserve("pull")
    assert pulled.returncode == 0, pulled.stderr
    return Path(pulled.stdout.removesuffix("\n"))


def test_pull_prints_the_path_of_the_default_model(model_path: Path) -> None:
    """D11"""
    assert model_path.is_absolute()
    assert model_path.stat().st_size == 98_362_432


def test_a_second_pull_says_and_fetches_nothing(model_path: Path) -> None:
    pulled = llamaserve("pull", "smollm2")
    assert (pulled.stdout, pulled.stderr) == (f"{model_path}\n", "")


def test_complete_answers_from_any_folder(model_path: Path, tmp_path: Path) -> None:
    done = llamaserve("complete", "The capital of France is", "-n", "8", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in done.stdout


def test_complete_is_the_same_each_time_and_takes_standard_input(model_path: Path) -> None:
    """E25"""
    first = llamaserve("complete", "One two three", "-n", "12", "-m", str(model_path))
    second = llamaserve("complete", "-", "-n", "12", stdin="One two three")
    assert first.returncode == second.returncode == 0
    assert first.stdout == second.stdout != ""


def test_complete_into_a_closed_pipe_ends_without_a_traceback(model_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "llamaserve", "complete", "Once upon a time", "-n", "200"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=TIMEOUT_S)
    assert (process.returncode, errors) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize("command", [["complete", "Once", "-n", "4"], ["info"], ["pull"]])
def test_a_full_disk_ends_a_command_with_one_line(model_path: Path, command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "llamaserve", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            timeout=TIMEOUT_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "llamaserve: error: [Errno 28] No space left on device\n")


@pytest.mark.skipif(os.name != "posix", reason="closes streams by the shell's words")
def test_closed_streams_do_no_harm(model_path: Path) -> None:
    command = shlex.join([sys.executable, "-m", "llamaserve", "complete", "Once", "-n", "2"])
    done = subprocess.run(
        ["sh", "-c", f"{command} <&- >&-"], stderr=subprocess.PIPE, encoding="utf-8", timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("flag", ["-b", "-ub", "-ngl"])
def test_a_size_beyond_llama_cpps_integers_ends_with_one_line(model_path: Path, flag: str) -> None:
    done = llamaserve("complete", "hi", flag, "99999999999")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"llamaserve: error: n_\w+ is 99999999999: it must be .* to 2147483647\n", done.stderr)


def test_chat_keeps_the_conversation_until_it_is_cleared(model_path: Path) -> None:
    done = llamaserve("chat", "-n", "20", stdin="Hello.\nHello.\n/clear\nHello.\n/exit\n")
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first == third != second


def test_info_says_what_the_default_model_is(model_path: Path) -> None:
    said = json.loads(llamaserve("info", "--json").stdout)
    assert said["path"] == str(model_path)
    assert said["size_bytes"] == 98_362_432
    assert (said["architecture"], said["memory"], said["n_ctx_train"]) == ("llama", "kv", 8192)
    assert said["n_params"] > 134_000_000
    assert "<|im_start|>" in said["chat_template"]
    assert said["metadata"]["general.license"] == "apache-2.0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no model file"),
        (b"hello, this is text", "not a GGUF"),
        (b"GGUF\x03\0\0\0\xff\xff", "not a readable GGUF|cannot load"),
    ],
    ids=["missing", "text", "truncated"],
)
@pytest.mark.parametrize("command", [["info"], ["complete", "hi", "-m"], ["serve", "--port", "0", "-m"]])
def test_a_file_that_is_no_model_ends_with_one_line(
    tmp_path: Path, command: list[str], content: bytes | None, message: str
) -> None:
    path = tmp_path / "bad.gguf"
    if content is not None:
        path.write_bytes(content)
    done = llamaserve(*command, str(path))
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("llamaserve: error: ")
    assert re.search(message, done.stderr)
    assert "bad.gguf" in done.stderr


@pytest.mark.parametrize("command", [["complete", "hi"], ["serve", "--port", "0"]], ids=["complete", "serve"])
def test_a_context_larger_than_memory_ends_with_one_line(model_path: Path, command: list[str]) -> None:
    """K18: before the memory is taken."""
    done = llamaserve(*command, "-c", "2000000000")
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("llamaserve: error: n_ctx is 2000000000: ")
    assert "GiB" in done.stderr


def test_a_port_in_use_ends_with_one_line(model_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = llamaserve("serve", "--port", port)
    assert done.returncode == 1
    assert done.stderr.startswith(f"llamaserve: error: cannot listen on 127.0.0.1:{port}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.name != "posix", reason="ends the server with a POSIX signal")
def test_serve_prints_a_command_that_works_and_ends_well_on_ctrl_c(model_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "llamaserve", "serve", "--port", "0", "-c", "2048", "-np", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdout is not None
    try:
        curl = shlex.split(next(line for line in process.stdout if line.strip().startswith("curl ")))
        header = curl[curl.index("-H") + 1].split(": ")
        body = json.loads(curl[curl.index("-d") + 1]) | {"max_tokens": 8}
        request = urllib.request.Request(curl[1], json.dumps(body).encode(), {header[0]: header[1]})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            answer = json.load(response)
        assert answer["choices"][0]["message"]["content"]
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    (line,) = errors.splitlines()
    assert "POST /v1/chat/completions 200" in line
