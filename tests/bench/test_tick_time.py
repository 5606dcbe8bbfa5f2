"""The scenario ``tick_time``: a tick's parts, and the costs between the server and the limit."""

from __future__ import annotations

import pytest

from bench.phase_clock import PHASES
from bench.tick_log import HandOver, TickLog, TickRecord, steady
from bench.tick_parts import COSTS, Beside, Period, cost_per_token, only_decode, periods_of, three_largest, wake_up
from bench.tick_tables import ALONE, LIMIT, SERVER, Round, beside_table, cost_table, named_costs, tick_table
from bench.timed_server import ThreadTime, spent_between
from llamaserve.cache.build import make_prefix_memory
from llamaserve.config import CacheConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.engine.port import StepReport, StepTime
from llamaserve.request import GenerationRequest
from llamaserve.scheduler import slot as slot_module
from llamaserve.scheduler.scheduler import Scheduler
from llamaserve.text import TokenText

SERVED = Period(
    period=20.0, decode=9.0, sample=2.0, build=1.0, hand_over=3.0, text=0.5, deliver=1.5, scheduler=2.0, between=1.0
)
BY_ITSELF = Period(
    period=14.0, decode=8.0, sample=2.0, build=1.0, hand_over=1.0, text=0.5, deliver=0.5, scheduler=0.5, between=0.5
)
ASIDE = Beside(
    loop_ran=1e-4,
    loop_waited=2e-4,
    scheduler_ran=3e-4,
    scheduler_waited=4e-4,
    others_ran=5e-3,
    client_ran=6e-4,
    loop_wake_up=7e-4,
)


def tick(start: float, n_decoding: int = 2, n_pieces: int = 0) -> TickRecord:
    """A tick of 6 seconds: 3 in the engine, of which 2.5 are the step's own."""
    return TickRecord(
        start=start,
        end=start + 6,
        n_decoding=n_decoding,
        n_pieces=n_pieces,
        build=0.25,
        decode=2.0,
        sample=0.25,
        engine=3.0,
        text=0.5,
        deliver=0.5,
        scheduler=2.0,
    )


def test_the_parts_of_a_period_add_up_to_it() -> None:
    period = periods_of([tick(0.0), tick(10.0), tick(20.0)])
    parts = [value for name, value in vars(period).items() if name != "period"]
    assert period.period == 10.0
    assert sum(parts) == pytest.approx(10.0)


def test_a_period_goes_from_the_start_of_a_tick_to_the_start_of_the_next() -> None:
    period = periods_of([tick(0.0), tick(10.0)])
    assert period.between == 4.0
    assert period.hand_over == 0.5


def test_one_tick_is_no_period() -> None:
    with pytest.raises(RuntimeError, match="1 steady ticks: at least 2"):
        periods_of([tick(0.0)])


def test_steady_are_the_ticks_of_all_streams_without_a_prompt_within_the_time() -> None:
    ticks = [tick(0.0), tick(10.0, n_decoding=1), tick(20.0, n_pieces=1), tick(30.0), tick(40.0)]
    assert steady(ticks, 2, 5.0, 40.0) == [tick(30.0)]


def test_the_costs_add_up_to_the_gap_between_server_and_limit() -> None:
    costs = cost_per_token(only_decode(6.0), BY_ITSELF, SERVED, streams=2)
    assert sum(costs.values()) == pytest.approx((20.0 - 6.0) / 2)
    assert costs.keys() == {cost.name for cost in COSTS}


def test_what_llama_decode_is_slower_beside_http_stands_apart_from_what_it_is_slower_than_the_limit() -> None:
    costs = cost_per_token(only_decode(6.0), BY_ITSELF, SERVED, streams=1)
    assert costs["llama_decode, slower than in llama-batched-bench"] == 2.0
    assert costs["llama_decode, slower beside HTTP and a client"] == 1.0
    assert costs["the scheduler's own code"] == 3.0


def test_the_three_largest_costs_are_named_by_their_medians_largest_first() -> None:
    costs = {"a": [1.0, 9.0, 1.0], "b": [2.0, 2.0, 2.0], "c": [3.0], "d": [4.0], "e": [0.0]}
    assert three_largest(costs) == ["d", "c", "b"]


def test_what_costs_nothing_is_not_among_the_largest() -> None:
    assert three_largest({"a": [1.0], "b": [0.0], "c": [-1.0], "d": [-2.0]}) == ["a"]


def test_the_wake_up_of_the_loop_is_of_what_was_delivered_in_the_time() -> None:
    hand_overs = [HandOver(0.0, 9.0), HandOver(1.0, 1.5), HandOver(2.0, 2.25), HandOver(3.0, 9.0)]
    assert wake_up(hand_overs, 1.0, 2.0) == pytest.approx(0.375)
    with pytest.raises(RuntimeError, match="nothing was delivered"):
        wake_up(hand_overs, 4.0, 5.0)


def test_a_thread_that_began_in_between_began_with_nothing() -> None:
    before = {1: ThreadTime(1.0, 2.0), 2: ThreadTime(5.0, 5.0)}
    after = {1: ThreadTime(1.5, 2.0), 3: ThreadTime(0.25, 0.5)}
    assert spent_between(before, after) == {1: ThreadTime(0.5, 0.0), 3: ThreadTime(0.25, 0.5)}


class TimedEngine(FakeEngine):
    """A FakeEngine that tells where its steps' time went."""

    @property
    def report(self) -> StepReport:
        """The same for every step."""
        return StepReport(StepTime(0.1, 0.2, 0.3))


def test_a_log_has_a_record_of_every_tick_that_ran_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_module, "TokenText", TokenText)  # put back afterwards
    engine = TimedEngine()
    scheduler = Scheduler(engine, SchedulerConfig(), lambda events: None, make_prefix_memory(engine, CacheConfig()))
    log = TickLog()
    log.watch(scheduler, engine)
    scheduler.submit(GenerationRequest("a", (97, 98), 3))
    while scheduler.tick():
        pass
    assert [(record.n_decoding, record.n_pieces) for record in log.ticks] == [(0, 1), (1, 0), (1, 0)]
    record = log.ticks[1]
    assert record[4:7] == (0.1, 0.2, 0.3)
    parts = record.engine + record.text + record.deliver + record.scheduler
    assert 0 < parts <= record.end - record.start
    assert record.text > 0
    assert set(PHASES) == {"take", "admit", "decide", "run", "apply", "deliver"}


def results() -> dict[str, list[dict[int, Round]]]:
    """Two equal rounds at one and two streams."""
    return {
        LIMIT.name: [{n: Round(only_decode(6e-3)) for n in (1, 2)}] * 2,
        ALONE.name: [{n: Round(scaled(BY_ITSELF)) for n in (1, 2)}] * 2,
        SERVER.name: [{n: Round(scaled(SERVED), ASIDE) for n in (1, 2)}] * 2,
    }


def scaled(period: Period) -> Period:
    """The period in milliseconds."""
    return Period(**{name: value / 1000 for name, value in vars(period).items()})


def test_the_result_names_the_three_largest_costs_and_the_gap() -> None:
    words = named_costs(results(), 2)
    assert "The three largest costs a token at 2 streams: the way to the worker and back, 1500 (1500..1500) µs" in words
    assert "the whole gap is 7000 µs" in words


def test_the_tables_show_the_parts_of_a_tick_and_what_ran_beside() -> None:
    assert "| llama_decode | 9.000 (9.000..9.000) |" in tick_table(results(), SERVER, (1, 2)).markdown()
    assert "| event loop, ran (HTTP) | 100 (100..100) |" in beside_table(results(), (1, 2)).markdown()
    assert "| **server, all of a token** | 20000 (20000..20000) | 10000" in cost_table(results(), (1, 2)).markdown()
