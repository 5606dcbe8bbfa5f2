"""Times the parts of a tick by wrapping methods of one scheduler, its engine and its text; the product is not changed.

What a wrapped call spends in other wrapped calls counts for those, so the parts of a tick add up to the tick. A wrapped
call takes a little longer; ``cost_ns`` measures how much. One thread at a time, the scheduler's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

PHASES: Mapping[str, str] = {
    "take": "_take_commands",
    "admit": "_admit",
    "decide": "_decide",
    "run": "_run",
    "apply": "_apply",
    "deliver": "_deliver",
}
"""The six phases of a tick, and the methods of ``Scheduler`` they are."""
ENGINE = "engine"
ENGINE_METHODS = ("open", "submit", "collect", "unwind", "suspend", "resume", "new_flag", "close", "used_cells")
TICK = "tick"
"""The tick itself: what is in none of the phases."""


class PhaseClock:
    """Adds up nanoseconds by part. ``take`` gives them out and starts again from zero."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._spent: dict[str, int] = {}
        self._inside = 0  # of the call under way: what wrapped calls inside it took

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed as this part."""
        self._spent.setdefault(part, 0)
        spent, clock = self._spent, self._clock

        def timed(*arguments: Any, **named: Any) -> Any:
            inside_of_caller, self._inside = self._inside, 0
            start = clock()
            try:
                return function(*arguments, **named)
            finally:
                total = clock() - start
                spent[part] += total - self._inside
                self._inside = inside_of_caller + total

        return timed

    def wrap_method(self, part: str, owner: object, name: str) -> None:
        """Time a method of one object. Raises RuntimeError when it has none of this name."""
        method = getattr(owner, name, None)
        if method is None:
            raise RuntimeError(f"{type(owner).__name__} has no method {name}: the bench must follow the product")
        setattr(owner, name, self.wrap(part, method))

    def watch_engine(self, engine: object) -> None:
        """Time every call of the scheduler into the engine."""
        for name in ENGINE_METHODS:
            self.wrap_method(ENGINE, engine, name)

    def watch_phases(self, scheduler: object) -> None:
        """Time the phases of a scheduler, and its tick."""
        for phase, name in PHASES.items():
            self.wrap_method(phase, scheduler, name)
        self.wrap_method(TICK, scheduler, TICK)

    def take(self) -> dict[str, int]:
        """Nanoseconds by part since the last call."""
        taken = dict(self._spent)
        for part in self._spent:
            self._spent[part] = 0
        return taken


def cost_ns(repetitions: int = 2000) -> float:
    """What a wrapped call takes longer than a plain one, in nanoseconds."""

    def nothing() -> None:
        pass

    def median_ns(function: Callable[[], None]) -> float:
        times = []
        for _ in range(repetitions):
            start = time.perf_counter_ns()
            function()
            times.append(time.perf_counter_ns() - start)
        return statistics.median(times)

    return max(0.0, median_ns(PhaseClock().wrap("nothing", nothing)) - median_ns(nothing))
