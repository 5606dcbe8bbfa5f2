"""Scores of a real model: what they are, beside what was drawn, and what DRY and stop tokens do there."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from llamaserve.engine.port import PromptPiece, RowError, SequenceSpec, StepPlan
from llamaserve.sampling import SamplingParams
from tests.native.conftest import LoadEngine
from tests.native.greedy import GREEDY, generate
from tests.native.tiny_models import N_VOCAB

PROMPT = [1, 50, 60, 70]


def test_the_probabilities_of_all_tokens_add_up_to_one(load: LoadEngine, dense_model: Path) -> None:
    """Before any bias and sampler: what they leave out is counted too."""
    engine = load(dense_model)
    sampling = SamplingParams(top_k=1, temperature=0.1, logit_bias={99: 100.0})
    engine.open(SequenceSpec(0, sampling, n_top=N_VOCAB))
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(0, PROMPT, is_last=True)]))
    ((token, _, logprob, top),) = row.scores
    assert token == row.token == 99
    assert len(top) == N_VOCAB
    assert sum(math.exp(value) for _, _, value in top) == pytest.approx(1.0, abs=1e-4)
    assert logprob == {likely: value for likely, _, value in top}[99]
    assert logprob < top[0][2], "the premise: the bias drew an unlikely token"


def test_a_long_prompt_is_scored_beside_rows_that_draw(load: LoadEngine, dense_model: Path) -> None:
    """More logits than the context holds at once: the step is cut, and every row gets what it gets alone."""
    engine = load(dense_model, n_batch=512)
    text = [1, *(3 + index * 7 % 250 for index in range(300))]
    expected = generate(engine, PROMPT, 3)
    for seq_id in (1, 2):
        engine.open(SequenceSpec(seq_id, GREEDY))
    engine.open(SequenceSpec(0, GREEDY, n_top=1))
    firsts = engine.step(StepPlan(pieces=[PromptPiece(1, PROMPT, is_last=True), PromptPiece(2, PROMPT, is_last=True)]))
    rows = engine.step(StepPlan(decode=[1, 2], pieces=[PromptPiece(0, text, is_last=True, n_top=3)]))
    assert [row.token for row in (*firsts, *rows[:2])] == [*expected[:1] * 2, *expected[1:2] * 2]
    scores = rows[2].scores
    assert [token for token, *_ in scores[:-1]] == text
    assert [len(top) for *_, top in scores] == [0, *[3] * 300, 1]
    assert scores[-1][0] == rows[2].token
    rows = engine.step(StepPlan(decode=[0, 1, 2]))
    assert [row.token for row in rows[1:]] == expected[2:] * 2


def test_a_row_that_finds_no_cell_has_no_scores(load: LoadEngine, dense_model: Path) -> None:
    """What an earlier part of the step scored is not told twice when it runs again."""
    engine = load(dense_model, n_ctx=256, n_batch=256)
    engine.open(SequenceSpec(0, GREEDY))
    engine.step(StepPlan(pieces=[PromptPiece(0, [1] * 150, is_last=False)]))
    engine.open(SequenceSpec(1, GREEDY))
    piece = PromptPiece(1, [1, *range(3, 120)], is_last=True, n_top=1)
    (row,) = engine.step(StepPlan(pieces=[piece]))
    assert (row.error, row.token, list(row.scores)) == (RowError.CONTEXT_FULL, None, [])
    engine.close(0)
    (row,) = engine.step(StepPlan(pieces=[piece]))
    assert row.error is None
    assert [token for token, *_ in row.scores] == list(piece.tokens)


def test_dry_sees_the_prompt_and_ends_a_repetition(load: LoadEngine, dense_model: Path) -> None:
    engine = load(dense_model)
    bias = {60: 40.0, 61: 30.0}
    plain = SamplingParams(temperature=0.0, ignore_eos=True, logit_bias=bias)
    assert generate(engine, [1, 60, 60, 60], 4, plain) == [60] * 4
    dry = SamplingParams(temperature=0.0, ignore_eos=True, logit_bias=bias, dry_multiplier=100.0, dry_allowed_length=2)
    assert generate(engine, [1, 60, 60, 60], 1, dry) == [61]
    free = SamplingParams(
        temperature=0.0,
        ignore_eos=True,
        logit_bias=bias,
        dry_multiplier=100.0,
        dry_allowed_length=2,
        dry_sequence_breakers=(chr(60 - 3),),
    )
    assert generate(engine, [1, 60, 60, 60], 1, free) == [60]


def test_the_same_seed_draws_the_same_text_by_every_way_of_drawing(load: LoadEngine, dense_model: Path) -> None:
    """S39."""
    engine = load(dense_model)
    for changes in (
        {"xtc_probability": 0.5, "xtc_threshold": 0.01},
        {"mirostat": 1},
        {"mirostat": 2},
        {"adaptive_target": 0.3},
        {"dynatemp_range": 1.0, "temperature": 1.5},
    ):
        texts = [
            generate(engine, PROMPT, 24, SamplingParams(seed=seed, ignore_eos=True, **changes)) for seed in (1, 1, 2)
        ]
        assert texts[0] == texts[1] != texts[2], changes
