"""A disk tier, its files, and answers of its reading thread waited for."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llamaserve.cache.disk_file import TOKENS_AT
from llamaserve.cache.disk_tier import DiskHit, DiskTier, FetchedState
from llamaserve.cache.saved_prefix import SavedPrefix
from tests.unit.cache.saved import BYTES_PER_TOKEN, TOKEN_BYTES, token_ids

PATIENCE_S = 30.0
LARGE = 1 << 30
FINGERPRINT = bytes(range(32))


def file_size(n_tokens: int, start: int = 0) -> int:
    """Bytes of the file of such a copy."""
    return TOKENS_AT + n_tokens * TOKEN_BYTES + (n_tokens - start) * BYTES_PER_TOKEN + 32


def make_tier(folder: Path, max_bytes: int = LARGE, fingerprint: bytes = FINGERPRINT, **options: Any) -> DiskTier:
    """A tier; to be closed."""
    return DiskTier(folder, max_bytes, fingerprint, **options)


def store(tier: DiskTier, *copies: SavedPrefix) -> None:
    """Have copies written, one after the other."""
    for saved in copies:
        tier.put(saved)
        assert tier.flush(PATIENCE_S)


def best(tier: DiskTier, tokens: Iterable[int], n_have: int = 0, scope: str = "") -> DiskHit | None:
    """The best hit for a prompt."""
    return tier.best(scope, token_ids(tokens), n_have, LARGE)


def fetched(tier: DiskTier, hit: DiskHit) -> FetchedState | None:
    """What a hit's file has."""
    answers: queue.SimpleQueue[FetchedState | None] = queue.SimpleQueue()
    tier.fetch(hit, answers.put)
    return answers.get(timeout=PATIENCE_S)


def brought_back(tier: DiskTier, tokens: Iterable[int], n_have: int = 0, scope: str = "") -> FetchedState | None:
    """What the tier has for a prompt."""
    hit = best(tier, tokens, n_have, scope)
    return None if hit is None else fetched(tier, hit)


def files(folder: Path) -> list[Path]:
    """Finished files of any fingerprint."""
    return sorted(folder.glob("*.prefix"))
