"""Random steps over the real engine, held against a model of the seam: the same rows, cells, errors and tokens.

A few seconds each time; LLAMASERVE_TEST_MINUTES=n goes on with new seeds for n minutes.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Sequence
from random import SystemRandom

import pytest

from llamaserve.config import FlashAttention, Profile
from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import MemoryKind, PromptPiece, SequenceSpec, StepPlan
from llamaserve.request import SamplingParams
from tests.native.conftest import LoadEngine
from tests.native.greedy import continue_alone
from tests.native.memory_driver import N_PARKED, MemoryDriver
from tests.native.plan_driver import Case, PlanDriver
from tests.native.step_model import Text

KINDS = ("dense_model", "sliding_window_model", "recurrent_model", "hybrid_model")
N_SLOTS = 4
N_BATCH = 64
N_TOKENS = 16
N_RUNS = 200
N_MEMORY_RUNS = 150
N_TESTS = 10
"""Of this file, that share the minutes."""
N_ACTIONS = 100
PROMPTS = ((1, 50, 60, 70), (1, *range(20, 43)), tuple((7 * i % 250) + 3 for i in range(300)))  # the last: many windows
SAMPLINGS = (
    SamplingParams(temperature=0.0, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=7, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=11, repeat_penalty=1.4, ignore_eos=True),
)
MINUTES = float(os.environ.get("LLAMASERVE_TEST_MINUTES", "0"))


def text_alone(engine: NativeEngine, prompt: Sequence[int], sampling: SamplingParams) -> Text:
    """A prompt in as few pieces as a step allows, and its tokens with nothing beside it."""
    engine.open(SequenceSpec(0, sampling, prompt))
    for start in range(0, len(prompt), N_BATCH):
        end = start + N_BATCH
        piece = PromptPiece(0, prompt[start:end], is_last=end >= len(prompt))
        (row,) = engine.step(StepPlan(pieces=[piece]))
    tokens = [row.token, *continue_alone(engine, 0, N_TOKENS - 1)]
    engine.close(0)
    return Text(tuple(prompt), tuple(tokens))


def cases_of(engine: NativeEngine, samplings: Sequence[SamplingParams]) -> list[Case]:
    return [(text_alone(engine, prompt, sampling), sampling) for prompt in PROMPTS for sampling in samplings]


def run(driver_of: type[PlanDriver], engine: NativeEngine, cases: Sequence[Case], n_runs: int) -> Counter[str]:
    """As many runs, and as long, as asked for; what came of them."""
    seen: Counter[str] = Counter()
    first_seed = SystemRandom().randrange(2**32) if MINUTES else 0
    ends_at = time.monotonic() + MINUTES * 60 / N_TESTS
    for seed in itertools.count(first_seed):
        driver = driver_of(engine, cases, seed, seen)
        try:
            driver.run(N_ACTIONS)
        except BaseException:
            print(f"seed {seed}:", *driver.log, sep="\n")
            raise
        if seed >= first_seed + n_runs - 1 and time.monotonic() >= ends_at:
            return seen
    raise AssertionError("seeds never end")


def expected_to_happen(engine: NativeEngine) -> set[str]:
    names = {f"RowError.{name}" for name in ("CONTEXT_FULL", "ABORTED", "DECODE")}
    names |= {"None", "no token", "resumed with cells", "resumed without cells", "refused"}
    return names | ({"ran ahead", "failed ahead", "taken back"} if engine.can_rewind else set())


WITH_MEMORY = {
    "kept",
    "opened with a prefix",
    "trimmed",
    "saved",
    "restored",
    "purged",
    "resumed with cells",
    "resumed without cells",
    "RowError.ABORTED",
}


def what_is_rare(seen: Counter[str], names: set[str]) -> set[str]:
    return {name for name in names if seen[name] < 10}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_asked_of_it_the_engine_does_what_the_seam_says(
    load: LoadEngine, kind: str, request: pytest.FixtureRequest
) -> None:
    """E2-E4, E9, E10, E12, E13, E15, E18-E20, L1, L6-L8, L20, L22, L23, S10, S56, K6, K111, K113, K115, K116."""
    path = request.getfixturevalue(kind)
    options = {"profile": Profile.PARITY, "n_batch": N_BATCH, "n_ubatch": N_BATCH}
    cases = cases_of(load(path, n_ctx=512, n_slots=1, **options), SAMPLINGS)
    engine = load(path, n_ctx=512 * N_SLOTS, n_slots=N_SLOTS, **options)
    seen = run(PlanDriver, engine, cases, N_RUNS)
    assert what_is_rare(seen, expected_to_happen(engine)) == set(), "the premise: all of it happened"


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_done_to_what_ids_hold_texts_are_as_after_cold_prompts(
    load: LoadEngine, kind: str, request: pytest.FixtureRequest
) -> None:
    """S11, S25, S31, S33, K4, K41, K147, in memory that shares nothing."""
    path = request.getfixturevalue(kind)
    options = {"profile": Profile.PARITY, "n_batch": N_BATCH, "n_ubatch": N_BATCH}
    cases = cases_of(load(path, n_ctx=512, n_slots=1, **options), SAMPLINGS)
    engine = load(path, n_ctx=512 * N_SLOTS, n_slots=N_SLOTS, **options)
    seen = run(MemoryDriver, engine, cases, N_MEMORY_RUNS)
    names = WITH_MEMORY.copy()
    names |= set() if engine.info.memory is MemoryKind.KV else {"went back"}
    assert what_is_rare(seen, names) == set(), "the premise: all of it happened"


@pytest.mark.parametrize("kind", ["dense_model", "sliding_window_model"])
def test_whatever_ids_share_texts_are_as_after_cold_prompts(
    load: LoadEngine, kind: str, request: pytest.FixtureRequest
) -> None:
    """S11, S19, S22, S33, S34, K3, K4, L25, in one pool. Without flash attention and without chance: the order of cells
    moves logits by rounding errors, which a draw may fall on."""
    path = request.getfixturevalue(kind)
    options = {"flash_attention": FlashAttention.OFF, "swa_full": True, "n_batch": N_BATCH, "n_ubatch": N_BATCH}
    samplings = (SAMPLINGS[0], SamplingParams(temperature=0.0, repeat_penalty=1.4, ignore_eos=True))
    cases = cases_of(load(path, n_ctx=512, n_slots=1, **options), samplings)
    engine = load(path, n_ctx=512 * (N_SLOTS + N_PARKED), n_slots=N_SLOTS, **options)
    assert engine.can_share
    seen = run(MemoryDriver, engine, cases, N_MEMORY_RUNS)
    names = WITH_MEMORY | {"adopted", "adopted in a prompt", "ran ahead"}
    assert what_is_rare(seen, names) == set(), "the premise: all of it happened"
