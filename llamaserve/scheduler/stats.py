"""Numbers about the scheduler: counted as it works, read as a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llamaserve.engine.port import ModelInfo
from llamaserve.errors import Cancelled
from llamaserve.request import Failed, Finished
from llamaserve.scheduler.slot import Slot, SlotState


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler at one moment: gauges first, then counters since the start. Any thread."""

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


@dataclass(slots=True)
class Counters:
    """What the scheduler has done since the start; the fields mean what they mean in ``SchedulerStats``.

    Written by the scheduler thread only; any thread may read, and finds them at most one row apart.
    """

    ticks: int = 0
    decode_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    requests_done: int = 0
    requests_cancelled: int = 0
    requests_failed: int = 0
    used_cells: int = 0
    """The one gauge: the engine tells it between two steps only."""

    def count_end(self, event: Finished | Failed) -> None:
        """Count a request that has its terminal event."""
        if isinstance(event, Finished):
            self.requests_done += 1
        elif isinstance(event.error, Cancelled):
            self.requests_cancelled += 1
        else:
            self.requests_failed += 1

    def snapshot(
        self, info: ModelInfo, slots: Sequence[Slot], *, queue_depth: int, queue_rejects: int
    ) -> SchedulerStats:
        """All numbers as they are now. Any thread."""
        states = [slot.state for slot in slots]
        idle_slots = states.count(SlotState.IDLE)
        return SchedulerStats(
            active_slots=len(states) - idle_slots,
            prefilling_slots=states.count(SlotState.PREFILLING),
            idle_slots=idle_slots,
            queue_depth=queue_depth,
            n_slots=info.n_slots,
            n_batch=info.n_batch,
            n_ctx=info.n_ctx,
            used_cells=self.used_cells,
            ticks=self.ticks,
            decode_tokens=self.decode_tokens,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            requests_done=self.requests_done,
            requests_cancelled=self.requests_cancelled,
            requests_failed=self.requests_failed,
            queue_rejects=queue_rejects,
        )
