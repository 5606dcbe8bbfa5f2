"""Requests that may use no cache but their own: a prompt of several choices is computed once, and nothing is left."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserve.config import CacheConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.request import GenerationRequest
from llamaserve.service import Service
from tests.unit.scheduler.harness import Harness, alone

PROMPT = bytes(range(1, 201))
GROUP = "a secret"


def choices(harness: Harness, n: int, *, max_tokens: int = 8, prompt: bytes = PROMPT) -> list[str]:
    """Submit the choices of one prompt."""
    return [harness.submit(prompt, max_tokens=max_tokens, prompt_group=GROUP) for _ in range(n)]


def computed(harness: Harness) -> int:
    """Prompt tokens computed so far."""
    return harness.scheduler.stats().prompt_tokens


def assert_nothing_is_left(harness: Harness) -> None:
    gauges = harness.scheduler.stats().prefix_gauges
    assert (harness.engine.used_cells(), gauges.parked_sequences, gauges.ram_entries) == (0, 0, 0)


@pytest.mark.parametrize("n", [2, 4, 11], ids=["some slots", "all slots", "more than slots"])
def test_the_prompt_of_a_group_is_computed_once_and_nothing_is_left(n: int) -> None:
    """Those beyond the slots begin when all before them have ended in one tick: they find the prompt all the same."""
    harness = Harness(config=SchedulerConfig(prefill_chunk=64))
    ids = choices(harness, n)
    harness.run()
    assert [harness.text(name) for name in ids] == [alone(PROMPT)[0]] * n
    assert computed(harness) == len(PROMPT) + n - 1  # each computes the last token, whose logits draw its first
    assert_nothing_is_left(harness)


def test_nobody_else_finds_what_a_group_computes() -> None:
    harness = Harness()
    choices(harness, 2, max_tokens=50)
    harness.tick(5)
    for options in ({"cache_prompt": True}, {"prompt_group": "another secret"}, {}):
        other = harness.submit(PROMPT, **options)  # type: ignore[arg-type]  # each is what submit takes
        harness.tick(20)
        assert harness.finished(other).cached_tokens == 0, options


def test_a_group_finds_nothing_of_others() -> None:
    harness = Harness()
    harness.submit(PROMPT, cache_prompt=True)
    harness.run()
    ids = choices(harness, 2)
    harness.run()
    assert min(harness.finished(name).cached_tokens for name in ids) == 0


def test_a_cancelled_group_leaves_nothing() -> None:
    harness = Harness(config=SchedulerConfig(prefill_chunk=64))
    ids = choices(harness, 6, max_tokens=50)
    harness.tick(10)
    for name in ids:
        harness.scheduler.cancel(name)
    harness.run()
    assert_nothing_is_left(harness)


def test_cells_of_a_group_are_not_copied_when_they_give_way() -> None:
    """Neither when they are evicted nor when they make way for those that run."""
    for cache_cells in (0, 512):
        harness = Harness(FakeEngine(n_slots=2, n_ctx=260), cache=CacheConfig(cache_ram=8, cache_cells=cache_cells))
        choices(harness, 5, max_tokens=3)
        harness.submit(b"x" * 150, max_tokens=40, cache_prompt=True)
        for _ in range(400):
            harness.tick()
            holders = harness.scheduler.stats().prefix_gauges
            assert holders.ram_entries == 0
        assert all(harness.finished(name) for name in harness.events)


def test_memory_that_cannot_share_leaves_nothing_of_a_group_either() -> None:
    harness = Harness(FakeEngine(can_share=False))
    ids = choices(harness, 6)
    harness.run()
    assert [harness.finished(name).cached_tokens for name in ids] == [0] * 6
    assert_nothing_is_left(harness)


@pytest.mark.parametrize("is_group", [True, False])
def test_the_disk_keeps_nothing_of_a_group_that_a_stop_ends(tmp_path: Path, is_group: bool) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"a model")
    cache = CacheConfig(cache_ram=0, cache_disk=tmp_path / "cache")
    engine = FakeEngine(n_slots=2, n_ctx=100_000, step_s=0.001)
    service = Service(engine, None, SchedulerConfig(), "fake", cache=cache, model_path=model)
    for number in range(4):  # two of them wait
        group = GROUP if is_group else ""
        request = GenerationRequest(
            f"r{number}", tuple(PROMPT), 5 if number == 0 else 50_000, cache_prompt=not is_group, prompt_group=group
        )
        service._thread.submit(request)  # nobody listens
    while service.stats().generated_tokens < 100:
        time.sleep(0.001)
    service.close()
    n_files = sum(path.is_file() and path.stat().st_size > 1000 for path in (tmp_path / "cache").rglob("*"))
    assert (n_files == 0) == is_group


@settings(deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 60), st.booleans()), min_size=1, max_size=12),
    n_ctx=st.integers(100, 200),
    cancelled=st.lists(st.integers(0, 11), max_size=4),
)
def test_whatever_happens_a_group_leaves_nothing_and_draws_what_it_would_alone(
    sizes: list[tuple[int, int, bool]], n_ctx: int, cancelled: list[int]
) -> None:
    """A small cache preempts them, and they come back."""
    harness = Harness(FakeEngine(n_slots=3, n_ctx=n_ctx), SchedulerConfig(prefill_chunk=32))
    ids = [
        harness.submit(PROMPT[:n_prompt], max_tokens=n_tokens, prompt_group=GROUP if is_member else "")
        for n_prompt, n_tokens, is_member in sizes
    ]
    for number in cancelled:
        harness.tick(3)
        if number < len(ids):
            harness.scheduler.cancel(ids[number])
    harness.run()
    for number, (n_prompt, n_tokens, _) in enumerate(sizes):
        if number not in cancelled:
            text = alone(PROMPT[:n_prompt], n_tokens, n_ctx=n_ctx)[0]
            assert harness.text(ids[number]) == text[: len(harness.text(ids[number]))]
    assert_nothing_is_left(harness)
