"""How many tokens a request will draw, before it has drawn any. Belongs to one thread."""

from __future__ import annotations

FIRST_GUESS = 256
"""Tokens, before any request has ended: what the Python API draws unless told otherwise."""

_STEP = 1 / 16
"""Part of the difference by which a request that ended moves the mean: about the last 30 count."""


class ExpectedOutput:
    """An exponentially weighted mean over the requests that ended."""

    def __init__(self) -> None:
        self._mean = float(FIRST_GUESS)

    def observe(self, n_generated: int) -> None:
        """A request ended after so many tokens."""
        self._mean += _STEP * (n_generated - self._mean)

    def tokens(self, max_tokens: int | None) -> float:
        """What a request with this limit is expected to draw."""
        return self._mean if max_tokens is None else min(self._mean, max_tokens)
