"""A copy of computed cells, and when such a copy is worth its keep and its use. Pure; any thread.

RAM and disk go by the same rules. A state has the positions from ``start`` on, so that a prefix may be kept in several
pieces, one behind the other; each piece knows all tokens from position 0, as its cells depend on them.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from llamaserve.engine.port import SavedState

MIN_TOKENS = 32
"""Fewest tokens a copy is made of, and brought back for: computing less is cheap (requirements 1.1). It may be fewer
where another copy goes on behind them, which is of no use without."""

MIN_KEEP = 0.25
"""Smallest part of a copy that must be of use for it to be restored (requirements 1.1, 1.4)."""


@dataclass(frozen=True, slots=True, eq=False)
class SavedPrefix:
    """The cells of ``tokens[start:]``, outside the context. Raises ValueError if state and tokens do not fit."""

    scope: str
    """Prompts of another scope never see it (K40)."""
    tokens: array[int] = field(repr=False)
    """All tokens from position 0; never changed."""
    start: int
    """First position the state has."""
    state: SavedState

    def __post_init__(self) -> None:
        if not 0 <= self.start < len(self.tokens):
            raise ValueError(f"start is {self.start}: it must be 0 to {len(self.tokens) - 1}, inside the tokens")
        if (self.state.start, self.state.end) != (self.start, len(self.tokens)):
            raise ValueError(
                f"the state has positions {self.state.start} to {self.state.end}, the tokens say {self.start} to "
                f"{len(self.tokens)}"
            )

    @property
    def end(self) -> int:
        """One behind the last position."""
        return len(self.tokens)

    @property
    def n_bytes(self) -> int:
        """RAM it takes: state and tokens."""
        return self.state.n_bytes + token_bytes(self.tokens)


def token_bytes(tokens: array[int]) -> int:
    """Bytes that token ids take."""
    return len(tokens) * tokens.itemsize


def is_long_enough(start: int, end: int) -> bool:
    """Whether a copy of these positions is worth making."""
    return end - start >= MIN_TOKENS


def fewest_gained(n_have: int) -> int:
    """Tokens a restored copy must bring at least to a prompt that has its first ``n_have`` tokens."""
    return MIN_TOKENS if n_have else 1


def is_worth_restoring(start: int, end: int, n_have: int, n_tokens: int, least_gain: int | None = None) -> bool:
    """Whether to restore a copy of positions ``start`` to ``end`` for a prompt that has its first ``n_have`` tokens and
    would have ``n_tokens``.

    It must join on to what is there, bring at least ``least_gain`` tokens (None: ``fewest_gained``), and at least
    MIN_KEEP of it must be tokens of the prompt.
    """
    gain = n_tokens - n_have
    least = fewest_gained(n_have) if least_gain is None else least_gain
    return start <= n_have and gain >= least and n_tokens - start >= MIN_KEEP * (end - start)
