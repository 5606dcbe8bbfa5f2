"""What the scheduler itself costs, a tick and a token, with FakeEngine in place of a model. No model, no native engine.

Run: .venv/bin/python -m bench.tick [--rounds N]

Two cases at each number of slots. Steady: every slot decodes, a tick gives one token to each. Turnover: in every tick
each slot takes a request, computes its prompt of 8 tokens, draws its only token and ends.

FakeEngine is Python too and slows down with the history it keeps, so its share is measured at the engine seam, in each
tick, and is not in the scheduler's figures. Events go to a function that does nothing. A figure is the median of many
ticks; the spread is that of the rounds' medians.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness.figures import spread
from bench.harness.options import RESULTS, shown_command
from bench.harness.report import Report, Table, publish
from bench.phase_clock import ENGINE, PHASES, TICK, PhaseClock, cost_ns
from llamaserve.cache.build import make_prefix_memory
from llamaserve.config import CacheConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.request import GenerationRequest, SamplingParams
from llamaserve.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SLOTS = (1, 8, 64, 250)
QUICK_SLOTS = (1, 8)
N_PROMPT = 8
N_BATCH = 4096  # room for a prompt of every slot, so that a turnover is one tick
ROUNDS = 5
MIN_TICKS = 200
TOKENS_A_ROUND = 20_000  # a round has as many ticks as make so many tokens, so that each size takes about as long
MAX_TICKS = 3000
QUICK_TICKS = 50
ENGINE_CALLS = 4  # new_flag, submit, collect and used_cells
CLOCKED_CALLS = ENGINE_CALLS + len(PHASES) + 1  # and the phases and the tick


@dataclass(frozen=True)
class Ticks:
    """Median microseconds of a case in one round."""

    slots: int
    tick: float
    """FakeEngine included."""
    engine: float
    """FakeEngine's part."""
    scheduler: float
    """The tick without the engine, taken apart tick by tick; with the cost of the clocks around the engine's calls."""
    phases: Mapping[str, float]
    """By phase, without the engine; ``tick`` is what is in no phase. Of other ticks, with more clocks in them."""


class _Setup:
    """A scheduler whose slots can be filled."""

    def __init__(self, slots: int) -> None:
        # The history decides nothing here; a constant is the cheapest continuation there is.
        self.engine = FakeEngine(n_slots=slots, n_ctx=slots * 8192, n_batch=N_BATCH, continuation=lambda _: ord("a"))
        prefixes = make_prefix_memory(self.engine, CacheConfig())
        config = SchedulerConfig(max_queue=0, max_batch_prefill=slots, max_batch_prefill_tokens=0)  # all in one step
        self.scheduler = Scheduler(self.engine, config, lambda events: None, prefixes)
        self._slots = slots
        self._ids = itertools.count()

    def fill(self, max_tokens: int | None) -> None:
        """Submit a request for each slot."""
        for _ in range(self._slots):
            number = next(self._ids)
            prompt = (number % 251, number // 251 % 251, *range(97, 97 + N_PROMPT - 2))  # that share no prefix
            sampling = SamplingParams(ignore_eos=True)
            self.scheduler.submit(GenerationRequest(f"r{number}", prompt, max_tokens, (), sampling))


def measure_steady(slots: int, n_ticks: int) -> Ticks:
    """Every slot decodes in every tick."""

    def run(setup: _Setup) -> Callable[[], None]:
        setup.fill(max_tokens=None)
        setup.scheduler.tick()  # the prompts
        return lambda: None

    def engaged(setup: _Setup) -> bool:
        stats = setup.scheduler.stats()
        return stats.active_slots == slots and stats.decode_tokens == slots * n_ticks

    return _measure(slots, n_ticks, run, engaged)


def measure_turnover(slots: int, n_ticks: int) -> Ticks:
    """Every slot takes a request and ends it in every tick; submitting is not in the tick."""

    def run(setup: _Setup) -> Callable[[], None]:
        return lambda: setup.fill(max_tokens=1)

    def engaged(setup: _Setup) -> bool:
        stats = setup.scheduler.stats()
        return stats.requests_done == slots * n_ticks == stats.generated_tokens

    return _measure(slots, n_ticks, run, engaged)


def _measure(
    slots: int, n_ticks: int, begin: Callable[[_Setup], Callable[[], None]], is_engaged: Callable[[_Setup], bool]
) -> Ticks:
    """Once with clocks around the engine's calls, once with all. Raises RuntimeError when the ticks were others."""
    whole, in_phases = _Setup(slots), _Setup(slots)
    engine_clock, clock = PhaseClock(), PhaseClock()
    engine_clock.watch_engine(whole.engine)
    clock.watch_engine(in_phases.engine)
    clock.watch_phases(in_phases.scheduler)
    ticks = _run(whole, n_ticks, begin, engine_clock)
    parts = [taken for _, taken in _run(in_phases, n_ticks, begin, clock)]
    for setup in (whole, in_phases):
        if not is_engaged(setup):
            raise RuntimeError(f"{slots} slots: a tick was not what it should be: {setup.scheduler.stats()}")
    return Ticks(
        slots,
        tick=statistics.median(total for total, _ in ticks) / 1000,
        engine=statistics.median(taken[ENGINE] for _, taken in ticks) / 1000,
        scheduler=statistics.median(total - taken[ENGINE] for total, taken in ticks) / 1000,
        phases={part: statistics.median(taken[part] for taken in parts) / 1000 for part in (*PHASES, TICK)},
    )


def _run(
    setup: _Setup, n_ticks: int, begin: Callable[[_Setup], Callable[[], None]], clock: PhaseClock
) -> list[tuple[int, Mapping[str, int]]]:
    """Nanoseconds of each tick, and of its parts."""
    before_tick = begin(setup)
    ticks: list[tuple[int, Mapping[str, int]]] = []
    for _ in range(n_ticks):
        before_tick()
        setup.engine.plans.clear()  # what it keeps for tests would grow
        setup.engine.opened.clear()
        clock.take()
        start = time.perf_counter_ns()
        setup.scheduler.tick()
        total = time.perf_counter_ns() - start
        ticks.append((total, clock.take()))
    return ticks


def ticks_of(slots: int, *, is_quick: bool) -> int:
    """How many ticks a round has at so many slots."""
    return QUICK_TICKS if is_quick else min(MAX_TICKS, max(MIN_TICKS, TOKENS_A_ROUND // slots))


Rounds = Mapping[int, Sequence[Ticks]]
"""By number of slots, one a round."""


def cost_table(title: str, rounds: Rounds, unit: str) -> Table:
    """The scheduler's own cost beside FakeEngine's."""
    rows = [
        [
            str(slots),
            spread([ticks.scheduler for ticks in of_slots]),
            spread([ticks.scheduler / slots for ticks in of_slots], 2),
            spread([ticks.engine for ticks in of_slots]),
            spread([ticks.tick for ticks in of_slots]),
        ]
        for slots, of_slots in rounds.items()
    ]
    columns = ["slots", "scheduler, µs/tick", f"scheduler, µs/{unit}", "FakeEngine, µs/tick", "both, µs/tick"]
    return Table(title, columns, rows)


def phase_table(title: str, rounds: Rounds) -> Table:
    """Where the scheduler's own cost is."""
    parts = (*PHASES, TICK)
    rows = []
    for slots, of_slots in rounds.items():
        rows.append([str(slots), *(spread([ticks.phases[part] for ticks in of_slots]) for part in parts)])
    return Table(title, ["slots", *PHASES, "around them"], rows)


def draw(figure: Figure, steady: Rounds, turnover: Rounds) -> None:
    """Cost of a tick over the slots, and the phases of a steady one."""
    costs, phases = figure.subplots(1, 2)
    figure.suptitle("The scheduler's own cost, without engine and clients")
    for rounds, name in ((steady, "steady decode, a token"), (turnover, "turnover, a request")):
        per_row = [statistics.median(t.scheduler / slots for t in of) for slots, of in rounds.items()]
        costs.plot([str(slots) for slots in rounds], per_row, "o-", label=name)
    costs.set(xlabel="slots", ylabel="µs")
    costs.set_ylim(bottom=0)
    names = [str(slots) for slots in steady]
    floor = [0.0] * len(names)
    for part in (*PHASES, TICK):
        shares = [statistics.median(t.phases[part] for t in of) / slots for slots, of in steady.items()]
        phases.bar(names, shares, bottom=floor, label="around them" if part == TICK else part)
        floor = [low + share for low, share in zip(floor, shares, strict=True)]
    phases.set(xlabel="slots", ylabel="steady decode, µs a token, by phase")
    for axes in (costs, phases):
        axes.grid(alpha=0.3, axis="y")
        axes.legend(fontsize=8)


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, choices=range(1, 101), metavar="N", help="default: %(default)s"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of results (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a short run to see that it works; publishes nothing")
    options = parser.parse_args()
    all_slots = QUICK_SLOTS if options.quick else SLOTS
    steady: dict[int, list[Ticks]] = {slots: [] for slots in all_slots}
    turnover: dict[int, list[Ticks]] = {slots: [] for slots in all_slots}
    for round_number in range(options.rounds):
        print(f"round {round_number + 1} of {options.rounds}", file=sys.stderr)
        for slots in all_slots:
            n_ticks = ticks_of(slots, is_quick=options.quick)
            steady[slots].append(measure_steady(slots, n_ticks))
            turnover[slots].append(measure_turnover(slots, max(1, n_ticks // 4)))
    report = Report(
        scenario="tick",
        question="What does the scheduler cost a tick, a token and a request, without model and clients?",
        command=shown_command("tick", sys.argv[1:]),
        setting=f"FakeEngine, prompts of {N_PROMPT} tokens, median of {ticks_of(all_slots[0], is_quick=options.quick)}"
        f" to {ticks_of(all_slots[-1], is_quick=options.quick)} ticks a round, {options.rounds} rounds",
        tables=[
            cost_table("Steady decode, median (min..max) of the rounds", steady, "token"),
            phase_table("Steady decode by phase, µs/tick, engine calls taken out", steady),
            cost_table("Turnover: each slot takes and ends a request in every tick", turnover, "request"),
            phase_table("Turnover by phase, µs/tick, engine calls taken out", turnover),
        ],
        raw={
            name: {slots: [vars(ticks) for ticks in of_slots] for slots, of_slots in rounds.items()}
            for name, rounds in (("steady", steady), ("turnover", turnover))
        },
        notes=[
            f"A clock costs {cost_ns() / 1000:.2f} µs a call. The scheduler's cost has those around the engine's calls"
            f" in it, {ENGINE_CALLS} in a steady tick; the phases are of other ticks, with {CLOCKED_CALLS}.",
            "Submitting a request (another thread's work) is in no figure.",
        ],
        results=options.results,
        is_quick=options.quick,
    )
    publish(report, lambda figure: draw(figure, steady, turnover))


if __name__ == "__main__":
    main()
