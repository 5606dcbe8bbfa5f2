"""From slots to the plan of the next step. Pure: reads slots, changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from llamaserve.config import SchedulerConfig
from llamaserve.engine.port import ModelInfo, PromptPiece, StepPlan
from llamaserve.scheduler.prefill_plan import PieceSize, plan_pieces
from llamaserve.scheduler.slot import Slot, SlotState, Work
from llamaserve.scheduler.tick_policy import StepKind, choose_step_kind, prompt_budget


class Decision(NamedTuple):
    """What the next step is."""

    kind: StepKind
    plan: StepPlan


def decide_step(
    slots: Sequence[Slot],
    config: SchedulerConfig,
    info: ModelInfo,
    *,
    last_kind: StepKind,
    following: Collection[int] = (),
) -> Decision | None:
    """The next step: decode rows in ascending order, then pieces in the order of admission; None = nothing to do.

    Sequences in ``following`` have none: another computes what comes next in their prompts.
    """
    decoding = [slot.seq_id for slot in slots if slot.state is SlotState.GENERATING]
    prefilling = [slot for slot in slots if slot.state is SlotState.PREFILLING and slot.seq_id not in following]
    kind = choose_step_kind(
        n_decoding=len(decoding),
        n_prefilling=len(prefilling),
        mixed_step=config.mixed_step,
        last_kind=last_kind,
    )
    if kind is None:
        return None
    rows = [] if kind is StepKind.PROMPT else decoding
    pieces = [] if kind is StepKind.DECODE else _cut_pieces(prefilling, config, info, kind, n_decoding=len(rows))
    return Decision(kind, StepPlan(rows, pieces))


def _cut_pieces(
    prefilling: list[Slot], config: SchedulerConfig, info: ModelInfo, kind: StepKind, *, n_decoding: int
) -> list[PromptPiece]:
    works = {slot.seq_id: slot.working for slot in prefilling}
    in_order = sorted(works.items(), key=lambda item: item[1].admitted_order)
    if kind is StepKind.PROMPT:
        in_order = in_order[:1]
    sizes = plan_pieces(
        [PieceSize(seq_id, _n_to_boundary(work)) for seq_id, work in in_order],
        budget=prompt_budget(n_decoding=n_decoding, n_batch=info.n_batch, prefill_chunk=config.prefill_chunk),
        prefill_chunk=config.prefill_chunk,
    )
    pieces = []
    for seq_id, n_tokens in sizes:
        work = works[seq_id]
        end = work.n_fed + n_tokens
        is_last = end == work.n_to_feed and not work.is_recomputing
        pieces.append(PromptPiece(seq_id, work.tokens_to_feed(work.n_fed, end), is_last))
    return pieces


def _n_to_boundary(work: Work) -> int:
    """Tokens a piece may have: one ends where the prefix memory wants to see the sequence (E22)."""
    if not work.is_recomputing:
        for end in work.piece_ends:
            if end > work.n_fed:
                return end - work.n_fed
    return work.n_left_to_feed
