"""What ``bench.tick_time`` found, as tables, words and a plot. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.harness.figures import spread
from bench.harness.limit import Limit
from bench.harness.report import Table
from bench.tick_parts import Beside, Period, cost_per_token, three_largest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIMIT = Limit()


@dataclass(frozen=True)
class Contender:
    """What takes turns with the limit."""

    name: str


ALONE = Contender("alone")
SERVER = Contender("server")


@dataclass(frozen=True)
class Round:
    """One contender at one number of streams, once. The limit has its step only."""

    period: Period
    beside: Beside | None = None


Results = Mapping[str, Sequence[Mapping[int, Round]]]


def costs(results: Results, streams: int) -> dict[str, list[float]]:
    """Seconds a token of each cost, one a round."""
    in_turn = zip(results[LIMIT.name], results[ALONE.name], results[SERVER.name], strict=True)
    rounds = [
        cost_per_token(limit[streams].period, alone[streams].period, server[streams].period, streams)
        for limit, alone, server in in_turn
    ]
    return {name: [of_round[name] for of_round in rounds] for name in rounds[0]}


PERIOD_ROWS = (
    ("batch build", "build"),
    ("llama_decode", "decode"),
    ("sampling, with the token's bytes", "sample"),
    ("to the worker and back", "hand_over"),
    ("text", "text"),
    ("delivery", "deliver"),
    ("scheduler, the rest of its code", "scheduler"),
    ("between two ticks", "between"),
    ("**from tick to tick**", "period"),
)
BESIDE_ROWS = (
    ("event loop, ran (HTTP)", "loop_ran"),
    ("event loop, waited for a core", "loop_waited"),
    ("scheduler thread, ran", "scheduler_ran"),
    ("scheduler thread, waited for a core", "scheduler_waited"),
    ("worker and llama.cpp's threads, ran", "others_ran"),
    ("the client's process, ran", "client_ran"),
    ("a tick's delivery to the event loop's taking it", "loop_wake_up"),
)


def tick_table(results: Results, contender: Contender, streams: Sequence[int]) -> Table:
    """Parts of a period, ms a tick."""
    rows = []
    for name, part in PERIOD_ROWS:
        cells = [[1000 * getattr(one[n].period, part) for one in results[contender.name]] for n in streams]
        rows.append([name, *(spread(cell, 3) for cell in cells)])
    title = f"{contender.name}: steady decode, ms a tick (a token of every stream), median (min..max) of the rounds"
    return Table(title, heads(streams), rows)


def beside_table(results: Results, streams: Sequence[int]) -> Table:
    """What ran beside, µs a token."""
    rows = []
    for name, part in BESIDE_ROWS:
        cells = [[1e6 * getattr(one[n].beside, part) for one in results[SERVER.name]] for n in streams]
        rows.append([name, *(spread(cell, 0) for cell in cells)])
    title = "server: beside the ticks, µs a token over whole requests (the last row: µs a tick)"
    return Table(title, heads(streams), rows)


def cost_table(results: Results, streams: Sequence[int]) -> Table:
    """Costs between the server and the limit, µs a token."""
    by_streams = {n: costs(results, n) for n in streams}
    rows = []
    for name in by_streams[streams[0]]:
        rows.append([name, *(spread([1e6 * cost for cost in by_streams[n][name]], 0) for n in streams)])
    for contender in (LIMIT, ALONE, SERVER):
        per_token = [[1e6 * one[n].period.period / n for one in results[contender.name]] for n in streams]
        rows.append([f"**{contender.name}, all of a token**", *(spread(cell, 0) for cell in per_token)])
    title = "Between llamaserve's server and llama-batched-bench, µs a token; the costs of a round add up to its gap"
    return Table(title, heads(streams), rows)


def named_costs(results: Results, streams: int) -> str:
    """The three largest costs in words."""
    of_costs = costs(results, streams)
    named = [f"{name}, {spread([1e6 * cost for cost in of_costs[name]], 0)} µs" for name in three_largest(of_costs)]
    gap = statistics.median(map(sum, zip(*of_costs.values(), strict=True)))
    count = "1 stream" if streams == 1 else f"{streams} streams"
    return f"The three largest costs a token at {count}: {'; '.join(named)}; the whole gap is {1e6 * gap:.0f} µs."


def heads(streams: Sequence[int]) -> list[str]:
    """Column titles."""
    return ["", *(f"{n} stream{'s' if n > 1 else ''}" for n in streams)]


def draw(figure: Figure, results: Results, streams: Sequence[int]) -> None:
    """A token's time from the limit upwards, cost by cost."""
    axes = figure.subplots()
    figure.suptitle("A token's time in steady decode: the limit and what comes on top")
    names = [str(n) for n in streams]
    floor = [1e6 * statistics.median(one[n].period.period / n for one in results[LIMIT.name]) for n in streams]
    axes.bar(names, floor, label=LIMIT.name, color="lightgrey")
    by_streams = {n: costs(results, n) for n in streams}
    for name in by_streams[streams[0]]:
        # A negative median is noise around nothing: the table has it.
        heights = [max(0.0, 1e6 * statistics.median(by_streams[n][name])) for n in streams]
        axes.bar(names, heights, bottom=floor, label=name)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set(xlabel="streams", ylabel="µs a token")
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize=8)
