"""The parts of a tick's period, what ran beside the ticks, and the costs between the server and the limit. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.tick_log import HandOver, TickRecord


@dataclass(frozen=True)
class Period:
    """Mean seconds from one tick's start to the next one's, and its parts, which add up to it."""

    period: float
    decode: float
    sample: float
    build: float
    hand_over: float
    """To the native worker and back: the engine's calls without what it computes; plan and outputs are converted. Below
    0 where steps run ahead: then the worker computes while the tick does other things."""
    text: float
    deliver: float
    scheduler: float
    between: float
    """From the end of a tick to the start of the next."""


@dataclass(frozen=True)
class Beside:
    """Seconds a token that other threads and the client used beside the ticks; they are in no part of the period."""

    loop_ran: float
    loop_waited: float
    """The event loop was ready to run and had no core."""
    scheduler_ran: float
    scheduler_waited: float
    others_ran: float
    """The native worker and llama.cpp's threads, with the time they spin."""
    client_ran: float
    loop_wake_up: float
    """Mean time from the delivery of a tick's events until the event loop takes them."""


def periods_of(ticks: Sequence[TickRecord]) -> Period:
    """The mean parts of consecutive ticks. Raises RuntimeError for fewer than two."""
    n = len(ticks) - 1
    if n < 1:
        raise RuntimeError(f"{len(ticks)} steady ticks: at least 2 are needed")

    def mean(part: Callable[[TickRecord], float]) -> float:
        return sum(part(tick) for tick in ticks[:n]) / n

    whole = (ticks[n].start - ticks[0].start) / n
    return Period(
        period=whole,
        decode=mean(lambda tick: tick.decode),
        sample=mean(lambda tick: tick.sample),
        build=mean(lambda tick: tick.build),
        hand_over=mean(lambda tick: tick.engine - tick.decode - tick.sample - tick.build),
        text=mean(lambda tick: tick.text),
        deliver=mean(lambda tick: tick.deliver),
        scheduler=mean(lambda tick: tick.scheduler),
        between=whole - mean(lambda tick: tick.end - tick.start),
    )


def only_decode(seconds: float) -> Period:
    """The period of a program that does nothing else."""
    return Period(
        period=seconds, decode=seconds, sample=0, build=0, hand_over=0, text=0, deliver=0, scheduler=0, between=0
    )


@dataclass(frozen=True)
class Cost:
    """What one thing costs beyond the limit, in seconds a token."""

    name: str
    of: Callable[[Period, Period, Period], float]
    """From the limit's, the lone scheduler's and the server's period, in seconds a step."""


COSTS = (
    Cost("llama_decode, slower than in llama-batched-bench", lambda limit, alone, _: alone.decode - limit.decode),
    Cost("llama_decode, slower beside HTTP and a client", lambda _, alone, server: server.decode - alone.decode),
    Cost("sampling", lambda _, __, server: server.sample),
    Cost("building the batch", lambda _, __, server: server.build),
    Cost("the way to the worker and back", lambda _, __, server: server.hand_over),
    Cost("text", lambda _, __, server: server.text),
    Cost("the scheduler's own code", lambda _, __, server: server.scheduler + server.between),
    Cost("delivery to the event loop", lambda _, __, server: server.deliver),
)
"""They add up to the server's period less the limit's."""


def cost_per_token(limit: Period, alone: Period, server: Period, streams: int) -> dict[str, float]:
    """Seconds a token of each cost, by name."""
    return {cost.name: cost.of(limit, alone, server) / streams for cost in COSTS}


def three_largest(of_costs: Mapping[str, Sequence[float]]) -> list[str]:
    """Names of the three with the largest medians, largest first; fewer where fewer cost anything."""
    medians = {name: statistics.median(values) for name, values in of_costs.items()}
    return sorted((name for name in medians if medians[name] > 0), key=lambda name: -medians[name])[:3]


def wake_up(hand_overs: Sequence[HandOver], start: float, end: float) -> float:
    """Mean seconds from delivery to the event loop, of what was delivered in a time. Raises RuntimeError for none."""
    waits = [handed - delivered for delivered, handed in hand_overs if start <= delivered <= end]
    if not waits:
        raise RuntimeError("nothing was delivered to the event loop while the streams ran")
    return statistics.fmean(waits)
