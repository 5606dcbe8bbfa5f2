"""Tokens that clients name by their text or by their id. Preparing threads: texts are tokenised."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadSampler, BadToken

MAX_TEXT_LENGTH = 256  # characters; a phrase, not a document
MAX_BAD_WORDS = 512
MAX_BIAS_CHARACTERS = 2**16
"""Of all texts in ``logit_bias``: they are tokenised one by one."""
_TOKEN_ID = re.compile(r"-?[0-9]{1,20}")

Bias = float | bool


def logit_bias(biases: Mapping[str, Bias] | Sequence[tuple[int | str, Bias]], vocab: Vocabulary) -> dict[int, float]:
    """The bias of each token; several of one add up, as in llama.cpp. A name in digits is an id, every other text
    stands for each of its tokens.

    Raises BadSampler for a bias that is none, a text that is empty or long and for too much text, BadToken for an id
    outside the vocabulary.
    """
    sums: dict[int, float] = {}
    pairs = tuple(biases.items() if isinstance(biases, Mapping) else biases)
    n_characters = sum(len(name) for name, _ in pairs if _is_text(name))
    if n_characters > MAX_BIAS_CHARACTERS:
        raise BadSampler(
            "logit_bias", f"texts of {n_characters} characters", f"texts of at most {MAX_BIAS_CHARACTERS} in all"
        )
    for name, bias in pairs:
        if bias is True:
            raise BadSampler("logit_bias", {name: bias}, "a number from -100 to 100, or false to forbid the token")
        for token in _tokens(name, vocab):
            sums[token] = sums.get(token, 0.0) + (-math.inf if bias is False else bias)
    return sums


def bad_words(words: Sequence[str], vocab: Vocabulary) -> tuple[tuple[int, ...], ...]:
    """The token sequences of words, each as it is written and behind a space, as in vLLM. Raises BadSampler."""
    if len(words) > MAX_BAD_WORDS:
        raise BadSampler("bad_words", f"a list of {len(words)} texts", f"one of at most {MAX_BAD_WORDS}")
    sequences = (_tokenize("bad_words", text, vocab) for word in words for text in (word, f" {word.lstrip()}"))
    return tuple(dict.fromkeys(sequences))


def _is_text(name: str | int) -> TypeGuard[str]:
    # int() alone would also take " 1 ", "1_0" and the digits of other scripts.
    return isinstance(name, str) and not _TOKEN_ID.fullmatch(name)


def _tokens(name: str | int, vocab: Vocabulary) -> Sequence[int]:
    if _is_text(name):
        return _tokenize("logit_bias", name, vocab)
    token = int(name)
    if not 0 <= token < vocab.n_tokens:
        raise BadToken(token, vocab.n_tokens, "logit_bias")
    return (token,)


def _tokenize(field: str, text: str, vocab: Vocabulary) -> tuple[int, ...]:
    if not 1 <= len(text) <= MAX_TEXT_LENGTH + 1:
        raise BadSampler(field, text, f"a text of 1 to {MAX_TEXT_LENGTH} characters")
    return tuple(vocab.tokenize(text, add_special=False, parse_special=False))
