"""aiperf: load on a server, and what it measures of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.clients.checking import MODEL, main, tokenizer_folder, work_folder

N_REQUESTS = 20
N_OUTPUT_TOKENS = 16


def profile(url: str, name: str, *options: str) -> dict[str, dict[str, object]]:
    """Run aiperf's command; the metrics it exports."""
    output = work_folder() / name
    command = [str(Path(sys.executable).with_name("aiperf")), "profile", "--model", MODEL, "--url", url]
    command += ["--tokenizer", str(tokenizer_folder()), "--artifact-dir", str(output), "--ui", "none"]
    command += ["--no-gpu-telemetry", "--workers-max", "1", "--random-seed", "1"]
    command += ["--request-count", str(N_REQUESTS), "--concurrency", "4", "--isl", "48", "--osl", str(N_OUTPUT_TOKENS)]
    command += ["--extra-inputs", "ignore_eos:true", *options]
    # Offline it looks tokenizers up in a cache only, even if it is given a folder.
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((output / "profile_export_aiperf.json").read_text(encoding="utf-8"))


def require_all_answered(metrics: dict[str, dict[str, object]]) -> None:
    """No request failed, and each had as many tokens as it asked for, as the server counts them."""
    assert metrics["request_count"]["avg"] == N_REQUESTS
    assert "error_request_count" not in metrics or metrics["error_request_count"]["avg"] == 0
    assert metrics["usage_completion_tokens"]["min"] == metrics["usage_completion_tokens"]["max"] == N_OUTPUT_TOKENS


def check_streamed_chats(url: str) -> None:
    metrics = profile(url, "chat", "--endpoint-type", "chat", "--streaming")
    require_all_answered(metrics)
    assert metrics["time_to_first_token"]["avg"] > 0
    assert metrics["inter_token_latency"]["avg"] > 0


def check_streamed_completions(url: str) -> None:
    require_all_answered(profile(url, "completions", "--endpoint-type", "completions", "--streaming"))


def check_chats_that_are_not_streamed(url: str) -> None:
    require_all_answered(profile(url, "whole", "--endpoint-type", "chat"))


if __name__ == "__main__":
    main("aiperf")
