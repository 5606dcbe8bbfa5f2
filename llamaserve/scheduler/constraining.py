"""What restrictions say of a step: masks for its rows before it, and what became of its tokens. Scheduler thread only.

Masks are computed before a step is submitted. If it ran ahead it is being decoded meanwhile, so they cost no time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from llamaserve.constraint import MaskFiller, TokenConstraint
from llamaserve.engine.port import StepPlan
from llamaserve.errors import BadGrammar
from llamaserve.sampling import SamplingParams
from llamaserve.scheduler.slot import Slot, Work


class RowMasks(NamedTuple):
    """The masks of a step."""

    masks: Mapping[int, bytes]
    """By sequence id, of rows that may not draw any token."""
    failed: Sequence[tuple[Slot, BadGrammar]]
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
    failed: list[tuple[Slot, BadGrammar]] = []
    for slot, constraint in restricted:
        try:
            mask = constraint.mask()
        except BadGrammar as error:
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
    """Whether an answer that just got a token, which ``work`` does not count yet, is whole and shall end without
    another. Where its next row is computed already it draws the token that ends it, if it may: taking that step back
    would cost the others more."""
    constraint = work.constraint
    if constraint is None or not constraint.is_complete:
        return False
    return not (is_decoding_ahead and _may_draw_end(work.request.sampling, n_drawn=work.n_generated + 1))


def _may_draw_end(sampling: SamplingParams, *, n_drawn: int) -> bool:
    """Whether nothing but its restriction can forbid an answer, after so many tokens, to draw one that ends it."""
    return (
        n_drawn >= sampling.min_tokens
        and not sampling.ignore_eos
        and not sampling.bad_words
        and sampling.allowed_token_ids is None
        and -math.inf not in sampling.logit_bias.values()
    )
