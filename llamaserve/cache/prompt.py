"""A prompt as the caches see it. Pure values; any thread."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from llamaserve._hot import common_prefix

TOKEN_TYPE = "i"
"""Array type of token ids: int32, as in llama.cpp."""


def token_array(tokens: Sequence[int]) -> array[int]:
    """Token ids side by side, for comparing many at once. Raises OverflowError for one beyond int32."""
    return array(TOKEN_TYPE, tokens)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens to compute, and what may be reused and kept of them."""

    tokens: array[int]
    """int32; never changed."""
    scope: str = ""
    """Prompts of different scopes share nothing (``cache_salt``)."""
    is_cached: bool = True
    """Whether computed prefixes are reused for it and left by it (``cache_prompt``)."""
    session: str | None = None
    """The conversation it belongs to; what the last request of a session left is kept longer."""
    boundaries: tuple[int, ...] = ()
    """Positions where messages end, ascending: a prompt that diverges later often does so here."""
    is_private: bool = False
    """Whether it is shared only within its scope and while requests of that are there; nothing is kept after them."""
    is_computed_anew: bool = False
    """Whether nothing is reused for it, whatever others may reuse of it: the logits of all its tokens are wanted."""

    @property
    def is_kept(self) -> bool:
        """Whether prefixes that outlive their request are reused for it and left by it."""
        return self.is_cached and not self.is_private

    @property
    def n_reusable(self) -> int:
        """Most tokens that may come from elsewhere: the last is always computed, its logits draw the first token."""
        return 0 if self.is_computed_anew else max(0, len(self.tokens) - 1)

    def shares(self, other: Prompt, n_tokens: int) -> bool:
        """Whether the other begins with the first ``n_tokens`` of this, and this can reuse them from it."""
        if not (self.is_cached and other.is_cached and self.scope == other.scope and n_tokens <= self.n_reusable):
            return False
        return common_prefix(self.tokens, other.tokens, limit=n_tokens) == n_tokens
