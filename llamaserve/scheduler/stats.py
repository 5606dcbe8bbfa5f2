"""Numbers about the scheduler at one moment. Any thread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Gauges first, then counters since the start."""

    active_slots: int
    """Slots with a request."""
    prefilling_slots: int
    """Those of them whose prompt is being computed."""
    idle_slots: int
    queue_depth: int
    """Requests that wait for a slot."""
    n_slots: int
    n_batch: int
    n_ctx: int
    used_cells: int
    """KV cells held, as of the last tick."""

    ticks: int
    """Steps run."""
    decode_tokens: int
    """Decode rows computed."""
    prompt_tokens: int
    """Prompt tokens computed."""
    generated_tokens: int
    """Tokens drawn, without end-of-generation tokens."""
    requests_done: int
    requests_cancelled: int
    requests_failed: int
    queue_rejects: int
    """Requests refused because the queue was full."""
