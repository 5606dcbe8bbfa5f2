"""Decode speed of one stream over HTTP beside llama-batched-bench, which does nothing but decode.

Run: make bench-peers, then python -m bench.one_stream [-m MODEL] [--rounds N]

Both have the same model, threads, context and prompt length and run in turn, peer first; the ratio of a round compares
neighbours in time. The stream's rate counts from its first to its last token: (n - 1) / (t_last - t_first).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from llamaserve.config import EngineConfig, HttpConfig, SchedulerConfig, usable_cores
from llamaserve.load_service import load_service
from llamaserve.models import resolve
from llamaserve.server.run import run_server
from llamaserve.service import Service

PEER = Path(__file__).resolve().parents[1] / "build" / "peers" / "bin" / "llama-batched-bench"
N_PROMPT = 20
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


def stream_tokens_per_second(url: str, prompt: list[int]) -> float:
    """Rate of one streamed completion. Raises RuntimeError unless every token came."""
    body = {"prompt": prompt, "max_tokens": N_GENERATED, "ignore_eos": True, "temperature": 0, "stream": True}
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
def server(model: Path, threads: int) -> Iterator[tuple[str, list[int]]]:
    """A server on a free port; its URL and a prompt in its tokens."""
    ready = threading.Event()
    found: list[tuple[str, list[int]]] = []

    def load() -> Service:
        config = EngineConfig(model, n_ctx=N_CTX, n_slots=1, n_threads=threads)
        return load_service(config, SchedulerConfig(), model.stem)

    def on_ready(service: Service, url: str) -> None:
        tokens = service.vocab.tokenize("The sky is blue because " * 20, add_special=True, parse_special=False)
        found.append((url, tokens[:N_PROMPT]))
        ready.set()

    thread = threading.Thread(
        target=run_server, args=(load, HttpConfig(port=0)), kwargs={"on_ready": on_ready}, daemon=True
    )
    thread.start()
    if not ready.wait(60):
        raise RuntimeError("the server was not ready within 60 s")
    yield found[0]


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
    with server(model, arguments.threads) as (url, prompt):
        stream_tokens_per_second(url, prompt)  # warm-up
        for round_number in range(1, arguments.rounds + 1):
            peer = peer_tokens_per_second(model, arguments.threads)
            ours = stream_tokens_per_second(url, prompt)
            ratios.append(ours / peer)
            print(
                f"round {round_number}: llama-batched-bench {peer:6.1f} tok/s, one stream {ours:6.1f} tok/s, "
                f"ratio {ours / peer:.3f}",
                flush=True,
            )
    print(f"median ratio {statistics.median(ratios):.3f} (min {min(ratios):.3f}, max {max(ratios):.3f})")


if __name__ == "__main__":
    main()
