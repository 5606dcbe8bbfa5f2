"""Tokens drawn from the few candidates that can matter are those the chain draws from the whole vocabulary."""

from __future__ import annotations

import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamaserve import _engine
from llamaserve.engine.native_sampling import sampler_spec
from llamaserve.errors import BadSampler, BadToken
from llamaserve.sampling import SamplingParams

N_DRAWS = 200
BAN = -math.inf
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
    "biases": {"logit_bias": {5: 30.0, 6: BAN, 49_000: 12.0}, "ignore_eos": True},
    "greedy with biases": {"temperature": 0.0, "logit_bias": {100: 5.0, 2: 100.0}, "ignore_eos": True},
    "many biases": {"logit_bias": {token: token % 7 - 3.0 for token in range(1, 49_000, 3)}},
    "many biases, all candidates": {
        "logit_bias": {token: token % 7 - 3.0 for token in range(1, 49_000, 3)},
        "top_k": 0,
    },
    "many bans": {"logit_bias": dict.fromkeys(range(0, 49_000, 9), BAN) | {8: 10.0}},
    "dynamic temperature": {"dynatemp_range": 0.5, "dynatemp_exponent": 2.0},
    "dynamic temperature from 0": {"temperature": 0.5, "dynatemp_range": 0.5, "top_k": 0},
    "typical": {"typical_p": 0.5},
    "typical alone": {"typical_p": 0.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "sigma": {"top_n_sigma": 0.2},
    "sigma behind top_k": {"top_n_sigma": 1.5, "samplers": ("top_k", "top_n_sigma", "temperature")},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "xtc always, many kept": {"xtc_probability": 1.0, "xtc_threshold": 0.01, "min_keep": 30},
    "greedy with xtc": {"temperature": 0.0, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    "many kept": {"min_keep": 10, "top_p": 0.3, "min_p": 0.9, "typical_p": 0.2},
    "dry": {"dry_multiplier": 20.0, "dry_allowed_length": 1},
    "dry without a break": {"dry_multiplier": 20.0, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
    "dry with breaks": {
        "dry_multiplier": 20.0,
        "dry_allowed_length": 1,
        "dry_sequence_breakers": ("q", " the", "\n\n1"),
    },
    "dry, far back": {"dry_multiplier": 9.0, "dry_base": 3.0, "dry_penalty_last_n": 5000, "repeat_penalty": 1.1},
    "greedy with dry": {"temperature": 0.0, "dry_multiplier": 20.0, "dry_allowed_length": 1},
    "adaptive": {"adaptive_target": 0.4, "adaptive_decay": 0.8, "samplers": ("top_k", "adaptive_p", "min_p")},
    "adaptive without a target": {"samplers": ("top_k", "adaptive_p")},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.3},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.3},
    "mirostat 2 and others": {"mirostat": 2, "repeat_penalty": 3.0, "top_k": 2, "temperature": 1.5},
    "no sampler": {"samplers": ()},
    "temperature first": {"samplers": ("temperature", "top_p", "top_k", "penalties"), "repeat_penalty": 1.5},
    "penalties behind top_k": {"samplers": ("top_k", "penalties", "temperature"), "repeat_penalty": 5.0},
    "greedy, penalties behind top_k": {
        "samplers": ("top_k", "penalties", "temperature"),
        "repeat_penalty": 100.0,
        "temperature": 0.0,
        "top_k": 3,
    },
    "greedy without a temperature": {"samplers": ("top_k",), "temperature": 0.0},
    "twice": {"samplers": ("top_k", "temperature", "top_k", "temperature")},
    "everything": {
        "dry_multiplier": 3.0,
        "repeat_penalty": 1.2,
        "typical_p": 0.9,
        "xtc_probability": 0.3,
        "xtc_threshold": 0.02,
        "dynatemp_range": 0.3,
        "logit_bias": {7: 10.0},
        "ignore_eos": True,
        "min_keep": 2,
    },
}


@pytest.fixture(scope="module")
def model(default_model: Path) -> _engine.Model:
    """Its vocabulary of 49,152 tokens is what counts."""
    return _engine.Model.inspect(os.fsencode(default_model))


def spec(changes: dict[str, Any]) -> _engine.SamplerSpec:
    return sampler_spec(SamplingParams(**({"seed": 7} | changes)))


def sampler(model: _engine.Model, changes: dict[str, Any], *, whole_vocabulary: bool) -> _engine.RowSampler:
    return _engine.RowSampler(model, spec(changes), whole_vocabulary=whole_vocabulary)


def a_history(model: _engine.Model) -> list[int]:
    """Tokens that say things twice, with breaks of every kind in between."""
    text = b"one two three: one two three four\n\n1 the end of the end, 'one two three' *one* two three one two"
    return model.tokenize(text, add_special=False, parse_special=False)


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
def test_a_row_draws_what_the_sampler_of_llama_cpp_draws(model: _engine.Model, name: str) -> None:
    """Every sampler, in every order, with the prompt's end behind it; few tokens in question, so they come again."""
    few = sampler(model, CHAINS[name], whole_vocabulary=False)
    reference = _engine.CommonSampler(model, spec(CHAINS[name]))
    history = a_history(model)
    for one in (few, reference):
        one.show_history(history[-SamplingParams(**CHAINS[name]).n_looked_back :])
    random = np.random.default_rng(11)
    for logits in rows(model):
        logits[history] += random.normal(12.0, 2.0, len(history)).astype(np.float32)
        assert few.draw(logits) == reference.draw(logits)


def test_every_sampler_changes_what_is_drawn(model: _engine.Model) -> None:
    """The premise of the test above: none of them agrees because it does nothing."""
    texts = {}
    history = a_history(model)
    for name in (
        "default",
        "typical",
        "sigma",
        "xtc",
        "dry",
        "dry with breaks",
        "adaptive",
        "mirostat 1",
        "mirostat 2",
    ):
        one = sampler(model, CHAINS[name], whole_vocabulary=False)
        one.show_history(history)
        drawn = []
        for logits in rows(model)[:50]:
            logits[history] += np.linspace(10.0, 14.0, len(history), dtype=np.float32)
            drawn.append(one.draw(logits))
        texts[name] = tuple(drawn)
    assert len(set(texts.values())) == len(texts)


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
            {"temperature": 0.0, "logit_bias": {eos: 100.0}, "ignore_eos": True},
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
        if name in ("greedy", "greedy without an end"):
            ends = [2, 0, 4] if "without an end" in name else []
            barred[ends] = -np.inf
            assert token == int(barred.argmax())


def test_a_mask_that_leaves_only_forbidden_tokens_fails(model: _engine.Model) -> None:
    """No token is drawn that the request forbids."""
    one = sampler(model, {"logit_bias": {100: -math.inf}}, whole_vocabulary=False)
    mask = bytearray(model.n_tokens // 8)
    mask[100 // 8] |= 1 << 100 % 8
    with pytest.raises(RuntimeError, match="the request forbids every one"):
        one.draw(rows(model)[0], bytes(mask))


@pytest.mark.parametrize("n_allowed", [None, 49_000, 5_000, 300])
@pytest.mark.parametrize("n_biases", [0, 40, 20_000])
def test_what_is_drawn_is_what_mask_biases_and_rules_leave_the_likeliest(
    model: _engine.Model, n_allowed: int | None, n_biases: int
) -> None:
    """Greedy, so that it can be computed here; with biases of barred tokens, and barred ones at both ends."""
    random = np.random.default_rng(8)
    n_vocab = model.n_tokens
    ends = [token for token in range(n_vocab) if model.is_eog(token)]
    biased = random.choice(n_vocab, n_biases, replace=False)
    biases = {int(token): float(bias) for token, bias in zip(biased, random.uniform(-30, 30, n_biases), strict=True)}
    biases |= dict.fromkeys(map(int, biased[: n_biases // 4]), BAN)
    bad = [0, n_vocab - 1, *map(int, random.choice(n_vocab, 100)), *map(int, biased[:10]), *map(int, biased[-10:])]
    changes = {
        "temperature": 0.0,
        "min_tokens": 3,
        "logit_bias": biases,
        "bad_words": tuple((token,) for token in dict.fromkeys(bad)),
    }
    for whole_vocabulary in (False, True):
        one = sampler(model, changes, whole_vocabulary=whole_vocabulary)
        for index, logits in enumerate(rows(model)[:30]):
            logits[ends] = 50.0
            left = logits.copy()
            for token, bias in biases.items():
                left[token] += np.float32(bias)
            left[bad] = -np.inf
            if index < 3:
                left[ends] = -np.inf
            mask = None
            if n_allowed is not None:
                allowed = np.zeros((n_vocab + 31) // 32 * 32, dtype=bool)
                allowed[random.choice(n_vocab, n_allowed, replace=False)] = True
                mask = np.packbits(allowed, bitorder="little").tobytes()
                left[~allowed[:n_vocab]] = -np.inf
            assert one.draw(logits, mask) == int(left.argmax())


def test_a_bias_for_nearly_every_token_costs_a_draw_no_second(model: _engine.Model) -> None:
    """llama.cpp's own sampler compares each of them with each candidate where one is left out: that were 10 s here."""
    biases = dict.fromkeys(range(5, 49000), 1.0)
    one = sampler(model, {"logit_bias": biases, "min_tokens": 100}, whole_vocabulary=False)
    logits = rows(model)[0]
    started = time.perf_counter()
    for _ in range(10):
        one.draw(logits)
    assert time.perf_counter() - started < 1.0


# Tokens that may not be drawn.


@pytest.mark.parametrize("name", CHAINS)
def test_allowed_tokens_are_those_that_no_bias_forbids(model: _engine.Model, name: str) -> None:
    allowed = tuple(range(100, 200))
    banned = {token: BAN for token in range(model.n_tokens) if token not in allowed}
    changes = {key: value for key, value in CHAINS[name].items() if key != "logit_bias"}
    if "typ" in name or "many kept" in name or "everything" in name or "mirostat" in name:
        pytest.skip("llama.cpp counts with tokens of no probability there, and the numbers become none")
    few = sampler(model, changes | {"allowed_token_ids": allowed}, whole_vocabulary=False)
    whole = sampler(model, changes | {"logit_bias": banned}, whole_vocabulary=True)
    drawn = [(few.draw(logits), whole.draw(logits)) for logits in rows(model)[:50]]
    assert all(one == other for one, other in drawn)
    assert {one for one, _ in drawn} <= set(allowed)


@pytest.mark.parametrize("name", CHAINS)
def test_no_token_ends_the_text_before_so_many_were_drawn(model: _engine.Model, name: str) -> None:
    """Neither one of the model's nor a stop token, however likely."""
    ends = [token for token in range(model.n_tokens) if model.is_eog(token)] + [123]
    given = {key: value for key, value in CHAINS[name].items() if key not in ("ignore_eos", "logit_bias")}
    for whole_vocabulary in (False, True):
        params = SamplingParams(**({"seed": 7} | given | {"min_tokens": 5}))
        one = _engine.RowSampler(model, sampler_spec(params, [123]), whole_vocabulary=whole_vocabulary)
        drawn = []
        for logits in rows(model)[:6]:
            logits[ends] = 60.0
            drawn.append(one.draw(logits))
        assert not set(drawn[:5]) & set(ends)
        assert drawn[5] in ends or "xtc" in name or "adaptive" in name


def test_a_bad_word_is_not_drawn(model: _engine.Model) -> None:
    """Its last token is forbidden where those before it were drawn, and nowhere else."""
    bad = ((10, 11, 12), (13,))
    for whole_vocabulary in (False, True):
        one = sampler(model, {"temperature": 0.0, "bad_words": bad}, whole_vocabulary=whole_vocabulary)
        drawn = []
        for wanted in (12, 10, 11, 12, 13, 11, 12):
            logits = np.zeros(model.n_tokens, np.float32)
            logits[wanted] = 9.0
            logits[20] = 5.0
            drawn.append(one.draw(logits))
        assert drawn == [12, 10, 11, 20, 20, 11, 12]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"allowed_token_ids": (5,), "logit_bias": {5: BAN}}, "allowed_token_ids"),
        ({"allowed_token_ids": (5, 6), "bad_words": ((5,), (7, 6))}, "bad_words"),
        ({"allowed_token_ids": (2,), "min_tokens": 1}, "min_tokens"),
    ],
)
def test_rules_that_leave_no_token_are_refused(model: _engine.Model, changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BadSampler, match=f"^{param} is ") as caught:
        sampler(model, changes, whole_vocabulary=False)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "changes", [{"allowed_token_ids": (49_152,)}, {"bad_words": ((1, -1),)}, {"bad_words": ((2**40,),)}]
)
def test_rules_about_tokens_outside_the_vocabulary_are_refused(model: _engine.Model, changes: dict[str, Any]) -> None:
    with pytest.raises(BadToken):
        sampler(model, changes, whole_vocabulary=False)


# Log probabilities.


def test_the_logarithm_of_a_probability_is_that_of_the_softmax(model: _engine.Model) -> None:
    for logits in rows(model)[:20]:
        exact = logits.astype(np.float64)
        exact -= exact.max() + np.log(np.sum(np.exp(exact - exact.max())))
        likeliest = np.argsort(-exact, kind="stable")[:20]
        for token in (0, int(likeliest[0]), int(likeliest[7]), model.n_tokens - 1):
            logprob, top = _engine.log_probs(logits, token, 20)
            assert logprob == pytest.approx(exact[token], abs=2e-5)
            assert [likely for likely, _ in top] == likeliest.tolist()
            assert [value for _, value in top] == pytest.approx(exact[likeliest], abs=2e-5)


def test_of_equally_likely_tokens_the_lowest_comes_first() -> None:
    logits = np.zeros(1000, np.float32)
    logits[[900, 30]] = 2.0
    _, top = _engine.log_probs(logits, 0, 4)
    assert [token for token, _ in top] == [30, 900, 0, 1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_logarithm_of_what_is_no_number_is_a_number(value: float) -> None:
    """JSON knows no infinity."""
    logits = np.zeros(1000, np.float32)
    logits[[5, 6]] = value
    for token in (5, 7):
        logprob, top = _engine.log_probs(logits, token, 10)
        assert -9999.0 <= logprob <= 0.0
        assert all(-9999.0 <= likely <= 0.0 for _, likely in top)


def test_breakers_that_nearly_every_token_has_are_refused(model: _engine.Model) -> None:
    """llama.cpp copies them for each request, on the thread of all streams."""
    for refused in (
        lambda: model.find_breakers(["e", "a"]),
        lambda: sampler(model, {"dry_multiplier": 1.0, "dry_sequence_breakers": ("e", "a")}, whole_vocabulary=False),
    ):
        with pytest.raises(BadSampler, match=r"^dry_sequence_breakers is 'texts in \d+ tokens'") as caught:
            refused()
        assert caught.value.param == "dry_sequence_breakers"
    model.find_breakers(["\n", "q", ""])


def test_breakers_that_were_looked_up_are_kept_for_as_many_requests_as_may_wait(model: _engine.Model) -> None:
    """A search takes milliseconds, and what asks next is the thread of all streams."""
    requests = [[f"{mark}{letter}{index}" for letter in "abcdefgh" for index in range(4)] for mark in "~^|`@#§±¶£"]
    times = []
    for texts in (*requests, *requests):
        started = time.perf_counter()
        model.find_breakers(texts)
        times.append(time.perf_counter() - started)
    assert max(times[len(requests) :]) < min(times[: len(requests)]) / 4


def test_breakers_are_looked_up_by_several_threads_at_once(model: _engine.Model, default_model: Path) -> None:
    fresh = _engine.Model.inspect(os.fsencode(default_model))
    texts = [f"{mark}{index}" for mark in "~^|`@§±" for index in range(8)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda start: fresh.find_breakers(texts[start : start + 32]), range(0, 24, 3)))
    changes = {"dry_multiplier": 20.0, "dry_allowed_length": 1, "dry_sequence_breakers": tuple(texts[:32])}
    samplers = [sampler(one, changes, whole_vocabulary=False) for one in (fresh, model)]
    for one in samplers:
        one.show_history(a_history(model))
    for logits in rows(model)[:50]:
        assert len({one.draw(logits) for one in samplers}) == 1
