"""lm-eval: evaluations through local-completions. Ranking answers takes the log probabilities of the prompt itself."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import urllib.request
from pathlib import Path

from transformers import AutoTokenizer

from tests.clients.checking import MODEL, N_CTX, main, tokenizer_folder, work_folder

TASKS = Path(__file__).resolve().parent
N_QUESTIONS = 6
N_CITIES = 4
ROUNDING = 0.1
"""How far the log-likelihood of a text may be from itself when it is computed beside others: kernels for several rows
add up in another order, and the weights have 4 bits."""


def evaluate(
    url: str, task: str, name: str, *, batch_size: int = 1, **options: object
) -> tuple[dict[str, float], list[dict[str, object]]]:
    """Run lm-eval's command; the task's metrics, and its samples in their order."""
    output = work_folder() / name
    model = {
        "model": MODEL,
        "base_url": f"{url}/v1/completions",
        "tokenizer": tokenizer_folder(),
        "tokenizer_backend": "huggingface",
        "max_length": N_CTX,
        "max_retries": 1,
        **options,
    }
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--tasks", task]
    command += ["--model_args", ",".join(f"{key}={value}" for key, value in model.items())]
    command += ["--batch_size", str(batch_size), "--include_path", str(TASKS)]
    command += ["--output_path", str(output), "--log_samples"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (results,), (samples,) = output.rglob("results_*.json"), output.rglob(f"samples_{task}_*.jsonl")
    lines = samples.read_text(encoding="utf-8").splitlines()
    rows = sorted(map(json.loads, lines), key=lambda row: row["doc_id"])
    return json.loads(results.read_text(encoding="utf-8"))["results"][task], rows


def loglikelihoods(samples: list[dict[str, object]]) -> list[float]:
    """Of all answers to all questions."""
    return [float(answer[0]) for sample in samples for answer in sample["filtered_resps"]]


def check_the_tokenizer_is_that_of_the_server(url: str) -> None:
    """Else the log probabilities would be of other texts."""
    text = "The capital of Ísland (1944) is <|im_end|>\n  Reykjavík."
    request = urllib.request.Request(
        f"{url}/tokenize", json.dumps({"content": text}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        tokens = json.load(response)["tokens"]
    assert AutoTokenizer.from_pretrained(tokenizer_folder())(text).input_ids == tokens


def check_answers_are_ranked_by_their_loglikelihood(url: str) -> None:
    metrics, samples = evaluate(url, "llamaserve_capitals", "one")
    assert 0 <= metrics["acc,none"] <= 1
    alone = loglikelihoods(samples)
    assert len(alone) == N_QUESTIONS * N_CITIES
    assert all(math.isfinite(value) and value < 0 for value in alone)
    assert len(set(alone)) == len(alone)
    for options in ({"batch_size": 4}, {"num_concurrent": 4}, {"tokenized_requests": False}):
        _, samples = evaluate(url, "llamaserve_capitals", "-".join(options), **options)
        beside_others = loglikelihoods(samples)
        assert all(abs(one - other) < ROUNDING for one, other in zip(alone, beside_others, strict=True)), options


def check_texts_are_continued(url: str) -> None:
    for name, options in (("texts", {"num_concurrent": 4}), ("batches", {"batch_size": 4})):
        metrics, samples = evaluate(url, "llamaserve_continuing", name, **options)
        assert 0 <= metrics["exact_match,none"] <= 1
        answers = [sample["filtered_resps"][0] for sample in samples]
        assert len(answers) == N_QUESTIONS
        assert all(isinstance(answer, str) and "\n" not in answer and "." not in answer for answer in answers)


if __name__ == "__main__":
    main("lm-eval")
