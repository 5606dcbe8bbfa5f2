"""When the engine may compute the next step before this one is acted on. Pure.

The next step is known while every running request goes on with exactly one decode row. It stops being known when
somebody comes in, is still in the middle of a prompt, or ends: an end by length is foreseen here, an end-of-generation
token by the engine, a stop string by nobody: then the step that ran ahead is taken back.
"""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.scheduler.slot import Work


def may_run_ahead(works: Sequence[Work], *, n_running: int, n_unfinished_prompts: int, can_admit: bool) -> bool:
    """Whether the rows of a step, those of ``works``, will be the rows of the next one (L4).

    ``n_unfinished_prompts`` counts its rows that draw no token. ``can_admit``: a request waits and could begin; one
    that waits for a slot cannot, and does not disturb.
    """
    if len(works) != n_running or n_unfinished_prompts or can_admit:
        return False
    return all(work.n_generated + 1 < work.n_most for work in works)  # L5
