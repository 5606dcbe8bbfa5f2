"""Which copies there are, for lookups by tokens and eviction by age. Knows neither RAM nor disk; not synchronised.

The copies of a scope are sorted by their tokens. What has most in common with a prompt then stands on both sides of the
place where the prompt itself would stand, and the common part only shrinks with the distance from there: a lookup is a
binary search and a short walk.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from llamaserve._hot import common_prefix
from llamaserve.cache.saved_prefix import MIN_KEEP, fewest_gained, is_worth_restoring


class Copy(Protocol):
    """What the index knows of a copy; hashed by identity."""

    @property
    def scope(self) -> str: ...
    @property
    def tokens(self) -> array[int]: ...
    @property
    def start(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...


CopyT = TypeVar("CopyT", bound=Copy)


@dataclass(frozen=True, slots=True)
class Found(Generic[CopyT]):
    """The copy that brings most."""

    copy: CopyT
    n_tokens: int
    """Tokens of the prompt that are there when it is restored."""


class SavedIndex(Generic[CopyT]):
    """Copies in the order of their use. Without ``can_trim`` a state is of use as a whole only (recurrent memory)."""

    def __init__(self, *, can_trim: bool) -> None:
        self._can_trim = can_trim
        self._sorted: dict[str, list[CopyT]] = {}
        self._by_use: dict[CopyT, None] = {}
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._by_use)

    def __iter__(self) -> Iterator[CopyT]:
        """Those used longest ago first."""
        return iter(self._by_use)

    def add(self, copy: CopyT) -> None:
        """Add a copy, as the one used last."""
        copies = self._sorted.setdefault(copy.scope, [])
        copies.insert(_position(copies, copy.tokens), copy)
        self._by_use[copy] = None
        self.n_bytes += copy.n_bytes

    def discard(self, copy: CopyT) -> bool:
        """Forget a copy; whether it was here."""
        if copy not in self._by_use:
            return False
        copies = self._sorted[copy.scope]
        at = _position(copies, copy.tokens)
        while copies[at] is not copy:
            at += 1
        del copies[at]
        if not copies:
            del self._sorted[copy.scope]
        del self._by_use[copy]
        self.n_bytes -= copy.n_bytes
        return True

    def touch(self, copy: CopyT) -> None:
        """Note that a copy that is here is used now."""
        del self._by_use[copy]
        self._by_use[copy] = None

    def clear(self) -> None:
        """Forget all."""
        self._sorted.clear()
        self._by_use.clear()
        self.n_bytes = 0

    def oldest(self) -> CopyT | None:
        """The copy used longest ago."""
        return next(iter(self._by_use), None)

    def is_covered(self, scope: str, tokens: array[int], start: int) -> bool:
        """Whether a copy of these tokens from ``start`` on would bring nothing that another does not bring."""
        copies = self._sorted.get(scope, [])
        for at in range(_position(copies, tokens), len(copies)):
            copy = copies[at]
            if len(copy.tokens) < len(tokens) or copy.tokens[len(tokens) - 1] != tokens[-1]:
                return False  # those that begin with the tokens stand side by side
            if self._covers(copy, start, len(tokens)):
                return common_prefix(copy.tokens, tokens) == len(tokens)
        return False

    def covered_by(self, scope: str, tokens: array[int], start: int) -> list[CopyT]:
        """Copies that bring nothing when there is one of these tokens from ``start`` on."""
        return [
            copy
            for copy in self._sorted.get(scope, [])
            if start <= copy.start
            and len(copy.tokens) <= len(tokens)
            and copy.tokens[-1] == tokens[len(copy.tokens) - 1]
            and self._is_part(copy.start, len(copy.tokens), start, len(tokens))
            and common_prefix(copy.tokens, tokens) == len(copy.tokens)
        ]

    def goes_on(self, scope: str, tokens: array[int], start: int) -> bool:
        """Whether a copy begins behind ``start`` within these tokens, or at their end, and goes on beyond them."""
        copies = self._sorted.get(scope, [])
        n_tokens = len(tokens)
        for at in range(_position(copies, tokens), len(copies)):
            copy = copies[at]
            if len(copy.tokens) < n_tokens or common_prefix(copy.tokens, tokens) < n_tokens:
                return False  # those that begin with the tokens stand side by side
            if start < copy.start <= n_tokens < len(copy.tokens):
                return True
        return False

    def best(
        self, scope: str, tokens: array[int], n_have: int, limit: int, least_gain: int | None = None
    ) -> Found[CopyT] | None:
        """The copy that gives a prompt that has ``n_have`` tokens most of its first ``limit``, and at least
        ``least_gain`` (None: ``fewest_gained``); of equal ones that which has the fewest positions. It is not marked as
        used."""
        copies = self._sorted.get(scope, [])
        middle = _position(copies, tokens)
        best: Found[CopyT] | None = None
        least = fewest_gained(n_have) if least_gain is None else least_gain
        fewest = n_have + least
        for side in (range(middle, len(copies)), range(middle - 1, -1, -1)):
            for at in side:
                copy = copies[at]
                if copy.start > n_have or len(copy.tokens) <= n_have:
                    continue
                n_tokens = min(limit, common_prefix(copy.tokens, tokens))
                if n_tokens < fewest:
                    break
                if self._is_of_use(copy, n_have, n_tokens, least) and (
                    best is None or _is_better(copy, n_tokens, best)
                ):
                    best = Found(copy, n_tokens)
                    fewest = n_tokens
        return best

    def _covers(self, copy: CopyT, start: int, end: int) -> bool:
        return (
            copy.start <= start and end <= len(copy.tokens) and self._is_part(start, end, copy.start, len(copy.tokens))
        )

    def _is_part(self, start: int, end: int, outer_start: int, outer_end: int) -> bool:
        """Whether a larger copy can stand in for the smaller one: it is restored for the sake of these tokens alone."""
        if not self._can_trim:
            return end == outer_end and start == outer_start
        return end - outer_start >= MIN_KEEP * (outer_end - outer_start)

    def _is_of_use(self, copy: CopyT, n_have: int, n_tokens: int, least_gain: int) -> bool:
        end = len(copy.tokens)
        is_worth_it = is_worth_restoring(copy.start, end, n_have, n_tokens, least_gain)
        return is_worth_it and (self._can_trim or n_tokens == end)


def _is_better(copy: CopyT, n_tokens: int, than: Found[CopyT]) -> bool:
    if n_tokens != than.n_tokens:
        return n_tokens > than.n_tokens
    return len(copy.tokens) - copy.start < len(than.copy.tokens) - than.copy.start


def _position(copies: list[CopyT], tokens: array[int]) -> int:
    """Where tokens stand among sorted copies: before those that are equal or greater."""
    low, high = 0, len(copies)
    while low < high:
        middle = (low + high) // 2
        if _is_less(copies[middle].tokens, tokens):
            low = middle + 1
        else:
            high = middle
    return low


def _is_less(a: array[int], b: array[int]) -> bool:
    n_common = common_prefix(a, b)
    if n_common == len(b):
        return False
    return n_common == len(a) or a[n_common] < b[n_common]
