"""Whose prompt goes on next. Pure.

The prompt with the least left has the turn, so short ones pass long ones, and equal ones end one after the other, not
all at the end. Turns that went to others count: a prompt that has waited for ``patience`` of them goes first whatever
it has left, the one that waited longest before all. A turn takes its prompt out of those, and nobody comes in with
turns waited, so with S prompts at most S - 1 go before it: it waits for at most ``longest_wait(S)`` turns, whatever
comes in (K9, K102).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llamaserve.scheduler.prefill_plan import PieceSize, plan_pieces

LEAST_PATIENCE = 16
"""Turns for which a prompt lets shorter ones pass, as many as decode ticks before a grant."""
PATIENCE_PER_PROMPT = 4
"""More where many wait: those who waited long have no more than a quarter of the turns."""


class PromptState(NamedTuple):
    """A prompt that has a slot and tokens to compute itself; one that follows another is none."""

    seq_id: int
    n_left: int
    """Tokens to compute; at least 1."""
    n_waited: int
    """Turns that went to others since it last had one, or since it came."""
    admitted_order: int
    """Smaller came first."""
    n_to_boundary: int
    """Tokens its next piece may have; at most ``n_left``."""


def patience(n_prompts: int) -> int:
    """Turns of others after which a prompt is no longer passed, with ``n_prompts`` in line."""
    return max(LEAST_PATIENCE, PATIENCE_PER_PROMPT * n_prompts)


def longest_wait(most_prompts: int) -> int:
    """Turns that others have at most before a prompt has one, with never more than ``most_prompts`` in line."""
    return patience(most_prompts) + most_prompts - 1


def in_turn(prompts: Sequence[PromptState]) -> list[PromptState]:
    """The prompts in the order of their turns; the first has this one."""
    if len(prompts) < 2:
        return list(prompts)
    most_waited = patience(len(prompts))

    def rank(prompt: PromptState) -> tuple[int, int, int]:
        has_waited = prompt.n_waited >= most_waited
        return (-prompt.n_waited if has_waited else 0, 0 if has_waited else prompt.n_left, prompt.admitted_order)

    return sorted(prompts, key=rank)


def order_prompts(prompts: Sequence[PromptState], *, budget: int, prefill_chunk: int) -> list[PieceSize]:
    """Share ``budget`` tokens out in turn, at most ``prefill_chunk`` each (0 = no limit but the budget). The first
    takes what it can, so who has the turn always advances."""
    sizes = [PieceSize(prompt.seq_id, prompt.n_to_boundary) for prompt in in_turn(prompts)]
    return plan_pieces(sizes, budget=budget, prefill_chunk=prefill_chunk)


def waits_after(prompts: Sequence[PromptState], pieces: Sequence[PieceSize]) -> dict[int, int]:
    """``n_waited`` of each prompt after a step with these pieces. The first piece was the turn; what others had of the
    step was a gift and takes nothing from their claim to one."""
    taker = pieces[0].seq_id if pieces else None
    return {prompt.seq_id: 0 if prompt.seq_id == taker else prompt.n_waited + bool(pieces) for prompt in prompts}
