"""How much of a difference there is between two arms, and how sure that is: ratios a round, their median and spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """Median, smallest and largest of the rounds' ratios."""

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}..{self.high:.2f})"


def paired(ours: Sequence[float], peers: Sequence[float]) -> Ratio:
    """The ratios ours/peers of rounds in which both ran. Raises ValueError for other lengths, none, or a peer of 0."""
    if len(ours) != len(peers) or not ours:
        raise ValueError(f"{len(ours)} and {len(peers)} rounds cannot be compared: it must be the same number, from 1")
    if not all(peers):
        raise ValueError(f"a peer's figure is 0: {list(peers)}")
    ratios = [our / peer for our, peer in zip(ours, peers, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), len(ratios))
