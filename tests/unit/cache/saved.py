"""Saved prefixes without an engine: a state is bytes made of its tokens, so that a mix-up shows."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from llamaserve.cache.saved_prefix import SavedPrefix

BYTES_PER_TOKEN = 100
TOKEN_BYTES = 4


class BytesState:
    """A state of plain bytes."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self.data = data
        self.n_bytes = len(data)
        self.start = start
        self.end = end

    def view(self) -> memoryview:
        """Its bytes."""
        return memoryview(self.data)


def token_ids(*parts: Iterable[int]) -> array[int]:
    """Tokens one behind the other."""
    return array("i", [token for part in parts for token in part])


def state_bytes(tokens: array[int], start: int) -> bytes:
    """What the state of these tokens from there on consists of."""
    return b"".join(token.to_bytes(4, "little", signed=True) * (BYTES_PER_TOKEN // 4) for token in tokens[start:])


def make_saved(tokens: Iterable[int], start: int = 0, scope: str = "") -> SavedPrefix:
    """A copy of these tokens from ``start`` on."""
    ids = token_ids(tokens)
    return SavedPrefix(scope, ids, start, BytesState(state_bytes(ids, start), start, len(ids)))


def size_of(n_tokens: int, start: int = 0) -> int:
    """Bytes such a copy takes in RAM."""
    return (n_tokens - start) * BYTES_PER_TOKEN + n_tokens * TOKEN_BYTES
