"""Prompts of token ids, which both servers take: exact lengths, no tokeniser between, no BOS added."""

from __future__ import annotations

import random
from collections.abc import Sequence

CONTROL_MARGIN = 1000  # vocabularies keep their control tokens at one of the ends


def distinct_prompts(n: int, n_tokens: int, seed: int, n_vocab: int) -> list[list[int]]:
    """Prompts that share no prefix: each starts with another token.

    Raises ValueError when the vocabulary has fewer than ``n`` tokens that are no control tokens.
    """
    source = random.Random(seed)
    tokens = _plain_tokens(n_vocab)
    if n > len(tokens):
        raise ValueError(f"{n} prompts cannot start differently: {n_vocab} tokens leave {len(tokens)} to choose from")
    starts = source.sample(tokens, n)
    return [[start, *source.choices(tokens, k=n_tokens - 1)] for start in starts]


def shared_prefix_prompts(n: int, n_prefix: int, n_suffix: int, seed: int, n_vocab: int) -> list[list[int]]:
    """Prompts with the same first ``n_prefix`` tokens and then ``n_suffix`` of their own, which start differently."""
    prefix = distinct_prompts(1, n_prefix, seed, n_vocab)[0]
    return [prefix + suffix for suffix in distinct_prompts(n, n_suffix, seed + 1, n_vocab)]


def _plain_tokens(n_vocab: int) -> Sequence[int]:
    margin = min(CONTROL_MARGIN, n_vocab // 4)
    return range(margin, n_vocab - margin)
