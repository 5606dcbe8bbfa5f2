"""How prompts are cut into pieces. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class PieceSize(NamedTuple):
    """How many of its remaining prompt tokens a sequence computes in a step."""

    seq_id: int
    n_tokens: int


def plan_pieces(prompts: Sequence[PieceSize], *, budget: int, prefill_chunk: int) -> list[PieceSize]:
    """Share ``budget`` tokens out among prompts, first come first served; at most ``prefill_chunk`` tokens each (0 = no
    limit but the budget).

    ``prompts`` says how much each sequence has left, in the order of admission. The first prompt always advances, so
    every prompt is done after a bounded number of steps (K102).
    """
    pieces = []
    for seq_id, n_left in prompts:
        if budget <= 0:
            break
        n_tokens = min(n_left, budget, prefill_chunk or n_left)
        pieces.append(PieceSize(seq_id, n_tokens))
        budget -= n_tokens
    return pieces
