"""What running streams feel when a long prompt arrives: 4 streams, then one prompt of 4,000 tokens.

Run: make bench-peers, then .venv/bin/python -m bench.stall [--rounds N] [-m MODEL]

The long prompt is sent when the streams have 48 tokens each on average, and the streams go on beyond its first token.
What lies between the two moments is the stall: the gaps between tokens that end or begin in it are what a reader sees.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from bench.harness.arms import LLAMA_SERVER, LLAMASERVE, Arm
from bench.harness.figures import require_complete, spread
from bench.harness.models import n_vocab
from bench.harness.options import read_options
from bench.harness.prompts import distinct_prompts
from bench.harness.ratio import paired
from bench.harness.report import Report, Table, publish
from bench.harness.rounds import NotEngaged, alternate
from bench.harness.serving import Running, Setting, serving
from bench.harness.streams import warm_up
from llamaserve.loadtest.call import Call
from llamaserve.loadtest.outcome import Outcome
from llamaserve.loadtest.send import new_session, send
from llamaserve.loadtest.summary import Distribution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS: tuple[Arm, ...] = (LLAMASERVE, LLAMA_SERVER)
ROUNDS = 2
N_PROMPT = 20
EXACT_GREEDY = {"ignore_eos": True, "temperature": 0}


@dataclass(frozen=True)
class Load:
    """How much is asked for."""

    streams: int = 4
    n_before: int = 48
    """Tokens a stream has, on average, when the long prompt is sent."""
    n_stream: int = 448
    """Tokens of each stream: enough for one that gets a token with every piece of the long prompt."""
    n_long: int = 4000
    """Tokens of the long prompt."""
    n_answer: int = 16
    """Tokens generated for it."""

    @property
    def n_ctx(self) -> int:
        """Cells for all of them."""
        needed = self.n_long + self.n_answer + self.streams * (N_PROMPT + self.n_stream)
        return -(-needed // 1024) * 1024


FULL = Load()
QUICK = Load(streams=2, n_before=8, n_stream=48, n_long=1000, n_answer=4)


@dataclass(frozen=True)
class Stall:
    """One run. Seconds, but for the last two."""

    steady_itl: float
    """Median gap before the long prompt was sent."""
    stall_itl_p50: float
    stall_itl_p99: float
    stall_itl_max: float
    """Of the gaps that reach into the stall, all streams together."""
    long_ttft: float
    n_stall_tokens: int
    """Tokens all streams got during the stall."""
    throughput: float
    """Prompt and output tokens a second of all requests, from the first submission to the last token."""

    @classmethod
    def of(cls, streams: Sequence[Outcome], long: Outcome) -> Stall:
        """Raises NotEngaged when a stream had not begun before the stall, or ended in it."""
        if long.ttft is None:
            raise NotEngaged("the long prompt's answer has no text")
        begin, end = long.submitted, long.submitted + long.ttft
        if any(not s.token_times or s.token_times[0] > begin or s.token_times[-1] < end for s in streams):
            raise NotEngaged("a stream did not run through the whole stall")
        gaps = [gap for stream in streams for gap in pairwise(stream.token_times)]
        before = [later - earlier for earlier, later in gaps if later <= begin]
        if not before:
            raise NotEngaged("no stream had two tokens before the long prompt was sent")
        during = Distribution.of(later - earlier for earlier, later in gaps if later > begin and earlier < end)
        everyone = [*streams, long]
        n_tokens = sum((outcome.prompt_tokens or 0) + (outcome.completion_tokens or 0) for outcome in everyone)
        last = max(outcome.token_times[-1] for outcome in everyone)
        return cls(
            steady_itl=statistics.median(before),
            stall_itl_p50=during.p50,
            stall_itl_p99=during.p99,
            stall_itl_max=during.max,
            long_ttft=long.ttft,
            n_stall_tokens=sum(begin < at <= end for stream in streams for at in stream.token_times),
            throughput=n_tokens / (last - min(outcome.submitted for outcome in everyone)),
        )


async def stall(url: str, steady: Sequence[Call], long: Call, n_before: int) -> tuple[list[Outcome], Outcome]:
    """Start the streams; once they have ``n_before`` tokens together, send the long prompt."""
    seen = 0
    is_time = asyncio.Event()

    def count(n_tokens: int) -> None:
        nonlocal seen
        seen += n_tokens
        if seen >= n_before:
            is_time.set()

    async with new_session() as session:
        streams = asyncio.gather(*(send(session, url, call, on_tokens=count) for call in steady))
        streams.add_done_callback(lambda _: is_time.set())  # streams that fail must not be waited for
        await is_time.wait()
        outcome = await send(session, url, long)
        return list(await streams), outcome


def run(running: Running, load: Load, seed: int, vocabulary: int) -> Stall:
    """One stall on one server. Raises RuntimeError for an answer that is not whole, NotEngaged."""
    prompts = distinct_prompts(load.streams, N_PROMPT, seed, vocabulary)
    steady = [_call(prompt, load.n_stream, "steady") for prompt in prompts]
    long = _call(distinct_prompts(1, load.n_long, seed + 1, vocabulary)[0], load.n_answer, "long")
    streams, outcome = asyncio.run(stall(running.url, steady, long, load.n_before * load.streams))
    require_complete([*streams, outcome], running.arm.name)
    return Stall.of(streams, outcome)


def _call(prompt: list[int], n_tokens: int, label: str) -> Call:
    return Call({"prompt": prompt, "max_tokens": n_tokens, **EXACT_GREEDY}, expected_tokens=n_tokens, label=label)


Results = Mapping[str, Sequence[Stall]]

ROWS: tuple[tuple[str, Callable[[Stall], float]], ...] = (
    ("time between tokens before, median, ms", lambda run: 1000 * run.steady_itl),
    ("time between tokens in the stall, median, ms", lambda run: 1000 * run.stall_itl_p50),
    ("time between tokens in the stall, p99, ms", lambda run: 1000 * run.stall_itl_p99),
    ("time between tokens in the stall, max, ms", lambda run: 1000 * run.stall_itl_max),
    ("TTFT of the long prompt, ms", lambda run: 1000 * run.long_ttft),
    ("throughput, prompt and output, tok/s", lambda run: run.throughput),
)
N_GAP_ROWS = 4
"""Of these, the rows about gaps, which come first."""


def table(results: Results) -> Table:
    """Figures of every arm, and the ratios of llamaserve's to them."""
    peers = [name for name in results if name != LLAMASERVE.name and LLAMASERVE.name in results]
    rows = []
    for name, value in ROWS:
        cells = {arm: [value(run) for run in runs] for arm, runs in results.items()}
        ratios = [str(paired(cells[LLAMASERVE.name], cells[peer])) for peer in peers]
        rows.append([name, *map(spread, cells.values()), *ratios])
    counts = [[float(run.n_stall_tokens) for run in runs] for runs in results.values()]
    rows.append(["tokens all streams got in the stall", *(spread(cell, 0) for cell in counts), *("" for _ in peers)])
    return Table(
        "Median (min..max) of the rounds; ratios a round",
        ["", *results, *(f"{LLAMASERVE.name} / {peer}" for peer in peers)],
        rows,
    )


def draw(figure: Figure, results: Results) -> None:
    """Gaps before and in the stall, and what the long prompt waited."""
    gaps, waits = figure.subplots(1, 2)
    figure.suptitle("Streams while a long prompt arrives")
    for index, (name, runs) in enumerate(results.items()):
        width = 0.8 / len(results)
        at = [place + width * (index - (len(results) - 1) / 2) for place in range(N_GAP_ROWS)]
        heights = [statistics.median(map(value, runs)) for _, value in ROWS[:N_GAP_ROWS]]
        gaps.bar(at, heights, width, label=name)
    gaps.set_xticks(range(N_GAP_ROWS), ["before,\nmedian", "stall,\nmedian", "stall,\np99", "stall,\nmax"])
    gaps.set(ylabel="time between tokens of a stream, ms")
    gaps.legend(fontsize=8)
    waits.boxplot([[run.long_ttft for run in runs] for runs in results.values()])
    waits.set_xticks(range(1, len(results) + 1), list(results))
    waits.set(ylabel="TTFT of the long prompt, s")
    waits.set_ylim(bottom=0)
    for axes in (gaps, waits):
        axes.grid(alpha=0.3, axis="y")


def main() -> None:
    """Measure and publish."""
    options = read_options(__doc__, rounds=ROUNDS)
    load = QUICK if options.is_quick else FULL
    setting = Setting(options.model, options.threads, load.n_ctx, load.streams + 1)
    vocabulary = n_vocab(options.model)

    def run_one(arm: Arm, round_number: int) -> Stall:
        with serving(arm, setting) as running:
            warm_up(running, load.streams, N_PROMPT, vocabulary)
            return run(running, load, 100 * round_number, vocabulary)

    not_engaged: list[str] = []
    results = alternate(ARMS, options.rounds, run_one, not_engaged)
    report = Report(
        scenario="stall",
        question=f"What do {load.streams} running streams feel when a prompt of {load.n_long} tokens arrives?",
        command=options.command,
        setting=f"{setting.described()}, streams of {load.n_stream} tokens, the long prompt after {load.n_before} of"
        f" each, {options.rounds} rounds",
        tables=[table(results)],
        raw={name: [asdict(run) for run in runs] for name, runs in results.items()},
        notes=[
            "The stall lasts from sending the long prompt to its first token; a gap counts if any of it is in there.",
            "Both have one KV pool and their defaults else: llamaserve computes the prompt in pieces by its latency"
            " target, llama-server in batches of 2048.",
        ],
        not_engaged=not_engaged,
        results=options.results,
        is_quick=options.is_quick,
    )
    publish(report, lambda figure: draw(figure, results))


if __name__ == "__main__":
    main()
