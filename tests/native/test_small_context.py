"""More text than the KV cache has cells for: requests give their places up, and nobody's text changes.

Cells that were freed and filled again stand in another order, and llama.cpp adds up in the order of cells; tokens that
are computed again go through other kernels, several at once. Without flash attention both move the logits of this model
by rounding errors only: far less than what tells two likely tokens apart, though not always than what a draw falls on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from llamaserve.cache.build import make_prefix_memory
from llamaserve.config import CacheConfig, FlashAttention, SchedulerConfig
from llamaserve.engine.native import NativeEngine
from llamaserve.errors import ContextFull
from llamaserve.request import Event, Failed, Finished, FinishReason, GenerationRequest, SamplingParams, TextDelta
from llamaserve.scheduler.scheduler import Scheduler
from tests.native.conftest import LoadEngine

TEXTS = (
    "The capital of France is a city on a river, and its name is",
    "Once upon a time there was a small robot who lived in a garden with",
    "A recipe for bread needs flour, water, salt and a little",
    "The three largest planets of our solar system are",
    "In the year 1969 two people walked on the",
    "def fibonacci(n):",
)
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
SEEDED = SamplingParams(seed=6, ignore_eos=True)  # none of its draws falls between two tokens
N_TOKENS = 90


def request_of(
    engine: NativeEngine, index: int, sampling: SamplingParams, *, cache_prompt: bool = False
) -> GenerationRequest:
    prompt = tuple(engine.vocab.tokenize(TEXTS[index], add_special=True, parse_special=False))[:40]
    return GenerationRequest(f"r{index}", prompt, N_TOKENS, (), sampling, cache_prompt=cache_prompt)


def answers(
    engine: NativeEngine, config: SchedulerConfig, requests: list[GenerationRequest]
) -> tuple[dict[str, list[int]], dict[str, Event], Scheduler]:
    """Tokens and ends of requests that come at once."""
    events: list[tuple[str, Event]] = []
    scheduler = Scheduler(engine, config, events.extend, make_prefix_memory(engine, CacheConfig(cache_ram=0)))
    for request in requests:
        scheduler.submit(request)
    while scheduler.tick():
        pass
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    ends: dict[str, Event] = {}
    for request_id, event in events:
        if isinstance(event, TextDelta):
            tokens[request_id] += event.tokens
        else:
            assert request_id not in ends
            ends[request_id] = event
    return tokens, ends, scheduler


@pytest.mark.parametrize(("preempt_ram", "other"), [(1024, SEEDED), (0, GREEDY)], ids=["cells kept", "computed again"])
@pytest.mark.parametrize("lookahead", [True, False], ids=["lookahead", "no lookahead"])
def test_requests_that_cannot_all_fit_give_the_text_they_give_alone(
    load: LoadEngine, dense_model: Path, preempt_ram: int, other: SamplingParams, lookahead: bool
) -> None:
    """S10–S13, K114: 256 cells, six texts of up to 130 tokens, greedy, and seeded where cells are kept."""
    engine = load(dense_model, n_ctx=256, n_batch=48, flash_attention=FlashAttention.OFF)
    config = SchedulerConfig(prefill_chunk=32, preempt_ram=preempt_ram, lookahead=lookahead)
    requests = [request_of(engine, index, other if index % 2 else GREEDY) for index in range(len(TEXTS))]
    alone = {}
    for request in requests:
        tokens, _, _ = answers(engine, config, [request])
        alone.update(tokens)

    tokens, ends, scheduler = answers(engine, config, requests)
    assert tokens == alone
    assert all(isinstance(end, Finished) and end.reason is FinishReason.LENGTH for end in ends.values()), ends
    stats = scheduler.stats()
    assert stats.preemptions > 0
    assert (stats.recomputed_tokens > 0) == (preempt_ram == 0)
    assert (stats.lookahead_steps > 0) == lookahead
    assert (stats.used_cells, stats.preempted_requests, stats.idle_slots) == (0, 0, 4)


def test_a_request_too_large_for_the_cache_ends_alone(load: LoadEngine, dense_model: Path) -> None:
    """S12, S13: it goes on to the last cell there is, and the short one beside it is not disturbed."""
    engine = load(dense_model, n_ctx=256, n_batch=48, flash_attention=FlashAttention.OFF)
    config = SchedulerConfig(prefill_chunk=32)
    short = request_of(engine, 0, GREEDY)
    long = GenerationRequest("long", (100,) * 150, 1000, (), GREEDY, cache_prompt=False)
    alone, _, _ = answers(engine, config, [short])
    tokens, ends, _ = answers(engine, config, [long, short])
    assert tokens["r0"] == alone["r0"]
    assert isinstance(ends["r0"], Finished)
    end = ends["long"]
    assert isinstance(end, Finished) or (isinstance(end, Failed) and isinstance(end.error, ContextFull))
    assert len(tokens["long"]) + 150 >= 255
