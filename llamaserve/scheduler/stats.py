"""Numbers about the scheduler: counted as it works, read as a snapshot."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from llamaserve.cache.prefix_memory import PrefixCounters, PrefixGauges, PrefixMemory
from llamaserve.engine.port import ModelInfo, StepReport
from llamaserve.errors import Cancelled, DeadlineExceeded
from llamaserve.request import Failed, Finished
from llamaserve.scheduler.slot import Slot, SlotState
from llamaserve.telemetry.latencies import Latencies, LatencySnapshot


class Discard(enum.Enum):
    """What took a step back that ran ahead."""

    FINISH = "finish"
    CANCEL = "cancel"
    FAILURE = "failure"
    ROOM = "room"
    """Cells were wanted that parked sequences had."""

    @classmethod
    def of(cls, event: Finished | Failed) -> Discard:
        """By how a request ended."""
        if isinstance(event, Finished):
            return cls.FINISH
        return cls.CANCEL if isinstance(event.error, Cancelled) else cls.FAILURE


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler at one moment: gauges first, then counters since the start. Any thread."""

    active_slots: int
    """Slots with a request."""
    prefilling_slots: int
    """Those of them whose prompt is being computed."""
    idle_slots: int
    queue_depth: int
    """Requests that wait for a slot, as of the last tick: one that came during a step is not seen before the next."""
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
    """Also those that waited too long."""
    requests_failed: int
    queue_rejects: int
    """Requests refused because as many waited as may."""
    token_rejects: int
    """Requests refused because as many prompt tokens waited as may."""
    preempted_requests: int
    """Requests that gave their place up and wait to come back: a gauge."""
    preemptions: int
    recomputed_tokens: int
    """Tokens computed again for texts that came back without their cells; a prompt begun again counts as a prompt."""
    decode_steps: int
    """Steps without a prompt piece."""
    lookahead_steps: int
    """Those of them that were computed before the step before was acted on (L17)."""
    lookahead_discards: Mapping[Discard, int]
    """Steps that ran ahead in vain, by what took them back."""
    kv_purges: int
    """Parked sequences forgotten because no cell was free."""
    batch_splits: int
    """Times a batch was halved because it did not fit."""
    failed_steps: int
    """Steps in which nothing worked."""
    prefix: PrefixCounters
    """What the prefix memory has done."""
    prefix_gauges: PrefixGauges
    build_s: float
    decode_s: float
    sample_s: float
    gather_s: float
    """Seconds all steps spent filling batches, in the model, drawing tokens, and putting cells side by side."""
    latencies: LatencySnapshot
    """How long requests and steps took."""


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
    preemptions: int = 0
    recomputed_tokens: int = 0
    decode_steps: int = 0
    lookahead_steps: int = 0
    lookahead_discards: dict[Discard, int] = field(default_factory=lambda: dict.fromkeys(Discard, 0))
    kv_purges: int = 0
    batch_splits: int = 0
    failed_steps: int = 0
    build_s: float = 0.0
    decode_s: float = 0.0
    sample_s: float = 0.0
    gather_s: float = 0.0
    used_cells: int = 0
    """The one gauge: the engine tells it between two steps only."""
    latencies: Latencies = field(default_factory=Latencies)

    def count_step(self, report: StepReport, *, is_decode: bool) -> None:
        """Count a step that came back."""
        time = report.time
        self.build_s += time.build
        self.decode_s += time.decode
        self.sample_s += time.sample
        self.gather_s += time.gather
        self.latencies.observe_step(time.build, time.decode, time.sample)
        self.kv_purges += len(report.purged)
        self.batch_splits += report.n_splits
        self.decode_steps += is_decode
        self.lookahead_steps += report.ran_ahead

    def count_end(self, event: Finished | Failed) -> None:
        """Count a request that has its terminal event."""
        if isinstance(event, Finished):
            self.requests_done += 1
            self.latencies.observe_end(event.timings.total_s)
        elif isinstance(event.error, Cancelled | DeadlineExceeded):
            self.requests_cancelled += 1
        else:
            self.requests_failed += 1

    def snapshot(
        self,
        info: ModelInfo,
        slots: Sequence[Slot],
        *,
        queue_depth: int,
        queue_rejects: int,
        token_rejects: int,
        preempted_requests: int,
        prefixes: PrefixMemory,
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
            token_rejects=token_rejects,
            preempted_requests=preempted_requests,
            preemptions=self.preemptions,
            recomputed_tokens=self.recomputed_tokens,
            decode_steps=self.decode_steps,
            lookahead_steps=self.lookahead_steps,
            lookahead_discards=dict(self.lookahead_discards),
            kv_purges=self.kv_purges,
            batch_splits=self.batch_splits,
            failed_steps=self.failed_steps,
            prefix=replace(prefixes.counters),
            prefix_gauges=prefixes.gauges(),
            build_s=self.build_s,
            decode_s=self.decode_s,
            sample_s=self.sample_s,
            gather_s=self.gather_s,
            latencies=self.latencies.snapshot(),
        )
