"""What a step holds: decode rows, prompt pieces, or both. Pure.

Decode rows come first: a running stream must not wait for somebody's prompt. A batch has room for a row of each slot,
so beside a prompt there is always some for a piece of it. Where steps may not be mixed the two kinds take turns, by the
rules of ``grant_interval`` (K9, K105). Streams advance in every second step at least: also where clients send prompts
and leave, which stops the steps that hold pieces of them.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from llamaserve.scheduler.grant_interval import TickAction, TickState, decide_tick


class StepKind(enum.Enum):
    """What a step is made of."""

    DECODE = "decode"
    """Decode rows only."""
    PROMPT = "prompt"
    """One prompt piece, alone."""
    MIXED = "mixed"
    """All decode rows, and prompt pieces in the room that is left."""


class StepChoice(NamedTuple):
    """The kind of a step, and the count of decode steps to give to the next choice."""

    kind: StepKind | None
    """None: no sequence has anything to compute."""
    n_decode_steps: int


def choose_step(
    *,
    n_decoding: int,
    n_begun: int,
    n_new: int,
    mixed_step: bool,
    grant_interval: int,
    last_kind: StepKind,
    n_decode_steps: int,
    owes_decode: bool,
) -> StepChoice:
    """The kind of the next step, by T12.

    ``owes_decode``: the last step had decode rows and was stopped for the sake of a prompt nobody wants any more.
    ``n_begun`` prompts have had a piece, ``n_new`` have not. Mixed steps make no difference between them. Where steps
    are not mixed a new prompt has its first piece at once, but never right after another prompt step: prompts that
    end with their first token would else keep streams waiting for ever.
    """
    n_prompts = n_begun + n_new
    if not n_prompts:  # nearly every step
        return StepChoice(StepKind.DECODE if n_decoding else None, 0)
    if owes_decode and n_decoding:
        return StepChoice(StepKind.DECODE, n_decode_steps)
    must_decode = n_decoding > 0 and last_kind is StepKind.PROMPT
    decision = decide_tick(
        TickState(
            speculative_pending=False,
            speculative_yielded=False,
            chunked_prefill_in_progress=(n_prompts if mixed_step else n_begun) > 0,
            active_is_empty=n_decoding == 0,
            active_is_full=n_prompts == 0,
            queue_is_empty=n_new == 0 or must_decode,
            should_preempt=False,
            mixed_step_enabled=mixed_step,
            decode_ticks_since_prefill_grant=n_decode_steps,
            prefill_grant_interval=grant_interval,
        )
    )
    return StepChoice(_kind_of(decision.action, mixed_step), decision.decode_ticks_since_prefill_grant)


def _kind_of(action: TickAction, mixed_step: bool) -> StepKind | None:
    if action is TickAction.IDLE:
        return None
    if action is TickAction.DECODE:
        return StepKind.DECODE
    return StepKind.MIXED if mixed_step else StepKind.PROMPT
