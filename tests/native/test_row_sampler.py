"""Tokens drawn from the few candidates that can matter are those the chain draws from the whole vocabulary."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamaserve import _engine

N_DRAWS = 200
PLAIN: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "seed": 7,
    "repeat_penalty": 1.0,
    "repeat_last_n": 64,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "ignore_eos": False,
    "logit_bias": [],
}
CHAINS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy without an end": {"temperature": 0.0, "ignore_eos": True},
    "default": {},
    "one candidate": {"top_k": 1},
    "many candidates": {"top_k": 1000},
    "all candidates": {"top_k": 0},
    "penalties": {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": -0.3},
    "greedy with penalties": {"temperature": 0.0, "repeat_penalty": 3.0, "repeat_last_n": 20},
    "a long memory": {"repeat_penalty": 1.2, "repeat_last_n": 5000},
    "biases": {"logit_bias": [(5, 30.0), (6, -math.inf), (49_000, 12.0)], "ignore_eos": True},
    "greedy with biases": {"temperature": 0.0, "logit_bias": [(100, 5.0), (2, 100.0)], "ignore_eos": True},
}


@pytest.fixture(scope="module")
def model(default_model: Path) -> _engine.Model:
    """Its vocabulary of 49,152 tokens is what counts."""
    return _engine.Model.inspect(os.fsencode(default_model))


def sampler(model: _engine.Model, changes: dict[str, Any], *, whole_vocabulary: bool) -> _engine.RowSampler:
    return _engine.RowSampler(model, whole_vocabulary=whole_vocabulary, **(PLAIN | changes))


def rows(model: _engine.Model, *, steps: int | None = None) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Logits as a model gives them; rounded to ``steps`` a unit, so that many are equal."""
    random = np.random.default_rng(3)
    logits = random.normal(0.0, 4.0, (N_DRAWS, model.n_tokens))
    if steps is not None:
        logits = np.round(logits * steps) / steps
    return list(logits.astype(np.float32))


@pytest.mark.parametrize("name", CHAINS)
def test_a_row_draws_what_its_chain_draws_from_the_whole_vocabulary(model: _engine.Model, name: str) -> None:
    """E5, S63."""
    few = sampler(model, CHAINS[name], whole_vocabulary=False)
    whole = sampler(model, CHAINS[name], whole_vocabulary=True)
    for one in (few, whole):
        one.show_history(list(range(50, 90)))
    drawn = [(few.draw(logits), whole.draw(logits)) for logits in rows(model)]
    assert [pair[0] for pair in drawn] == [pair[1] for pair in drawn]
    assert len({pair[0] for pair in drawn}) > 1 or "biases" in name


@pytest.mark.parametrize("name", CHAINS)
def test_equal_logits_do_not_change_that(model: _engine.Model, name: str) -> None:
    """Of equal tokens llama.cpp takes the one its sort brings first."""
    few = sampler(model, CHAINS[name], whole_vocabulary=False)
    whole = sampler(model, CHAINS[name], whole_vocabulary=True)
    for logits in rows(model, steps=2):
        assert few.draw(logits) == whole.draw(logits)


@pytest.mark.parametrize(
    "changes", [{}, {"repeat_penalty": 1.3}, {"temperature": 0.0}], ids=["plain", "penalties", "greedy"]
)
def test_a_tie_for_the_last_place_is_decided_as_by_the_chain(model: _engine.Model, changes: dict[str, Any]) -> None:
    """39 tokens are ahead of all others, and three are equal behind them."""
    changes = {"top_p": 1.0, "min_p": 0.0} | changes
    few = sampler(model, changes, whole_vocabulary=False)
    whole = sampler(model, changes, whole_vocabulary=True)
    random = np.random.default_rng(5)
    for _ in range(N_DRAWS):
        logits = np.full(model.n_tokens, -20.0, dtype=np.float32)
        ids = random.choice(model.n_tokens, 42, replace=False)
        logits[ids[:39]] = np.linspace(2.0, 3.0, 39, dtype=np.float32)
        logits[ids[39:]] = 1.9
        assert few.draw(logits) == whole.draw(logits)


def test_a_ban_wins_over_a_bias_of_the_same_token(model: _engine.Model) -> None:
    """``ignore_eos`` beside a bias that would have brought the end."""
    eos = next(token for token in range(model.n_tokens) if model.is_eog(token))
    for whole_vocabulary in (False, True):
        one = sampler(
            model,
            {"temperature": 0.0, "logit_bias": [(eos, 1000.0)], "ignore_eos": True},
            whole_vocabulary=whole_vocabulary,
        )
        assert one.draw(rows(model)[0]) != eos


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_numbers_do_not_end_the_process(model: _engine.Model, value: float) -> None:
    """Whatever is drawn is a token of the vocabulary."""
    for changes in CHAINS.values():
        logits = np.full(model.n_tokens, value, dtype=np.float32)
        for whole_vocabulary in (False, True):
            one = sampler(model, changes, whole_vocabulary=whole_vocabulary)
            try:
                token = one.draw(logits)
            except RuntimeError:
                continue
            assert 0 <= token < model.n_tokens


def test_a_buffer_of_another_size_or_type_is_refused(model: _engine.Model) -> None:
    """It would be read past its end."""
    one = sampler(model, {}, whole_vocabulary=False)
    for logits in (np.zeros(5, np.float32), np.zeros(model.n_tokens), np.zeros((2, model.n_tokens), np.float32)):
        with pytest.raises(ValueError, match="floats of 32 bits"):
            one.draw(logits)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("n_allowed", [49_000, 3_000, 20])
def test_a_mask_leaves_the_chain_only_what_it_allows(model: _engine.Model, name: str, n_allowed: int) -> None:
    """E5: as the chain over the whole vocabulary would draw if all other tokens had no probability."""
    random = np.random.default_rng(5)
    few = sampler(model, CHAINS[name], whole_vocabulary=False)
    whole = sampler(model, CHAINS[name], whole_vocabulary=True)
    for logits in rows(model)[:50]:
        allowed = np.zeros((model.n_tokens + 31) // 32 * 32, dtype=bool)
        allowed[random.choice(model.n_tokens, n_allowed, replace=False)] = True
        allowed[[100, 101]] = True  # some that no chain here forbids
        mask = np.packbits(allowed, bitorder="little").tobytes()
        barred = np.where(allowed[: model.n_tokens], logits, np.float32(-np.inf))
        token = few.draw(logits, mask)
        assert allowed[token]
        assert token == whole.draw(logits, mask)
        if name.startswith("greedy") and "penalties" not in name and "biases" not in name:
            ends = [2, 0, 4] if "without an end" in name else []
            barred[ends] = -np.inf
            assert token == int(barred.argmax())


def test_a_mask_that_leaves_only_forbidden_tokens_fails(model: _engine.Model) -> None:
    """No token is drawn that the request forbids."""
    one = sampler(model, {"logit_bias": [(100, -math.inf)]}, whole_vocabulary=False)
    mask = bytearray(model.n_tokens // 8)
    mask[100 // 8] |= 1 << 100 % 8
    with pytest.raises(RuntimeError, match="forbidden by the request"):
        one.draw(rows(model)[0], bytes(mask))
