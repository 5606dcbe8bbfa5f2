"""What the parameters of a request do to the tokens drawn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import SequenceSpec
from llamaserve.errors import BadSampler, BadToken
from llamaserve.request import SamplingParams
from tests.native.conftest import LoadEngine
from tests.native.greedy import GREEDY, generate
from tests.native.tiny_models import EOS

PROMPT = [1, 50, 60, 70]


@pytest.fixture
def engine(load: LoadEngine, dense_model: Path) -> NativeEngine:
    return load(dense_model)


def test_the_same_seed_draws_the_same_tokens(engine: NativeEngine) -> None:
    """S39."""
    texts = [generate(engine, PROMPT, 12, SamplingParams(temperature=1.5, seed=seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_without_a_seed_every_request_draws_its_own(engine: NativeEngine) -> None:
    texts = {tuple(generate(engine, PROMPT, 16, SamplingParams(temperature=2.0, top_k=0))) for _ in range(4)}
    assert len(texts) > 1


def test_temperature_zero_takes_the_most_likely_token(engine: NativeEngine) -> None:
    """Whatever the other parameters are."""
    expected = generate(engine, PROMPT, 8)
    for seed in (1, 2):
        sampling = SamplingParams(temperature=0.0, seed=seed, top_k=7, top_p=0.3, min_p=0.2, ignore_eos=True)
        assert generate(engine, PROMPT, 8, sampling) == expected


def test_top_k_one_is_greedy(engine: NativeEngine) -> None:
    sampling = SamplingParams(temperature=1.0, top_k=1, ignore_eos=True)
    assert generate(engine, PROMPT, 8, sampling) == generate(engine, PROMPT, 8)


def test_a_bias_forces_a_token_and_minus_infinity_forbids_one(engine: NativeEngine) -> None:
    assert generate(engine, PROMPT, 3, SamplingParams(temperature=0.0, logit_bias={99: 100.0})) == [99, 99, 99]
    likely = generate(engine, PROMPT, 1)[0]
    forbidden = SamplingParams(temperature=0.0, ignore_eos=True, logit_bias={likely: -math.inf})
    assert likely not in generate(engine, PROMPT, 8, forbidden)


@pytest.mark.parametrize("temperature", [1e-46, 1e-44, 1e-39, 1e-30, 9e-6])
def test_a_temperature_next_to_zero_is_greedy(engine: NativeEngine, temperature: float) -> None:
    """Dividing by it overflows."""
    sampling = SamplingParams(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)
    assert generate(engine, PROMPT, 8, sampling) == generate(engine, PROMPT, 8)


def test_a_ban_on_every_token_is_refused(engine: NativeEngine) -> None:
    """There would be nothing to draw; forbidden tokens came out of it."""
    ban = dict.fromkeys(range(engine.info.n_vocab), -math.inf)
    with pytest.raises(BadSampler, match="a ban on all 259 tokens"):
        engine.open(SequenceSpec(0, SamplingParams(logit_bias=ban)))
    del ban[EOS]
    with pytest.raises(BadSampler, match="a ban on all 259 tokens"):
        engine.open(SequenceSpec(0, SamplingParams(logit_bias=ban, ignore_eos=True)))
    assert generate(engine, PROMPT, 2, SamplingParams(logit_bias=ban)) == [EOS, EOS]


def test_ignore_eos_never_ends(engine: NativeEngine) -> None:
    """Even when the model wants nothing else."""
    wants_end = {EOS: 100.0}
    assert generate(engine, PROMPT, 1, SamplingParams(temperature=0.0, logit_bias=wants_end)) == [EOS]
    endless = SamplingParams(temperature=0.0, logit_bias=wants_end, ignore_eos=True)
    assert EOS not in generate(engine, PROMPT, 8, endless)


def test_penalties_see_the_prompt_and_the_answer(engine: NativeEngine) -> None:
    """L16's half that holds without lookahead: token n counts before n+1 is drawn."""
    plain = generate(engine, PROMPT, 24)
    assert len(set(plain)) < len(plain), "the premise: this model repeats itself"
    strict = SamplingParams(temperature=0.0, ignore_eos=True, presence_penalty=2.0, repeat_penalty=100.0)
    penalised = generate(engine, PROMPT, 24, strict)
    assert len(set(penalised)) > len(set(plain))

    likely = plain[0]
    assert generate(engine, [*PROMPT[:-1], likely, PROMPT[-1]], 1, strict) != [likely]


def test_one_repeat_penalty_changes_nothing(engine: NativeEngine) -> None:
    off = SamplingParams(temperature=0.0, ignore_eos=True, repeat_penalty=1.0, repeat_last_n=64)
    assert generate(engine, PROMPT, 12, off) == generate(engine, PROMPT, 12)


@pytest.mark.parametrize("token", [-1, 259, 2**31, 2**40])
def test_a_bias_outside_the_vocabulary_is_refused(engine: NativeEngine, token: int) -> None:
    """K26."""
    with pytest.raises(BadToken):
        engine.open(SequenceSpec(0, SamplingParams(logit_bias={token: 1.0})))
    assert generate(engine, PROMPT, 1, GREEDY)
