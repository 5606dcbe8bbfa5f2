"""The clocks that tick and tick_time wrap around the product's methods."""

from __future__ import annotations

import pytest

from bench.phase_clock import ENGINE, PHASES, TICK, PhaseClock, cost_ns
from llamaserve.cache.build import make_prefix_memory
from llamaserve.config import CacheConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.request import GenerationRequest
from llamaserve.scheduler.scheduler import Scheduler


class SteppingClock:
    """Nanoseconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def test_what_a_part_spends_in_another_part_counts_for_the_other() -> None:
    time = SteppingClock()
    clock = PhaseClock(time)

    def engine() -> None:
        time.now += 70

    timed_engine = clock.wrap("engine", engine)

    def run() -> None:
        time.now += 10
        timed_engine()
        time.now += 20
        timed_engine()

    clock.wrap("run", run)()
    assert clock.take() == {"run": 30, "engine": 140}


def test_taking_starts_again_from_zero() -> None:
    time = SteppingClock()
    clock = PhaseClock(time)

    def work() -> None:
        time.now += 5

    timed = clock.wrap("work", work)
    timed()
    timed()
    assert clock.take() == {"work": 10}
    timed()
    assert clock.take() == {"work": 5}


def test_a_call_that_raises_is_timed_and_the_caller_keeps_its_own_part() -> None:
    time = SteppingClock()
    clock = PhaseClock(time)

    def fail() -> None:
        time.now += 3
        raise ValueError("no")

    timed_fail = clock.wrap("inner", fail)

    def outer() -> None:
        time.now += 1
        with pytest.raises(ValueError, match="no"):
            timed_fail()

    clock.wrap("outer", outer)()
    assert clock.take() == {"inner": 3, "outer": 1}


def test_a_method_the_product_does_not_have_any_more_is_an_error_that_names_it() -> None:
    with pytest.raises(RuntimeError, match="object has no method _decide"):
        PhaseClock().wrap_method("decide", object(), "_decide")


def test_the_parts_of_a_tick_are_its_six_phases_the_engine_and_the_rest() -> None:
    engine = FakeEngine()
    scheduler = Scheduler(engine, SchedulerConfig(), lambda events: None, make_prefix_memory(engine, CacheConfig()))
    clock = PhaseClock()
    clock.watch_engine(engine)
    clock.watch_phases(scheduler)
    scheduler.submit(GenerationRequest("a", (97, 98), 4))
    assert scheduler.tick()
    spent = clock.take()
    assert spent.keys() == {*PHASES, ENGINE, TICK}
    assert all(nanoseconds > 0 for nanoseconds in spent.values())


def test_the_cost_of_a_clock_is_a_number_of_nanoseconds() -> None:
    assert 0 <= cost_ns(repetitions=10) < 1e9
