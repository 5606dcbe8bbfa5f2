"""What a client that leaves still costs: tokens nobody reads, and time until its slot serves somebody else.

Run: make bench-peers, then .venv/bin/python -m bench.abandon [--rounds N] [-m MODEL]

Each server has one slot, so a short request that follows at once waits for as long as the slot works for the one that
left. Streams are dropped after 4 of 400 tokens; a prompt of 5,000 tokens is dropped while it is computed, each round at
another part of it. What the short request takes on an idle server is measured before and subtracted.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from bench.harness.arms import LLAMA_SERVER, LLAMASERVE, Arm
from bench.harness.figures import spread
from bench.harness.models import n_vocab
from bench.harness.options import read_options
from bench.harness.ratio import paired
from bench.harness.report import Report, Table, publish
from bench.harness.rounds import alternate
from bench.harness.serving import Setting, serving
from bench.leaving_client import N_PROMPT, LeavingClient
from llamaserve.loadtest.send import new_session

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS: tuple[Arm, ...] = (LLAMASERVE, replace(LLAMA_SERVER, flags=(*LLAMA_SERVER.flags, "--metrics")))
"""Without --metrics llama-server does not tell its counters."""
ROUNDS = 5
N_SHORT = 520  # for the speed of prompts
N_STEADY = 48
PARTS = (0.15, 0.25, 0.35, 0.45, 0.55)
"""How far the long prompt is when its client leaves, by the speed of short ones; one a round, then again."""


@dataclass(frozen=True)
class Plan:
    """How much is asked for."""

    n_stream: int = 400
    stop_after: int = 4
    streams: int = 4
    """Streams dropped one after the other."""
    n_long: int = 5000

    @property
    def n_ctx(self) -> int:
        """Cells for the longest request."""
        return self.n_long + 1024


FULL = Plan()
QUICK = Plan(n_stream=40, streams=1, n_long=1000)


@dataclass(frozen=True)
class Abandoned:
    """One round on one server. Seconds and tokens."""

    idle_ttft: float
    """Of the short request on an idle server."""
    itl: float
    """Between tokens of a stream nobody drops."""
    stream_waits: tuple[float, ...]
    """From a stream's drop to the first token of the short request behind it."""
    counted_tokens: tuple[int, ...]
    """Tokens of each dropped stream beyond those the client read, as the server counts them; empty if it does not."""
    prefill_wait: float
    """From the drop of the long prompt to the first token of the short request behind it."""

    @property
    def stream_wait(self) -> float:
        """Median over the streams."""
        return statistics.median(self.stream_waits)

    @property
    def stream_free(self) -> float:
        """Until the slot is free."""
        return max(0.0, self.stream_wait - self.idle_ttft)

    @property
    def wasted_tokens(self) -> float:
        """Tokens for which there was time until the slot was free."""
        return self.stream_free / self.itl

    @property
    def prefill_free(self) -> float:
        """Until the long prompt was stopped."""
        return max(0.0, self.prefill_wait - self.idle_ttft)


async def abandon(url: str, plan: Plan, part: float, vocabulary: int, seed: int) -> Abandoned:
    """One round. Raises RuntimeError for an answer that is not whole, NotEngaged."""
    async with new_session() as session:
        client = LeavingClient(session, url, vocabulary, seed)
        steady = await client.answered(client.call(N_PROMPT, N_STEADY))
        idle_ttft = statistics.median([await client.ttft(N_PROMPT) for _ in range(5)])
        waits, tokens = [], []
        for _ in range(plan.streams):
            before = await client.generated()
            waits.append(await client.wait_after(await client.drop_stream(plan.n_stream, plan.stop_after)))
            after = await client.generated()
            if before is not None and after is not None:
                tokens.append(after - before - plan.stop_after - 1)  # the short request's token
        long_s = await client.ttft(N_SHORT) * plan.n_long / N_SHORT
        prefill_wait = await client.wait_after(await client.drop_prompt(plan.n_long, part * long_s))
    return Abandoned(idle_ttft, statistics.median(steady.itl), tuple(waits), tuple(tokens), prefill_wait)


Results = Mapping[str, Sequence[Abandoned]]

RATIO_ROWS: tuple[tuple[str, Callable[[Abandoned], float]], ...] = (
    ("stream dropped, to the next request's first token, ms", lambda run: 1000 * run.stream_wait),
    ("prompt dropped, to the next request's first token, ms", lambda run: 1000 * run.prefill_wait),
    ("next request's first token on an idle server, ms", lambda run: 1000 * run.idle_ttft),
)
PLAIN_ROWS: tuple[tuple[str, Callable[[Abandoned], float]], ...] = (
    ("stream dropped, until the slot is free, ms", lambda run: 1000 * run.stream_free),
    ("stream dropped, tokens for which there was time", lambda run: run.wasted_tokens),
    ("prompt dropped, until it is stopped, ms", lambda run: 1000 * run.prefill_free),
)


def table(results: Results) -> Table:
    """Figures of every arm, and the ratios of llamaserve's to them where both are surely above 0."""
    peers = [name for name in results if name != LLAMASERVE.name and LLAMASERVE.name in results]
    blank = ["" for _ in peers]
    rows = []
    for name, value in RATIO_ROWS:
        cells = {arm: [value(run) for run in runs] for arm, runs in results.items()}
        ratios = [str(paired(cells[LLAMASERVE.name], cells[peer])) for peer in peers]
        rows.append([name, *map(spread, cells.values()), *ratios])
    for name, value in PLAIN_ROWS:
        rows.append([name, *(spread([value(run) for run in runs]) for runs in results.values()), *blank])
    counts = [[tokens for run in runs for tokens in run.counted_tokens] for runs in results.values()]
    told = [spread(cell, 0) if cell else "does not tell" for cell in counts]
    rows.append(["stream dropped, unread tokens by the server's own count", *told, *blank])
    return Table(
        "Median (min..max) of the rounds; ratios a round",
        ["", *results, *(f"{LLAMASERVE.name} / {peer}" for peer in peers)],
        rows,
    )


def draw(figure: Figure, results: Results) -> None:
    """Both waits, every round."""
    figure.suptitle("A client leaves: how long its slot still works for it (one slot, each round a point)")
    kinds: tuple[tuple[str, Callable[[Abandoned], float]], ...] = (
        ("stream dropped after 4 tokens, ms", lambda run: 1000 * run.stream_free),
        ("long prompt dropped, ms", lambda run: 1000 * run.prefill_free),
    )
    for axes, (title, value) in zip(figure.subplots(1, 2), kinds, strict=True):
        for place, (name, runs) in enumerate(results.items()):
            axes.plot([place] * len(runs), list(map(value, runs)), "o", alpha=0.6, label=name)
        axes.set_xticks(range(len(results)), list(results))
        axes.set(ylabel=title, xlim=(-0.5, len(results) - 0.5))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3, axis="y")


def main() -> None:
    """Measure and publish."""
    options = read_options(__doc__, rounds=ROUNDS)
    plan = QUICK if options.is_quick else FULL
    setting = Setting(options.model, options.threads, plan.n_ctx, slots=1)
    vocabulary = n_vocab(options.model)

    def run_one(arm: Arm, round_number: int) -> Abandoned:
        part = PARTS[round_number % len(PARTS)]
        with serving(arm, setting) as running:
            return asyncio.run(abandon(running.url, plan, part, vocabulary, 1000 * round_number))

    not_engaged: list[str] = []
    results = alternate(ARMS, options.rounds, run_one, not_engaged)
    report = Report(
        scenario="abandon",
        question="When a client leaves, how many tokens are generated for nobody, and when is its slot free?",
        command=options.command,
        setting=f"{setting.described()}, {plan.streams} streams a round dropped after {plan.stop_after} of"
        f" {plan.n_stream} tokens, a prompt of {plan.n_long} tokens, {options.rounds} rounds",
        tables=[table(results)],
        raw={name: [asdict(run) for run in runs] for name, runs in results.items()},
        notes=[
            "Until the slot is free: the wait of the request behind, less what the same takes on an idle server; tokens"
            " for which there was time: that over the time between two tokens. Both are seen from outside.",
            "By the server's own count: the difference of its counter in /metrics, where it has one, less the tokens"
            " that were read.",
            f"The long prompt is dropped at {', '.join(f'{part:.0%}' for part in PARTS)} of the time it would take.",
        ],
        not_engaged=not_engaged,
        results=options.results,
        is_quick=options.is_quick,
    )
    publish(report, lambda figure: draw(figure, results))


if __name__ == "__main__":
    main()
