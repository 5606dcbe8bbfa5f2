"""Prompts have the length and the prefixes they were asked for, and the same ones every time."""

from __future__ import annotations

import pytest

from bench.harness.dialogue import QUESTIONS, SYSTEM_PROMPT, continued, opening
from bench.harness.prompts import distinct_prompts, shared_prefix_prompts

N_VOCAB = 49_152


def test_distinct_prompts_share_no_prefix() -> None:
    prompts = distinct_prompts(200, 20, 1, N_VOCAB)
    assert len({prompt[0] for prompt in prompts}) == 200
    assert {len(prompt) for prompt in prompts} == {20}


def test_prompts_are_those_of_their_seed() -> None:
    assert distinct_prompts(3, 20, 7, N_VOCAB) == distinct_prompts(3, 20, 7, N_VOCAB)
    assert distinct_prompts(3, 20, 7, N_VOCAB) != distinct_prompts(3, 20, 8, N_VOCAB)


@pytest.mark.parametrize("n_vocab", [8, 1000, N_VOCAB])
def test_prompts_keep_away_from_both_ends_of_the_vocabulary(n_vocab: int) -> None:
    """Control tokens are there: one of them could end a text or open a chat turn."""
    margin = min(1000, n_vocab // 4)
    tokens = {token for prompt in distinct_prompts(2, 500, 1, n_vocab) for token in prompt}
    assert min(tokens) >= margin
    assert max(tokens) < n_vocab - margin


def test_more_prompts_than_tokens_to_start_with_are_refused() -> None:
    with pytest.raises(ValueError, match="5 prompts cannot start differently: 8 tokens leave 4"):
        distinct_prompts(5, 2, 1, 8)


def test_prompts_over_one_prefix_share_it_and_nothing_more() -> None:
    prompts = shared_prefix_prompts(8, 1500, 20, 1, N_VOCAB)
    assert {len(prompt) for prompt in prompts} == {1520}
    assert len({tuple(prompt[:1500]) for prompt in prompts}) == 1
    assert len({prompt[1500] for prompt in prompts}) == 8


def test_the_system_prompt_has_the_length_of_s1() -> None:
    assert 1300 <= len(SYSTEM_PROMPT) <= 1380


def test_conversations_differ_from_their_first_question_on() -> None:
    assert len(QUESTIONS) == 8
    assert {len(asked) for asked in QUESTIONS} == {4}
    assert len({asked[0].split()[0] for asked in QUESTIONS}) == 8


def test_a_turn_repeats_the_conversation_so_far() -> None:
    first = opening("Where?")
    second = continued(first, "There.", "Why?")
    assert second[: len(first)] == first
    assert second[len(first) :] == [{"role": "assistant", "content": "There."}, {"role": "user", "content": "Why?"}]
