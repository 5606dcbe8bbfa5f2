"""What restrictions say of a step: masks for its rows before it, and what became of its tokens. Scheduler thread only.

Masks are computed before a step is submitted. If it ran ahead it is being decoded meanwhile, so they cost no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from llamaserve.constraint import MaskFiller, TokenConstraint
from llamaserve.engine.port import StepPlan
from llamaserve.errors import GrammarFailed
from llamaserve.scheduler.slot import Slot, Work


class RowMasks(NamedTuple):
    """The masks of a step."""

    masks: Mapping[int, bytes]
    """By sequence id, of rows that may not draw any token."""
    failed: Sequence[tuple[Slot, GrammarFailed]]
    """Rows whose restriction cannot go on: their requests must end before the step."""


def row_masks(plan: StepPlan, slots: Sequence[Slot]) -> RowMasks:
    """The masks of the rows that draw. ``slots`` are those of all rows, in plan order."""
    draws = [True] * len(plan.decode) + [piece.is_last for piece in plan.pieces]
    restricted: list[tuple[Slot, TokenConstraint]] = []
    for slot, is_drawing in zip(slots, draws, strict=True):
        constraint = slot.working.constraint
        if is_drawing and constraint is not None:
            restricted.append((slot, constraint))
    if len(restricted) > 1:
        _fill([constraint for _, constraint in restricted])
    masks: dict[int, bytes] = {}
    failed: list[tuple[Slot, GrammarFailed]] = []
    for slot, constraint in restricted:
        try:
            mask = constraint.mask()
        except GrammarFailed as error:
            failed.append((slot, error))
            continue
        if mask is not None:
            masks[slot.seq_id] = mask
    return RowMasks(masks, failed)


def _fill(constraints: Sequence[TokenConstraint]) -> None:
    """Have those who can do so compute their masks together."""
    together: dict[MaskFiller, list[TokenConstraint]] = {}
    for constraint in constraints:
        if constraint.filler is not None:
            together.setdefault(constraint.filler, []).append(constraint)
    for filler, some in together.items():
        if len(some) > 1:
            filler.fill(some)


def ends_now(work: Work, *, is_decoding_ahead: bool) -> bool:
    """Whether an answer that just got a token is whole and shall end without another. Where its next row is computed
    already it draws the token that ends it: taking that step back would cost the others more."""
    constraint = work.constraint
    if constraint is None or not constraint.is_complete:
        return False
    may_end_itself = not (work.request.sampling.ignore_eos or work.request.sampling.logit_bias)
    return not (is_decoding_ahead and may_end_itself)
