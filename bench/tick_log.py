"""Where every tick of one scheduler spent its time: a record a tick, kept until it is asked for.

Works by wrapping what the product has; nothing of it is changed. Scheduler thread, but for the loop's hand-over.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bench.phase_clock import ENGINE, PHASES, TICK, PhaseClock
from llamaserve import service as service_module
from llamaserve.engine.port import Engine, RowOutput, StepPlan, StepReport, Ticket
from llamaserve.scheduler import slot as slot_module
from llamaserve.scheduler.scheduler import Scheduler
from llamaserve.text import TokenText

TEXT = "text"
SCHEDULER_PHASES = tuple(phase for phase in PHASES if phase != "deliver")


class TickRecord(NamedTuple):
    """One tick that ran a step. Seconds; start and end are of ``time.perf_counter()``, which processes share."""

    start: float
    end: float
    n_decoding: int
    n_pieces: int
    build: float
    decode: float
    sample: float
    engine: float
    """All calls into the engine: the three above, the way to the worker and back, and other calls."""
    text: float
    deliver: float
    scheduler: float
    """The rest of the tick."""


class HandOver(NamedTuple):
    """The events of one tick on their way to the event loop."""

    delivered: float
    handed: float
    """When the loop took them."""


class TickLog:
    """Records the ticks of the scheduler it watches. One in a process: text is timed by class, not by object."""

    def __init__(self) -> None:
        self.ticks: list[TickRecord] = []
        self.hand_overs: list[HandOver] = []
        self.scheduler_thread = 0
        """Its id for the kernel."""
        self._clock = PhaseClock()
        self._collected: list[tuple[StepPlan, StepReport]] = []  # steps of the tick under way
        self._delivered: deque[float] = deque()

    def watch(self, scheduler: Scheduler, engine: Engine) -> None:
        """Record from now on. Raises RuntimeError when the product has other parts than this knows."""
        self._clock.watch_engine(engine)
        self._clock.watch_phases(scheduler)
        self._watch_plans(engine)
        timed = {name: self._clock.wrap(TEXT, vars(TokenText)[name]) for name in ("push", "flush")}
        # Its slots stay those of TokenText: no dictionary is made for each text.
        vars(slot_module)["TokenText"] = type("TimedTokenText", (TokenText,), {"__slots__": (), **timed})
        vars(scheduler)["tick"] = self._recorded(scheduler.tick)

    def watch_event_loop(self, scheduler: Scheduler) -> None:
        """Record how long the events of a tick wait for the event loop; all their consumers must be on one."""
        deliver_events = vars(scheduler)["_deliver_events"]
        hand_over = vars(service_module)["_hand_over"]

        def noted_deliver(events: Any) -> None:
            self._delivered.append(time.perf_counter())
            deliver_events(events)

        def noted_hand_over(batch: Any) -> None:
            self.hand_overs.append(HandOver(self._delivered.popleft(), time.perf_counter()))
            hand_over(batch)

        vars(scheduler)["_deliver_events"] = noted_deliver
        vars(service_module)["_hand_over"] = noted_hand_over

    def _watch_plans(self, engine: Engine) -> None:
        submit, collect = engine.submit, engine.collect
        submitted: dict[Ticket, StepPlan] = {}

        def noted_submit(plan: StepPlan, *arguments: Any, **named: Any) -> Ticket:
            ticket = submit(plan, *arguments, **named)
            submitted.clear()  # one is outstanding at most; a step that failed was never collected
            submitted[ticket] = plan
            return ticket

        def noted_collect(ticket: Ticket) -> Sequence[RowOutput]:
            outputs = collect(ticket)
            self._collected.append((submitted.pop(ticket), engine.report))
            return outputs

        vars(engine).update(submit=noted_submit, collect=noted_collect)

    def _recorded(self, tick: Callable[[], bool]) -> Callable[[], bool]:
        def recorded() -> bool:
            self._collected.clear()
            self._clock.take()
            start = time.perf_counter()
            was_busy = tick()
            end = time.perf_counter()
            if self._collected:
                self.scheduler_thread = threading.get_native_id()
                self.ticks.append(_record(start, end, *self._collected[-1], self._clock.take()))
            return was_busy

        return recorded


def _record(start: float, end: float, plan: StepPlan, report: StepReport, spent_ns: dict[str, int]) -> TickRecord:
    inside = report.time
    spent = {part: nanoseconds / 1e9 for part, nanoseconds in spent_ns.items()}
    return TickRecord(
        start,
        end,
        len(plan.decode),
        len(plan.pieces),
        inside.build,
        inside.decode,
        inside.sample,
        spent[ENGINE],
        spent[TEXT],
        spent["deliver"],
        spent[TICK] + sum(spent[phase] for phase in SCHEDULER_PHASES),
    )


def steady(ticks: Sequence[TickRecord], n_streams: int, start: float, end: float) -> list[TickRecord]:
    """The ticks within a time in which exactly so many texts went on and no prompt was computed."""
    return [
        tick
        for tick in ticks
        if tick.start >= start and tick.end <= end and tick.n_decoding == n_streams and tick.n_pieces == 0
    ]
