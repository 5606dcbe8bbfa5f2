"""Which pieces of prompts a step has. Pure: the one question ``step_plan`` asks about prompts.

Beside streams: pieces in turn, within a budget. While nothing decodes: the window of short prompts that are computed
together, or one piece of a long one, so that long prompts end one after the other (T11).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llamaserve.scheduler.prefill_order import PromptState, in_turn, order_prompts
from llamaserve.scheduler.prefill_plan import PieceSize
from llamaserve.scheduler.prefill_window import joint_rows
from llamaserve.scheduler.tick_policy import StepKind


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """What bounds the pieces of a step."""

    n_batch: int
    """Tokens of a native call."""
    prefill_chunk: int = 512
    """Tokens of a piece; 0 = up to ``n_batch``."""
    max_rows: int = 4
    """Prompts of a window; 1 = none are computed together."""
    window_budget: int = 4096
    """Tokens of a window, as ``prefill_window`` counts them; 0 = no limit, long prompts are computed together too."""

    @property
    def chunk(self) -> int:
        """``prefill_chunk`` as it works: never above ``n_batch``."""
        return min(self.prefill_chunk or self.n_batch, self.n_batch)


def choose_pieces(
    prompts: Sequence[PromptState], limits: PrefillLimits, *, kind: StepKind, n_decoding: int, budget: int
) -> list[PieceSize]:
    """The pieces of a step, who has the turn first.

    ``budget``: tokens all pieces together may have beside ``n_decoding`` decode rows; without rows the limits alone
    count. There is always a piece unless nothing is to compute or ``kind`` has none.
    """
    if kind is StepKind.DECODE:
        return []
    if kind is StepKind.PROMPT:
        return order_prompts(prompts, budget=limits.chunk, prefill_chunk=0)[:1]
    if n_decoding:
        room = max(1, min(budget, limits.n_batch - n_decoding))
        return order_prompts(prompts, budget=room, prefill_chunk=limits.chunk)
    in_line = in_turn(prompts)
    n_rows = joint_rows([prompt.n_left for prompt in in_line], max_rows=limits.max_rows, budget=limits.window_budget)
    if n_rows:
        return _pack_window(in_line[:n_rows], limits)
    return [PieceSize(prompt.seq_id, min(prompt.n_to_boundary, limits.chunk)) for prompt in in_line[:1]]


def _pack_window(window: Sequence[PromptState], limits: PrefillLimits) -> list[PieceSize]:
    """One call's part of a window; it takes no more calls than its tokens need.

    Within a budget: whole prompts in turn, and the beginning of the next. Without one the window is one batch, however
    long: its prompts advance together and end together.
    """
    pieces = []
    room = limits.n_batch
    for index, prompt in enumerate(window):
        n_tokens = min(prompt.n_to_boundary, room if limits.window_budget else room // (len(window) - index))
        if n_tokens:
            pieces.append(PieceSize(prompt.seq_id, n_tokens))
            room -= n_tokens
    return pieces
