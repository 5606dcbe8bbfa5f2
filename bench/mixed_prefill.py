"""Four prompts at once: 4 of 520 tokens, and 4 of 9,800 tokens or as many as ten minutes allow.

Run: make bench-peers, then .venv/bin/python -m bench.mixed_prefill [--rounds N] [-m MODEL]

How fast the machine computes prompts is measured first. Where 4 prompts of 9,800 tokens a server would take too long,
the long case gets fewer rounds, then shorter prompts; the result says which. Each run has a server of its own, so that
its peak memory is of this run. Nobody sends a prompt twice, so no server keeps copies of them in RAM.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from bench.harness.arms import LLAMA_SERVER, LLAMASERVE, Arm
from bench.harness.figures import require_complete, spread
from bench.harness.models import n_vocab
from bench.harness.options import read_options
from bench.harness.prompts import distinct_prompts
from bench.harness.ratio import paired
from bench.harness.report import Report, Table, publish
from bench.harness.rounds import alternate
from bench.harness.serving import Running, Setting, serving
from bench.harness.streams import warm_up
from llamaserve.engine.native import read_gguf
from llamaserve.loadtest.call import Call
from llamaserve.loadtest.drive import together
from llamaserve.loadtest.summary import Distribution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOLD_CONTEXT = 16384


NO_COPIES = ("--cache-ram", "0")
CAPPED = replace(LLAMASERVE, flags=NO_COPIES)
UNCAPPED = Arm("llamaserve, no cap", "llamaserve", (*NO_COPIES, "--max-batch-prefill-tokens", "0"))
"""Prompts of any length are computed side by side."""


def arms(architecture: str) -> tuple[Arm, ...]:
    """What is compared: with the cap on prompts that are computed together, without it, and llama-server.

    llama-server refuses prompts beyond the context the model was trained with, llamaserve computes what the cells hold.
    Told that the model was trained with more, llama-server computes the same: models without YaRN scale nothing by it.
    """
    told = ("--override-kv", f"{architecture}.context_length=int:{TOLD_CONTEXT}")
    return CAPPED, UNCAPPED, replace(LLAMA_SERVER, flags=(*LLAMA_SERVER.flags, *NO_COPIES, *told))


PROMPTS = 4
SHORT = 520
LONG = 9800
LONG_STEP = 100
"""Shorter long prompts are a multiple of this."""
N_SHORT_ANSWER = 64
N_LONG_ANSWER = 16
ROUNDS = 3
LONG_SECONDS = 260.0
"""What all runs of the long case may take together, so that the scenario ends in ten minutes. The cap is seen where two
of the prompts are beyond it: from 2,049 tokens by default."""
QUICK_SECONDS = 10.0
TOGETHER = 1.25
"""How much longer prompts take that share a KV pool than one after the other; an allowance, not a figure."""
PROBES = (520, 2080)
QUICK_PROBES = (64, 128)
WARM_UP_PROMPT = 16


@dataclass(frozen=True)
class Speed:
    """Seconds that the prompt of a sequence takes: ``linear`` for each token and ``square`` for each pair."""

    linear: float
    square: float

    @classmethod
    def fitted(cls, short: tuple[int, float], long: tuple[int, float]) -> Speed:
        """Through two measured prompts, (tokens, seconds)."""
        (n_short, t_short), (n_long, t_long) = short, long
        square = (t_long / n_long - t_short / n_short) / (n_long - n_short)
        if square < 0:  # noise: a longer prompt is never cheaper by the token
            return cls(max(t_short / n_short, t_long / n_long), 0.0)
        return cls(t_short / n_short - square * n_short, square)

    def seconds(self, n_tokens: int) -> float:
        """For one prompt alone."""
        return self.linear * n_tokens + self.square * n_tokens**2

    def longest(self, seconds: float) -> int:
        """The most tokens that fit into a time."""
        if self.square <= 0:
            return int(seconds / self.linear)
        return int((math.sqrt(self.linear**2 + 4 * self.square * seconds) - self.linear) / (2 * self.square))


@dataclass(frozen=True)
class LongCase:
    """What the long case can be on this machine."""

    n_tokens: int
    rounds: int

    @classmethod
    def fitting(cls, speed: Speed, n_runs: int, rounds: int, seconds: float) -> LongCase:
        """As many rounds of 9,800 tokens as fit, ``n_runs`` servers each; if not even one, shorter prompts."""
        alone = TOGETHER * n_runs * PROMPTS
        one_round = alone * speed.seconds(LONG)
        if one_round <= seconds:
            return cls(LONG, min(rounds, int(seconds / one_round)))
        fitting = speed.longest(seconds / alone)
        return cls(max(SHORT, fitting // LONG_STEP * LONG_STEP), 1)


@dataclass(frozen=True)
class Batch:
    """Some prompts at once, on one server. Seconds and MiB."""

    ttft_mean: float
    ttft_p95: float
    first_response: float
    """When the first answer was complete."""
    wall: float
    output_rate: float
    peak_rss_mib: float
    ttfts: tuple[float, ...]


def run(running: Running, prompts: Sequence[Sequence[int]], n_answer: int) -> Batch:
    """Send all prompts at once. Raises RuntimeError for an answer that is not whole or a prompt that was cut."""
    calls = [
        Call(
            {"prompt": list(prompt), "max_tokens": n_answer, "ignore_eos": True, "temperature": 0},
            expected_tokens=n_answer,
        )
        for prompt in prompts
    ]
    outcomes = asyncio.run(together(running.url, calls, stall_timeout=2 * LONG_SECONDS))
    require_complete(outcomes, running.arm.name)
    for outcome, prompt in zip(outcomes, prompts, strict=True):
        if outcome.prompt_tokens != len(prompt):
            raise RuntimeError(f"{running.arm.name} computed {outcome.prompt_tokens} of {len(prompt)} prompt tokens")
    start = min(outcome.submitted for outcome in outcomes)
    wall = max(outcome.token_times[-1] for outcome in outcomes) - start
    ttfts = sorted(outcome.ttft for outcome in outcomes if outcome.ttft is not None)
    of_ttft = Distribution.of(ttfts)
    return Batch(
        ttft_mean=of_ttft.mean,
        ttft_p95=of_ttft.p95,
        first_response=min(outcome.token_times[-1] for outcome in outcomes) - start,
        wall=wall,
        output_rate=n_answer * len(calls) / wall,
        peak_rss_mib=running.peak_rss_mib(),
        ttfts=tuple(ttfts),
    )


def probe(setting: Setting, lengths: Sequence[int], vocabulary: int) -> Speed:
    """How long prompts take llamaserve, one after the other."""
    times = []
    with serving(LLAMASERVE, setting) as running:
        warm_up(running, 1, WARM_UP_PROMPT, vocabulary)
        for seed, length in enumerate(lengths):
            alone = run(running, distinct_prompts(1, length, seed, vocabulary), 1)
            times.append((length, alone.ttft_mean))
    return Speed.fitted(times[0], times[-1])


Results = Mapping[str, Sequence[Batch]]

ROWS: tuple[tuple[str, int, Callable[[Batch], float]], ...] = (
    ("TTFT, mean, ms", 0, lambda batch: 1000 * batch.ttft_mean),
    ("TTFT, p95, ms", 0, lambda batch: 1000 * batch.ttft_p95),
    ("first response complete, ms", 0, lambda batch: 1000 * batch.first_response),
    ("all responses complete, ms", 0, lambda batch: 1000 * batch.wall),
    ("output, tok/s", 1, lambda batch: batch.output_rate),
    ("peak memory, MiB", 0, lambda batch: batch.peak_rss_mib),
)


def table(title: str, results: Results) -> Table:
    """Figures of every arm, and the ratios of llamaserve's to them."""
    peers = [name for name in results if name != LLAMASERVE.name]
    rows = []
    for name, digits, value in ROWS:
        cells = {arm: [value(batch) for batch in batches] for arm, batches in results.items()}
        ratios = [str(paired(cells[LLAMASERVE.name], cells[peer])) for peer in peers]
        rows.append([name, *(spread(cell, digits) for cell in cells.values()), *ratios])
    return Table(title, ["", *results, *(f"{LLAMASERVE.name} / {peer}" for peer in peers)], rows)


def draw(figure: Figure, cases: Mapping[str, Results]) -> None:
    """When each prompt had its first token."""
    figure.suptitle("Four prompts at once: when each has its first token")
    for axes, (title, results) in zip(figure.subplots(1, len(cases)), cases.items(), strict=True):
        for name, batches in results.items():
            middle = [statistics.median(batch.ttfts[place] for batch in batches) for place in range(PROMPTS)]
            axes.plot(range(1, PROMPTS + 1), middle, "o-", label=name)
        axes.set(title=title, xlabel="first tokens", ylabel="seconds", xticks=range(1, PROMPTS + 1))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


def main() -> None:
    """Measure and publish."""
    options = read_options(__doc__, rounds=ROUNDS)
    vocabulary = n_vocab(options.model)
    compared = arms(read_gguf(options.model).architecture)
    short = QUICK_PROBES[0] if options.is_quick else SHORT
    short_setting = Setting(options.model, options.threads, PROMPTS * (SHORT + N_SHORT_ANSWER + 88), PROMPTS)
    speed = probe(replace(short_setting, n_ctx=4096), QUICK_PROBES if options.is_quick else PROBES, vocabulary)
    seconds = QUICK_SECONDS if options.is_quick else LONG_SECONDS
    long = LongCase.fitting(speed, len(compared), options.rounds, seconds)
    long_setting = replace(short_setting, n_ctx=PROMPTS * (long.n_tokens + 100))

    def measured(setting: Setting, rounds: int, n_tokens: int, n_answer: int) -> Results:
        def run_one(arm: Arm, round_number: int) -> Batch:
            with serving(arm, setting) as running:
                warm_up(running, 1, WARM_UP_PROMPT, vocabulary)
                seed = 1000 * round_number + n_tokens
                return run(running, distinct_prompts(PROMPTS, n_tokens, seed, vocabulary), n_answer)

        return alternate(compared, rounds, run_one)

    cases = {
        f"{PROMPTS} × {short} tokens": measured(short_setting, options.rounds, short, N_SHORT_ANSWER),
        f"{PROMPTS} × {long.n_tokens} tokens": measured(long_setting, long.rounds, long.n_tokens, N_LONG_ANSWER),
    }
    report = Report(
        scenario="mixed_prefill",
        question="When do four prompts that come at once have their first tokens, and what memory does that take?",
        command=options.command,
        setting=f"{short_setting.described()} (long case: context {long_setting.n_ctx}), answers of {N_SHORT_ANSWER}"
        f" and {N_LONG_ANSWER} tokens, {options.rounds} and {long.rounds} rounds",
        tables=[
            table(f"{title}, median (min..max) of the rounds, ratios a round", results)
            for title, results in cases.items()
        ],
        raw={
            title: {name: [asdict(b) for b in batches] for name, batches in of.items()} for title, of in cases.items()
        },
        notes=[
            f"Measured first: a prompt of {SHORT} tokens takes {speed.seconds(SHORT):.1f} s alone, one of {LONG} tokens"
            f" would take {speed.seconds(LONG):.0f} s; the long case has prompts of {long.n_tokens} tokens.",
            f"llama-server is told that the model was trained with {TOLD_CONTEXT} tokens (--override-kv): it refuses"
            " longer prompts than that, which llamaserve computes. It computes the same with and without.",
            "No server keeps copies of prompts in RAM (--cache-ram 0): nobody sends one twice.",
            "Peak memory includes the weights and the KV cells of the whole context. TTFT counts from submission.",
        ],
        results=options.results,
        is_quick=options.is_quick,
    )
    publish(report, lambda figure: draw(figure, cases))


if __name__ == "__main__":
    main()
