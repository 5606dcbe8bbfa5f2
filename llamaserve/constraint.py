"""What a request's next token may be: the seam between whoever restricts a text and the engine. Knows neither.

A restriction is compiled once for a request, off the event loop, and begun once for each of its answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TokenConstraint(Protocol):
    """The state of one answer. Scheduler thread only."""

    def mask(self) -> bytes | None:
        """Which tokens may come next: bit ``i % 32`` of the little-endian 32-bit word ``i // 32`` says whether token
        ``i`` may, for every token of the vocabulary; None = any may. At least one bit is set. Asked twice it says the
        same. Raises GrammarFailed when the restriction cannot go on."""

    def accept(self, token: int) -> None:
        """Take note of the token that was drawn, an end-of-generation token too. Raises GrammarFailed for one that was
        not allowed."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing may come any more but the end."""

    @property
    def filler(self) -> MaskFiller | None:
        """Who can compute its mask together with others'; None = nobody."""


class MaskFiller(Protocol):
    """Computes several masks at once, on threads of its own. Scheduler thread only."""

    def fill(self, constraints: Sequence[TokenConstraint]) -> None:
        """Have ``mask`` of each find its work done. Never fails: ``mask`` does."""


class Constraint(Protocol):
    """A compiled restriction. Any thread; shared by requests that have the same."""

    def begin(self) -> TokenConstraint:
        """For a new answer."""
