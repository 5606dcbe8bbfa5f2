"""What restrictions say of a step: masks for its rows before it, and what became of its tokens. Scheduler thread only.

Masks are computed before a step is submitted. If it ran ahead it is being decoded meanwhile, so they cost no time.

A restriction is foreign code that reads what clients sent. Whatever it raises, an abort of its native part too (no
Exception in Python), is the failure of its request alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from llamaserve.constraint import MaskFiller, TokenConstraint
from llamaserve.engine.port import StepPlan
from llamaserve.errors import DecodeFailed, LlamaServeError
from llamaserve.sampling import SamplingParams
from llamaserve.scheduler.slot import Slot, Work

_logger = logging.getLogger(__name__)


class RowMasks(NamedTuple):
    """The masks of a step."""

    masks: Mapping[int, bytes]
    """By sequence id, of rows that may not draw any token."""
    failed: Sequence[tuple[Slot, LlamaServeError]]
    """Rows whose restriction cannot go on: their requests must end before the step."""


NO_MASKS = RowMasks({}, ())


def begin(work: Work) -> None:
    """Begin the restriction of an answer, if it has one that has not begun. Raises LlamaServeError."""
    if work.constraint is None and work.request.constraint is not None:
        try:
            work.constraint = work.request.constraint.begin()
        except BaseException as error:
            raise _failure_of(work, error) from error


def row_masks(plan: StepPlan, slots: Sequence[Slot], works: Sequence[Work]) -> RowMasks:
    """The masks of the rows that draw. ``slots`` and their ``works`` are those of all rows, in plan order."""
    constraints = [work.constraint for work in works]
    if constraints.count(None) == len(constraints):  # nearly every step
        return NO_MASKS
    draws = [True] * len(plan.decode) + [piece.is_last for piece in plan.pieces]
    restricted: list[tuple[Slot, TokenConstraint]] = []
    for slot, constraint, is_drawing in zip(slots, constraints, draws, strict=True):
        if is_drawing and constraint is not None:
            restricted.append((slot, constraint))
    if len(restricted) > 1:
        _fill([constraint for _, constraint in restricted])
    masks: dict[int, bytes] = {}
    failed: list[tuple[Slot, LlamaServeError]] = []
    for slot, constraint in restricted:
        try:
            mask = _mask(slot.working, constraint)
        except LlamaServeError as error:
            failed.append((slot, error))
            continue
        if mask is not None:
            masks[slot.seq_id] = mask
    return RowMasks(masks, failed)


def _mask(work: Work, constraint: TokenConstraint) -> bytes | None:
    try:
        return constraint.mask()
    except BaseException as error:
        raise _failure_of(work, error) from error


def _fill(constraints: Sequence[TokenConstraint]) -> None:
    """Have those who can do so compute their masks together."""
    together: dict[MaskFiller, list[TokenConstraint]] = {}
    for constraint in constraints:
        if constraint.filler is not None:
            together.setdefault(constraint.filler, []).append(constraint)
    for filler, some in together.items():
        if len(some) > 1:
            try:
                filler.fill(some)
            except BaseException:
                _logger.exception("%d masks could not be computed together: each is computed alone", len(some))


def accept(work: Work, token: int, *, is_decoding_ahead: bool) -> bool:
    """Have the restriction of an answer, if it has one, take note of a token; whether the answer shall end with it.
    Raises LlamaServeError."""
    constraint = work.constraint
    if constraint is None:
        return False
    try:
        constraint.accept(token)
        return ends_now(work, is_decoding_ahead=is_decoding_ahead)
    except BaseException as error:
        raise _failure_of(work, error) from error


def _failure_of(work: Work, error: BaseException) -> LlamaServeError:
    """What a request is told whose restriction raised this."""
    if isinstance(error, LlamaServeError):
        return error
    request_id = work.request.request_id
    _logger.error("request %s: the restriction of its answer failed", request_id, exc_info=error)
    return DecodeFailed(f"the restriction of the answer failed: {type(error).__name__}: {error}")


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
