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

from llamaserve.config import Profile
from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import PromptPiece, SequenceSpec, StepPlan
from llamaserve.request import SamplingParams
from tests.native.conftest import LoadEngine
from tests.native.greedy import continue_alone
from tests.native.plan_driver import Case, PlanDriver
from tests.native.step_model import Text

KINDS = ("dense_model", "sliding_window_model", "recurrent_model", "hybrid_model")
N_SLOTS = 4
N_BATCH = 64
N_TOKENS = 16
N_RUNS = 200
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
    engine.open(SequenceSpec(0, sampling))
    for start in range(0, len(prompt), N_BATCH):
        end = start + N_BATCH
        piece = PromptPiece(0, prompt[start:end], is_last=end >= len(prompt))
        (row,) = engine.step(StepPlan(pieces=[piece]))
    tokens = [row.token, *continue_alone(engine, 0, N_TOKENS - 1)]
    engine.close(0)
    return Text(tuple(prompt), tuple(tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_asked_of_it_the_engine_does_what_the_seam_says(
    load: LoadEngine, kind: str, request: pytest.FixtureRequest
) -> None:
    """E2-E4, E9, E10, E12, E13, E15, E18-E20, L1, L6-L8, L20, L22, L23, S10, S56, K6, K111, K113, K115, K116."""
    path = request.getfixturevalue(kind)
    options = {"profile": Profile.PARITY, "n_batch": N_BATCH, "n_ubatch": N_BATCH}
    alone = load(path, n_ctx=512, n_slots=1, **options)
    cases: list[Case] = [
        (text_alone(alone, prompt, sampling), sampling) for prompt in PROMPTS for sampling in SAMPLINGS
    ]
    engine = load(path, n_ctx=512 * N_SLOTS, n_slots=N_SLOTS, **options)
    seen: Counter[str] = Counter()
    first_seed = SystemRandom().randrange(2**32) if MINUTES else 0
    ends_at = time.monotonic() + MINUTES * 60 / len(KINDS)
    for seed in itertools.count(first_seed):
        driver = PlanDriver(engine, cases, seed, seen)
        try:
            driver.run(N_ACTIONS)
        except BaseException:
            print(f"{kind}, seed {seed}:", *driver.log, sep="\n")
            raise
        if seed >= first_seed + N_RUNS - 1 and time.monotonic() >= ends_at:
            break
    errors = {f"RowError.{name}" for name in ("CONTEXT_FULL", "ABORTED", "DECODE")}
    expected = errors | {"None", "no token", "resumed with cells", "resumed without cells", "refused"}
    if engine.can_rewind:
        expected |= {"ran ahead", "failed ahead", "taken back"}
    assert {name for name in expected if seen[name] < 10} == set(), "the premise: all of it happened"
