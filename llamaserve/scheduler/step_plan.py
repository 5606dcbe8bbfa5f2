"""From slots to the plan of the next step. Pure: reads slots, changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llamaserve.engine.port import PromptPiece, StepPlan
from llamaserve.scheduler.piece_budget import latency_target, piece_budget
from llamaserve.scheduler.prefill_order import PromptState, in_turn, waits_after
from llamaserve.scheduler.prefill_plan import PieceSize
from llamaserve.scheduler.prompt_pieces import PrefillLimits, choose_pieces
from llamaserve.scheduler.slot import Slot, Work
from llamaserve.scheduler.step_cost import StepCostModel, StepShape, piece_cells
from llamaserve.scheduler.tick_policy import StepKind, choose_step


@dataclass(frozen=True, slots=True)
class StepRules:
    """What does not change from step to step."""

    limits: PrefillLimits
    mixed_step: bool
    grant_interval: int
    """Decode steps before a prompt in pieces is granted one, where steps are not mixed."""
    target_itl_ms: float | None
    """As ``latency_target`` takes it."""


class Turn(NamedTuple):
    """What the choice of a step needs to know of those before it."""

    last_kind: StepKind = StepKind.DECODE
    n_decode_steps: int = 0
    """Since a prompt in pieces had one."""
    owes_decode: bool = False
    """Whether the last step was stopped before its decode rows had their tokens."""


class Decision(NamedTuple):
    """What the next step is."""

    turn: Turn
    """For the decision after it."""
    plan: StepPlan
    shape: StepShape
    """What the plan costs."""
    waits: Mapping[int, int]
    """Of each prompt that could have had a piece, turns that went to others."""


def decide_step(
    decoding: Sequence[Slot],
    prefilling: Sequence[Slot],
    rules: StepRules,
    model: StepCostModel,
    turn: Turn,
    *,
    following: Collection[int] = (),
) -> Decision | None:
    """The next step: decode rows, then pieces in the order of their turns; None = nothing to do.

    ``decoding`` and ``prefilling`` are in ascending order. Sequences in ``following`` have no piece: another computes
    what comes next in their prompts.
    """
    works = {slot.seq_id: slot.working for slot in prefilling if slot.seq_id not in following}
    n_begun = sum(work.is_begun for work in works.values())
    kind, n_decode_steps = choose_step(
        n_decoding=len(decoding),
        n_begun=n_begun,
        n_new=len(works) - n_begun,
        mixed_step=rules.mixed_step,
        grant_interval=rules.grant_interval,
        last_kind=turn.last_kind,
        n_decode_steps=turn.n_decode_steps,
        owes_decode=turn.owes_decode,
    )
    if kind is None:
        return None
    rows = [] if kind is StepKind.PROMPT else decoding
    n_attended = sum([slot.working.n_held + 1 for slot in rows])
    shape = StepShape(len(rows), 0, n_attended)
    pieces: list[PromptPiece] = []
    waits: Mapping[int, int] = {}
    if kind is not StepKind.DECODE:
        prompts = [_state_of(seq_id, work) for seq_id, work in works.items()]
        budget = _budget(prompts, works, rules, model, shape)
        sizes = choose_pieces(prompts, rules.limits, kind=kind, n_decoding=len(rows), budget=budget)
        pieces = [works[seq_id].piece(seq_id, n_tokens) for seq_id, n_tokens in sizes]
        waits = waits_after(prompts, sizes)
        shape = _with_pieces(shape, sizes, works)
    plan = StepPlan([slot.seq_id for slot in rows], pieces)
    return Decision(Turn(kind, n_decode_steps), plan, shape, waits)


def _state_of(seq_id: int, work: Work) -> PromptState:
    return PromptState(seq_id, work.n_left_to_feed, work.n_waited, work.admitted_order, _n_to_boundary(work))


def _budget(
    prompts: Sequence[PromptState], works: Mapping[int, Work], rules: StepRules, model: StepCostModel, rows: StepShape
) -> int:
    """Prompt tokens beside the decode rows."""
    first = in_turn(prompts)[0]
    return piece_budget(
        model,
        rows,
        n_held=works[first.seq_id].n_fed,
        target=latency_target(model, rows, rules.target_itl_ms),
        n_left=sum(prompt.n_left for prompt in prompts),
        chunk=rules.limits.chunk,
    )


def _with_pieces(rows: StepShape, sizes: Sequence[PieceSize], works: Mapping[int, Work]) -> StepShape:
    n_cells = sum(piece_cells(works[seq_id].n_fed, n_tokens) for seq_id, n_tokens in sizes)
    return StepShape(rows.n_rows, sum(n_tokens for _, n_tokens in sizes), rows.n_attended + n_cells)


def _n_to_boundary(work: Work) -> int:
    """Tokens a piece may have: one ends where the prefix memory wants to see the sequence (E22)."""
    if not work.is_recomputing:
        for end in work.piece_ends:
            if end > work.n_fed:
                return end - work.n_fed
    return work.n_left_to_feed
