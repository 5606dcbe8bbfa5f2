"""Texts of any length to tokens, in bounded time. Preparing threads only: tokenisers block."""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadToken, PromptTooLong

SUSPICIOUS_CHARACTERS = 8
"""A text with more characters for each token of the context is counted before it is tokenised whole."""
COUNTED_PIECE = 2**16  # characters
SURELY_TOO_LONG = 2
"""Contexts' worth of counted tokens that refuse a text; cutting it into pieces adds a few tokens, not a context."""


def tokenize(
    text: str, vocab: Vocabulary, n_ctx: int, *, add_special: bool = True, parse_special: bool = True
) -> tuple[int, ...]:
    """The tokens of a text. Raises PromptTooLong for one far over the context."""
    # Tokenising megabytes takes seconds. A text far over the context is refused after as much as shows that it is.
    if len(text) > SUSPICIOUS_CHARACTERS * n_ctx:
        n_counted = 0
        for start in range(0, len(text), COUNTED_PIECE):
            piece = text[start : start + COUNTED_PIECE]
            n_counted += len(vocab.tokenize(piece, add_special=False, parse_special=parse_special))
            if n_counted > SURELY_TOO_LONG * n_ctx:
                raise PromptTooLong(n_counted, n_ctx, is_at_least=True)
    return tuple(vocab.tokenize(text, add_special=add_special, parse_special=parse_special))


def check_fits(tokens: Sequence[int], n_ctx: int) -> None:
    """Raise PromptTooLong for a prompt that leaves no room for a token of an answer. The scheduler does too, but only
    when all other prompts of the request are tokenised and its grammar is compiled."""
    if len(tokens) >= n_ctx:
        raise PromptTooLong(len(tokens), n_ctx)


def check_tokens(param: str, tokens: Sequence[int], vocab: Vocabulary) -> None:
    """Raise BadToken for an id outside the vocabulary, of whatever size."""
    n_tokens = vocab.n_tokens
    for token in tokens:
        if not 0 <= token < n_tokens:
            raise BadToken(token, n_tokens, param)
