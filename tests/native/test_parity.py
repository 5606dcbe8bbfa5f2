"""In the parity profile a request's tokens do not depend on what runs beside it (SmolLM2, D6, E18–E20, F1)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llamaserve.config import EngineConfig, Profile, SchedulerConfig
from llamaserve.engine.native import NativeEngine
from llamaserve.request import Finished, GenerationRequest, SamplingParams, TextDelta
from llamaserve.service import Service
from tests.native.greedy import generate

TEXTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "1, 2, 3, 4,",
    "def fibonacci(n):",
    "Dear Sir or Madam, " * 12,
    "A",
    "The three states of matter are solid,",
    "Q: Why is the sky blue?\nA:",
)
LENGTHS = (24, 40, 16, 32, 20, 28, 36, 12)


@pytest.fixture(scope="module")
def config(default_model: Path) -> EngineConfig:
    return EngineConfig(default_model, n_ctx=4096, n_slots=8, n_threads=1, profile=Profile.PARITY)


def tokens_of(service: Service, request: GenerationRequest) -> list[int]:
    """The tokens of a request, run to its end."""
    tokens: list[int] = []
    for event in service.stream_blocking(request):
        if isinstance(event, TextDelta):
            tokens.extend(event.tokens)
        else:
            assert isinstance(event, Finished), event
    return tokens


def run_together(service: Service, requests: list[GenerationRequest]) -> tuple[list[list[int]], int]:
    """The tokens of each of several requests, and how many slots were active at the same time."""
    peak = 0
    with ThreadPoolExecutor(len(requests)) as pool:
        running = [pool.submit(tokens_of, service, request) for request in requests]
        while not all(future.done() for future in running):
            peak = max(peak, service.stats().active_slots)
            time.sleep(0.005)
        return [future.result() for future in running], peak


def test_eight_requests_at_once_get_what_each_gets_alone(config: EngineConfig) -> None:
    """Through the scheduler together, through the scheduler alone, and in a plain native loop: the same tokens."""
    engine = NativeEngine.load(config)
    prompts = [tuple(engine.vocab.tokenize(text, add_special=True, parse_special=True)) for text in TEXTS]
    plain = [generate(engine, prompt, length) for prompt, length in zip(prompts, LENGTHS, strict=True)]

    service = Service(engine, engine.chat_template, SchedulerConfig(mixed_step=False), "smollm2")
    greedy = SamplingParams(temperature=0.0, ignore_eos=True)
    requests = [
        GenerationRequest(f"request-{index}", prompt, max_tokens=length, sampling=greedy)
        for index, (prompt, length) in enumerate(zip(prompts, LENGTHS, strict=True))
    ]
    try:
        together, peak = run_together(service, requests)
        one_by_one = [tokens_of(service, request) for request in requests]
    finally:
        service.close()
    assert peak == len(requests), "the premise: all ran at the same time"
    assert together == plain
    assert one_by_one == plain
