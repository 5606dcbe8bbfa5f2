"""Decode speed of 1 to 8 streams beside llama-server, and beside llama-batched-bench, which does nothing but decode.

Run: make bench-peers, then .venv/bin/python -m bench.decode [--rounds N] [-m MODEL]

Each round starts every server anew and gives all of them the same prompts: distinct ones of 20 token ids, greedy,
128 tokens each, all streams at once, after as many others to warm up. llamaserve and "llama-server -np 8" have 8 slots;
that llama-server gives each of them an eighth of the context, with --kv-unified it has one pool as llamaserve has.
"llama-server" is the default with 4 slots on one pool, so it has no figure for 8 streams.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from bench.harness.arms import LLAMA_SERVER, LLAMA_SERVER_SPLIT, LLAMASERVE, Arm
from bench.harness.figures import milliseconds, spread
from bench.harness.limit import Limit
from bench.harness.models import n_vocab
from bench.harness.options import read_options
from bench.harness.prompts import distinct_prompts
from bench.harness.ratio import paired
from bench.harness.report import Report, Table, publish
from bench.harness.rounds import alternate
from bench.harness.serving import Setting, serving
from bench.harness.streams import StreamFigures, run_streams, warm_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STREAMS = (1, 2, 4, 8)
SLOTS = max(STREAMS)
N_PROMPT = 20
N_GENERATED = 128
N_CTX = 8192
ROUNDS = 4
QUICK_STREAMS = (1, 2)
QUICK_GENERATED = 16

SPLIT = replace(LLAMA_SERVER_SPLIT, name=f"llama-server -np {SLOTS}")
POOL = replace(LLAMA_SERVER, name=f"llama-server -np {SLOTS} --kv-unified")
DEFAULT = replace(LLAMA_SERVER, slots=4)
LIMIT = Limit()
ARMS: tuple[Arm | Limit, ...] = (LLAMASERVE, SPLIT, POOL, DEFAULT, LIMIT)

ByStreams = Mapping[int, StreamFigures]
Results = Mapping[str, Sequence[ByStreams]]


def main() -> None:
    """Measure, check the texts, publish."""
    options = read_options(__doc__, rounds=ROUNDS)
    setting = Setting(options.model, options.threads, N_CTX, SLOTS)
    streams, n_generated = (QUICK_STREAMS, QUICK_GENERATED) if options.is_quick else (STREAMS, N_GENERATED)
    vocabulary = n_vocab(options.model)

    def run_one(arm: Arm | Limit, round_number: int) -> ByStreams:
        if isinstance(arm, Limit):
            rows = arm.rows(setting, n_prompt=N_PROMPT, n_generated=n_generated, streams=streams)
            return {n: StreamFigures.of_rate(row.decode_rate, n) for n, row in rows.items()}
        slots = arm.slots or setting.slots
        with serving(arm, setting) as running:
            figures_of = {}
            for n in (n for n in streams if n <= slots):
                warm_up(running, n, N_PROMPT, vocabulary)
                prompts = distinct_prompts(n, N_PROMPT, 100 * round_number + n, vocabulary)
                figures_of[n] = run_streams(running, prompts, n_generated)
            return figures_of

    results = alternate(ARMS, options.rounds, run_one)
    require_equal_alone(results)
    report = Report(
        scenario="decode",
        question=f"How many tokens a second do 1 to {SLOTS} streams get together, and how evenly do they come?",
        command=options.command,
        setting=f"{setting.described()}, {N_PROMPT} prompt tokens, {n_generated} generated, {options.rounds} rounds",
        tables=[
            rate_table(results, streams),
            ratio_table(results, streams),
            itl_table(results, streams),
            equality_table(results, streams),
        ],
        raw={name: [{str(n): row[n].as_json() for n in row} for row in rounds] for name, rounds in results.items()},
        notes=[
            "A rate counts while all streams run: from the last first token to the first last one.",
            f"{DEFAULT.name} is the default, 4 slots on one KV pool: it has no figure for more streams than slots.",
            f"{LIMIT.name} draws no token, makes no text and has no client: no server can be faster.",
        ],
        results=options.results,
        is_quick=options.is_quick,
    )
    publish(report, lambda figure: draw(figure, results, streams))


def texts_equal(results: Results, peer: str, streams: int) -> tuple[int, int]:
    """How many texts of a peer are those of llamaserve, and of how many."""
    pairs = [
        (ours, theirs)
        for our_round, their_round in zip(results[LLAMASERVE.name], results[peer], strict=True)
        for ours, theirs in zip(our_round[streams].texts, their_round[streams].texts, strict=True)
    ]
    return sum(ours == theirs for ours, theirs in pairs), len(pairs)


def require_equal_alone(results: Results) -> None:
    """A stream alone has no neighbour that changes how its numbers are summed: exits with 1 when a text differs."""
    for peer in (SPLIT.name, DEFAULT.name):
        equal, all_texts = texts_equal(results, peer, 1)
        if equal < all_texts:
            sys.exit(f"{all_texts - equal} of {all_texts} texts of one stream differ between llamaserve and {peer}")


def figures(results: Results, name: str, streams: int) -> list[StreamFigures]:
    """One a round; empty where the arm has too few slots."""
    return [row[streams] for row in results[name] if streams in row]


def rate_table(results: Results, streams: Sequence[int]) -> Table:
    """Tokens a second."""
    rows = []
    for name in results:
        rates = [[figure.rate for figure in figures(results, name, n)] for n in streams]
        rows.append([name, *(spread(cell) if cell else "-" for cell in rates)])
    return Table("Decode rate, tok/s over all streams, median (min..max) of the rounds", heads(streams), rows)


def ratio_table(results: Results, streams: Sequence[int]) -> Table:
    """Ratios of neighbours in time."""
    rows = []
    for name in results:
        if name == LLAMASERVE.name:
            continue
        row = [f"llamaserve / {name}"]
        for n in streams:
            peers = [figure.rate for figure in figures(results, name, n)]
            ours = [figure.rate for figure in figures(results, LLAMASERVE.name, n)]
            row.append(str(paired(ours, peers)) if peers else "-")
        rows.append(row)
    return Table("Ratio of the rates, median (min..max); above 1 llamaserve is faster", heads(streams), rows)


def itl_table(results: Results, streams: Sequence[int]) -> Table:
    """Gaps between tokens."""
    rows = []
    for name in results:
        if name == LIMIT.name:
            continue
        for label in ("p50", "p99"):
            pick: Callable[[StreamFigures], float] = attrgetter(f"itl_{label}")
            cells = [[pick(figure) for figure in figures(results, name, n)] for n in streams]
            rows.append([f"{name}, {label}", *(milliseconds(cell) if cell else "-" for cell in cells)])
    return Table("Time between tokens of a stream, ms", heads(streams), rows)


def equality_table(results: Results, streams: Sequence[int]) -> Table:
    """Texts that are the same; with neighbours in a batch they need not be."""
    rows = []
    for name in (SPLIT.name, DEFAULT.name):
        cells = [
            "{} of {}".format(*texts_equal(results, name, n)) if figures(results, name, n) else "-" for n in streams
        ]
        rows.append([name, *cells])
    return Table("Texts equal to those of llamaserve (must hold for 1 stream)", heads(streams), rows)


def heads(streams: Sequence[int]) -> list[str]:
    """Column titles."""
    return ["", *(f"{n} stream{'s' if n > 1 else ''}" for n in streams)]


def draw(figure: Figure, results: Results, streams: Sequence[int]) -> None:
    """Rates and slowest gaps over the number of streams."""
    rates, gaps = figure.subplots(1, 2)
    figure.suptitle("Decoding: llamaserve, llama-server and the limit, same model, threads and prompts")
    for name in results:
        at = [n for n in streams if figures(results, name, n)]
        cells = [figures(results, name, n) for n in at]
        middle = [statistics.median(f.rate for f in cell) for cell in cells]
        low = [m - min(f.rate for f in cell) for m, cell in zip(middle, cells, strict=True)]
        high = [max(f.rate for f in cell) - m for m, cell in zip(middle, cells, strict=True)]
        style = "--" if name == LIMIT.name else "-"
        rates.errorbar(at, middle, yerr=[low, high], label=name, marker="o", linestyle=style, capsize=3)
        if name != LIMIT.name:
            gaps.plot(at, [1000 * statistics.median(f.itl_p99 for f in cell) for cell in cells], "o-", label=name)
    for axes, title in ((rates, "decode rate, tok/s (bars: min..max)"), (gaps, "time between tokens, p99, ms")):
        axes.set(xlabel="streams", ylabel=title, xticks=streams)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
