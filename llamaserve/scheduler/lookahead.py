"""When the engine may compute the next step before this one is acted on. Pure.

The next step is known while every running request goes on with exactly one decode row. It stops being known when
somebody comes in, is still in the middle of a prompt, or ends: an end by length is foreseen here, an end-of-generation
token by the engine, a stop string by nobody: then the step that ran ahead is taken back.
"""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.scheduler.finish import finish_reason
from llamaserve.scheduler.slot import Work


def will_finish(work: Work, n_ctx_seq: int) -> bool:
    """Whether the next token ends the request whatever it is (L5)."""
    reason = finish_reason(
        is_eog=False,
        is_stopped=False,
        n_generated=work.n_generated + 1,
        max_tokens=work.request.max_tokens,
        n_prompt=work.n_prompt,
        n_ctx_seq=n_ctx_seq,
    )
    return reason is not None


def may_run_ahead(
    works: Sequence[Work], *, n_running: int, n_ctx_seq: int, n_unfinished_prompts: int, can_admit: bool
) -> bool:
    """Whether the rows of a step, those of ``works``, will be the rows of the next one (L4).

    ``n_unfinished_prompts`` counts its rows that draw no token. ``can_admit``: a request waits and could begin; one
    that waits for a slot cannot, and does not disturb.
    """
    if len(works) != n_running or n_unfinished_prompts or can_admit:
        return False
    return not any(will_finish(work, n_ctx_seq) for work in works)
