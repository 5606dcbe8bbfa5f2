"""In the parity profile a request's tokens do not depend on what runs beside it (SmolLM2, D6, E18–E20, F1)."""

from __future__ import annotations

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


def collect_tokens(service: Service, requests: list[GenerationRequest]) -> list[list[int]]:
    """Run requests at the same time; the tokens of each."""
    streams = [service.stream_blocking(request) for request in requests]
    tokens: list[list[int]] = [[] for _ in requests]
    firsts = [next(stream) for stream in streams]  # every request is submitted before any is read on
    for got, first, stream in zip(tokens, firsts, streams, strict=True):
        for event in (first, *stream):
            if isinstance(event, TextDelta):
                got.extend(event.tokens)
            else:
                assert isinstance(event, Finished), event
    return tokens


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
        together = collect_tokens(service, requests)
        one_by_one = [collect_tokens(service, [request])[0] for request in requests]
    finally:
        service.close()
    assert together == plain
    assert one_by_one == plain
