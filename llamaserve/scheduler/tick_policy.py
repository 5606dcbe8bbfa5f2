"""What a step holds: decode rows, prompt pieces, or both. Pure.

Decode rows come first: a running stream must not wait for somebody's prompt. A batch has room for a row of each slot,
so beside a prompt there is always some for a piece of it. Where steps may not be mixed the two kinds take turns, so
neither waits for more than one step of the other (K9, K105).
"""

from __future__ import annotations

import enum


class StepKind(enum.Enum):
    """What a step is made of."""

    DECODE = "decode"
    """Decode rows only."""
    PROMPT = "prompt"
    """One prompt piece, alone."""
    MIXED = "mixed"
    """All decode rows, and prompt pieces in the room that is left."""


def choose_step_kind(*, n_decoding: int, n_prefilling: int, mixed_step: bool, last_kind: StepKind) -> StepKind | None:
    """The kind of the next step; None when no sequence has anything to compute."""
    if n_prefilling == 0:
        return StepKind.DECODE if n_decoding else None
    if mixed_step:
        return StepKind.MIXED
    if n_decoding == 0:
        return StepKind.PROMPT
    return StepKind.DECODE if last_kind is StepKind.PROMPT else StepKind.PROMPT


def prompt_budget(*, n_decoding: int, n_batch: int, prefill_chunk: int) -> int:
    """Prompt tokens a step may hold beside ``n_decoding`` decode rows; at least 1, for the slot whose prompt it is.

    While something decodes, all pieces of the step together stay within one chunk: the chunk is what bounds the
    time between two tokens of a stream. ``prefill_chunk`` 0 means up to ``n_batch``.
    """
    room = n_batch - n_decoding
    return min(room, prefill_chunk) if n_decoding and prefill_chunk else room
