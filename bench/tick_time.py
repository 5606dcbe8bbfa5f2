"""Where a tick's time goes in steady decode, and what stands between llamaserve and llama-batched-bench.

Run: make bench-peers, then .venv/bin/python -m bench.tick_time [--rounds N] [-m MODEL]

Three things take turns, with the same model, threads, context and lengths:

- llama-batched-bench: the limit, nothing but llama_decode.
- alone: llamaserve's scheduler and engine in a loop, their events thrown away: no event loop, no HTTP, no client.
- server: llamaserve's HTTP server as a process of its own, with a client that reads every stream.

The last two have clocks in them (bench/phase_clock.py) and are otherwise the product's own parts. Their difference is
what HTTP and a client on the same cores do to a tick.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from bench.harness.figures import require_complete
from bench.harness.limit import Limit
from bench.harness.models import n_vocab
from bench.harness.options import read_options
from bench.harness.prompts import distinct_prompts
from bench.harness.report import Report, publish
from bench.harness.rounds import alternate
from bench.harness.serving import Setting
from bench.tick_log import TickLog, steady
from bench.tick_parts import Beside, only_decode, periods_of, wake_up
from bench.tick_tables import (
    ALONE,
    LIMIT,
    SERVER,
    Contender,
    Round,
    beside_table,
    cost_table,
    draw,
    named_costs,
    tick_table,
)
from bench.timed_server import ThreadTime, TimedServer, spent_between, timed_serving
from llamaserve.cache.build import make_prefix_memory
from llamaserve.config import CacheConfig, EngineConfig, SchedulerConfig
from llamaserve.engine.native import NativeEngine
from llamaserve.loadtest.call import Call
from llamaserve.loadtest.drive import together
from llamaserve.loadtest.outcome import Outcome
from llamaserve.request import GenerationRequest, SamplingParams
from llamaserve.scheduler.scheduler import Scheduler

STREAMS = (1, 4, 8)
SLOTS = max(STREAMS)
N_CTX = 8192
N_PROMPT = 20
N_GENERATED = 128
ROUNDS = 4
QUICK_STREAMS = (1, 2)
QUICK_GENERATED = 16
WARM_UP_SEED = 1_000_000


def run_limit(setting: Setting, streams: Sequence[int], n_generated: int) -> dict[int, Round]:
    """A step of the limit for each number of streams."""
    rows = LIMIT.rows(setting, n_prompt=N_PROMPT, n_generated=n_generated, streams=streams)
    return {n: Round(only_decode(n / row.decode_rate)) for n, row in rows.items()}


def run_alone(
    setting: Setting, log: TickLog, prompts: Mapping[int, list[list[int]]], n_generated: int
) -> dict[int, Round]:
    """The scheduler without a service around it."""
    n_ctx, threads = setting.n_ctx, setting.threads
    engine = NativeEngine.load(EngineConfig(setting.model, n_ctx=n_ctx, n_slots=setting.slots, n_threads=threads))
    try:
        scheduler = Scheduler(engine, SchedulerConfig(), lambda events: None, make_prefix_memory(engine, CacheConfig()))
        log.watch(scheduler, engine)
        rounds = {}
        for n, of_streams in prompts.items():
            log.ticks.clear()
            for index, prompt in enumerate(of_streams):
                sampling = SamplingParams(temperature=0.0, ignore_eos=True)
                scheduler.submit(GenerationRequest(f"{n}-{index}", tuple(prompt), n_generated, (), sampling))
            while scheduler.tick():
                pass
            rounds[n] = Round(periods_of(steady(log.ticks, n, 0.0, float("inf"))))
        return rounds
    finally:
        engine.shutdown()


@dataclass(frozen=True)
class Served:
    """What the client saw of some streams, and the threads' times around it."""

    outcomes: Sequence[Outcome]
    threads: Mapping[int, ThreadTime]
    client_ran: float


def run_server(setting: Setting, prompts: Mapping[int, list[list[int]]], n_generated: int) -> dict[int, Round]:
    """The whole server and a client."""
    with timed_serving(setting) as server:
        vocabulary = n_vocab(setting.model)
        _serve(server, distinct_prompts(setting.slots, N_PROMPT, WARM_UP_SEED, vocabulary), 8)
        served = {n: _serve(server, of_streams, n_generated) for n, of_streams in prompts.items()}
    return {n: _round(server, n, of_streams) for n, of_streams in served.items()}


def _serve(server: TimedServer, prompts: Sequence[Sequence[int]], n_generated: int) -> Served:
    body = {"max_tokens": n_generated, "ignore_eos": True, "temperature": 0}
    calls = [Call({"prompt": list(prompt), **body}, expected_tokens=n_generated) for prompt in prompts]
    before, client = server.thread_times(), time.process_time()
    outcomes = asyncio.run(together(server.url, calls))
    client = time.process_time() - client
    after = server.thread_times()
    require_complete(outcomes, SERVER.name)
    return Served(outcomes, spent_between(before, after), client)


def _round(server: TimedServer, streams: int, served: Served) -> Round:
    # All streams run from the last one's first token to the first one's last.
    start = max(outcome.token_times[0] for outcome in served.outcomes)
    end = min(outcome.token_times[-1] for outcome in served.outcomes)
    ticks = steady(server.ticks, streams, start, end)
    period = periods_of(ticks)
    n_tokens = sum(outcome.completion_tokens or 0 for outcome in served.outcomes)
    return Round(period, beside(server, served, ticks[0].start, ticks[-1].end, n_tokens))


def beside(server: TimedServer, served: Served, start: float, end: float, n_tokens: int) -> Beside:
    """What ran beside the ticks, a token. Whole requests count, with their beginning and end."""
    loop, scheduler = served.threads[server.pid], served.threads[server.scheduler_thread]
    others = [time for thread, time in served.threads.items() if thread not in (server.pid, server.scheduler_thread)]
    return Beside(
        loop_ran=loop.ran / n_tokens,
        loop_waited=loop.waited / n_tokens,
        scheduler_ran=scheduler.ran / n_tokens,
        scheduler_waited=scheduler.waited / n_tokens,
        others_ran=sum(time.ran for time in others) / n_tokens,
        client_ran=served.client_ran / n_tokens,
        loop_wake_up=wake_up(server.hand_overs, start, end),
    )


def main() -> None:
    """Measure and publish."""
    options = read_options(__doc__, rounds=ROUNDS)
    setting = Setting(options.model, options.threads, N_CTX, SLOTS)
    streams, n_generated = (QUICK_STREAMS, QUICK_GENERATED) if options.is_quick else (STREAMS, N_GENERATED)
    vocabulary = n_vocab(options.model)
    log = TickLog()

    def run_one(contender: Contender | Limit, round_number: int) -> dict[int, Round]:
        prompts = {n: distinct_prompts(n, N_PROMPT, 100 * round_number + n, vocabulary) for n in streams}
        if isinstance(contender, Limit):
            return run_limit(setting, streams, n_generated)
        if contender is ALONE:
            return run_alone(setting, log, prompts, n_generated)
        return run_server(setting, prompts, n_generated)

    contenders: tuple[Contender | Limit, ...] = (LIMIT, ALONE, SERVER)
    results = alternate(contenders, options.rounds, run_one)
    report = Report(
        scenario="tick_time",
        question="Where does a tick's time go in steady decode, and what stands between server and limit?",
        command=options.command,
        setting=f"{setting.described()}, {N_PROMPT} prompt tokens, {n_generated} generated, greedy,"
        f" {options.rounds} rounds",
        tables=[
            tick_table(results, SERVER, streams),
            beside_table(results, streams),
            tick_table(results, ALONE, streams),
            cost_table(results, streams),
        ],
        raw={name: [{str(n): asdict(one[n]) for n in one} for one in rounds] for name, rounds in results.items()},
        notes=[
            *(named_costs(results, n) for n in streams),
            "alone: the same scheduler and engine, their events thrown away: no event loop, no HTTP, no client.",
            "Client, event loop, scheduler and llama.cpp share the cores. HTTP is in no tick: it makes llama_decode"
            " longer (the second cost) and lets the scheduler wait for a core or Python's lock (in the other costs).",
            "llama_decode differs from run to run by more than most costs are: where the spread of its two costs is"
            " larger than their median, they say nothing.",
            "The clocks cost a few µs a tick; they are in the parts of the scheduler.",
        ],
        results=options.results,
        is_quick=options.is_quick,
    )
    publish(report, lambda figure: draw(figure, results, streams))


if __name__ == "__main__":
    main()
