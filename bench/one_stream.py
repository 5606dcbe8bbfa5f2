"""Decode speed of one stream over HTTP beside llama-batched-bench, which does nothing but decode.

Run: make bench-peers, then python -m bench.one_stream [-m MODEL] [--rounds N]

Both have the same model, threads, context and prompt length and run in turn, peer first; the ratio of a round compares
neighbours in time. The server is a process of its own, as for any user. The stream's rate counts from its first to its
last token: (n - 1) / (t_last - t_first).
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from llamaserve.config import usable_cores
from llamaserve.models import resolve

PEER = Path(__file__).resolve().parents[1] / "build" / "peers" / "bin" / "llama-batched-bench"
N_PROMPT = 20
PROMPT = list(range(100, 100 + N_PROMPT))  # any token ids do
N_GENERATED = 256
N_CTX = 2048


def peer_tokens_per_second(model: Path, threads: int) -> float:
    """Rate of the peer's generation of one sequence. Raises RuntimeError when its table is not as expected."""
    command = [str(PEER), "-m", str(model), "-c", str(N_CTX), "-t", str(threads), "--kv-unified"]
    command += ["-npp", str(N_PROMPT), "-ntg", str(N_GENERATED), "-npl", "1"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    row = re.search(rf"^\|\s*{N_PROMPT} \|\s*{N_GENERATED} \|(.*)\|$", run.stdout + run.stderr, re.MULTILINE)
    if row is None:
        raise RuntimeError(f"no result row in the output of {PEER.name}")
    columns = [float(cell) for cell in row[1].split("|")]
    return columns[5]  # B, N_KV, T_PP, S_PP, T_TG, S_TG, T, S


def stream_tokens_per_second(url: str) -> float:
    """Rate of one streamed completion. Raises RuntimeError unless every token came."""
    body = {"prompt": PROMPT, "max_tokens": N_GENERATED, "ignore_eos": True, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    times: list[float] = []
    completion_tokens = 0
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event["choices"]:
                times.append(time.perf_counter())
            else:
                completion_tokens = event["usage"]["completion_tokens"]
    if completion_tokens != N_GENERATED:
        raise RuntimeError(f"asked for {N_GENERATED} tokens, got {completion_tokens}")
    return (N_GENERATED - 1) / (times[-1] - times[0])


@contextmanager
def server(model: Path, threads: int) -> Iterator[str]:
    """A server process of its own on a free port; its URL. Raises RuntimeError when it ends before it is ready."""
    command = [sys.executable, "-m", "llamaserve", "serve", "-m", str(model), "--port", "0", "-np", "1"]
    command += ["-c", str(N_CTX), "-t", str(threads)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield read_url(process)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def read_url(process: subprocess.Popen[str]) -> str:
    """The URL the server prints when it is ready."""
    for line in process.stdout or ():
        found = re.search(r" at (http://\S+)$", line.strip())
        if found is not None:
            return found[1]
    raise RuntimeError(f"the server ended with {process.wait()} before it was ready")


def main() -> None:
    """Print a row a round, and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("-t", "--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if not PEER.exists():
        sys.exit(f"{PEER.name} is missing: run 'make bench-peers'")
    model = resolve(arguments.model)
    ratios = []
    with server(model, arguments.threads) as url:
        stream_tokens_per_second(url)  # warm-up
        for round_number in range(1, arguments.rounds + 1):
            peer = peer_tokens_per_second(model, arguments.threads)
            ours = stream_tokens_per_second(url)
            ratios.append(ours / peer)
            print(
                f"round {round_number}: llama-batched-bench {peer:6.1f} tok/s, one stream {ours:6.1f} tok/s, "
                f"ratio {ours / peer:.3f}",
                flush=True,
            )
    print(f"median ratio {statistics.median(ratios):.3f} (min {min(ratios):.3f}, max {max(ratios):.3f})")


if __name__ == "__main__":
    main()
