"""Decode speed of 4 streams while another process keeps one core busy, and what lets the threads share the machine.

Run: make bench-peers, then .venv/bin/python -m bench.noisy_neighbour [--rounds N] [-m MODEL]

Each server decodes first on a quiet machine, then beside a process that computes without pause. llama.cpp's threads
wait for each other many times a token and spin meanwhile, so one that was put aside holds up all others; the arms try
other ways to wait: libgomp's spin count, no spinning at all, and a thread less.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench.harness.arms import LLAMA_SERVER, LLAMASERVE, Arm
from bench.harness.figures import milliseconds, spread
from bench.harness.models import n_vocab
from bench.harness.options import read_options
from bench.harness.prompts import distinct_prompts
from bench.harness.ratio import paired
from bench.harness.report import Report, Table, publish
from bench.harness.rounds import NotEngaged, alternate
from bench.harness.serving import Setting, cpu_seconds, serving
from bench.harness.streams import StreamFigures, run_streams, warm_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STREAMS = 4
N_PROMPT = 20
N_GENERATED = 48
N_CTX = 8192
ROUNDS = 3
QUICK_GENERATED = 16
LEAST_SHARE = 0.25  # of a core; a neighbour that gets less of it disturbed nobody

PASSIVE: Mapping[str, str] = {"OMP_WAIT_POLICY": "passive"}
SPIN_COUNTS = (1_000, 10_000, 100_000)


def arms(threads: int) -> list[Arm]:
    """Both servers as they come, and the other ways to wait."""
    spins = [replace(LLAMASERVE, name=f"GOMP_SPINCOUNT={n}", env={"GOMP_SPINCOUNT": str(n)}) for n in SPIN_COUNTS]
    passive = replace(LLAMASERVE, name="OMP_WAIT_POLICY=passive", env=PASSIVE)
    fewer = [replace(LLAMASERVE, name=f"-t {threads - 1}", flags=("-t", str(threads - 1)))] if threads > 1 else []
    peer_passive = replace(LLAMA_SERVER, name="llama-server, passive", env=PASSIVE)
    return [LLAMASERVE, LLAMA_SERVER, *spins, passive, *fewer, peer_passive]


@dataclass(frozen=True)
class Both:
    """One server's streams, without and with the neighbour."""

    quiet: StreamFigures
    noisy: StreamFigures
    neighbour_share: float
    """Of a core, which the neighbour had."""


Results = Mapping[str, Sequence[Both]]


def main() -> None:
    """Measure, publish."""
    options = read_options(__doc__, rounds=ROUNDS)
    setting = Setting(options.model, options.threads, N_CTX, STREAMS)
    n_generated = QUICK_GENERATED if options.is_quick else N_GENERATED
    vocabulary = n_vocab(options.model)

    def run_one(arm: Arm, round_number: int) -> Both:
        prompts = distinct_prompts(2 * STREAMS, N_PROMPT, round_number, vocabulary)
        with serving(arm, setting) as running:
            warm_up(running, STREAMS, N_PROMPT, vocabulary)
            quiet = run_streams(running, prompts[:STREAMS], n_generated)
            with neighbour() as pid:
                start, used = time.perf_counter(), cpu_seconds(pid)
                noisy = run_streams(running, prompts[STREAMS:], n_generated)
                share = (cpu_seconds(pid) - used) / (time.perf_counter() - start)
        if share < LEAST_SHARE:
            raise NotEngaged(f"the neighbour had {share:.0%} of a core, less than {LEAST_SHARE:.0%}")
        return Both(quiet, noisy, share)

    not_engaged: list[str] = []
    results = alternate(arms(options.threads), options.rounds, run_one, not_engaged)
    report = Report(
        scenario="noisy_neighbour",
        question=f"What is left of {STREAMS} streams' speed when another process keeps one core busy?",
        command=options.command,
        setting=f"{setting.described()}, {STREAMS} streams, {N_PROMPT} prompt tokens, {n_generated} generated,"
        f" {options.rounds} rounds",
        tables=[figure_table(results), ratio_table(results)],
        raw={name: [as_json(run) for run in runs] for name, runs in results.items()},
        notes=[
            "Rows without a server's name are llamaserve with that variable or flag.",
            "The neighbour is one process that never waits; its share is of one core, while the streams ran.",
        ],
        not_engaged=not_engaged,
        results=options.results,
        is_quick=options.is_quick,
    )
    publish(report, lambda figure: draw(figure, results))


@contextmanager
def neighbour() -> Iterator[int]:
    """A process that keeps one core busy; its id."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        wait_until_busy(process.pid)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def wait_until_busy(pid: int) -> None:
    """Until the process has computed for a while: it is past its own start then."""
    before = cpu_seconds(pid)
    while cpu_seconds(pid) - before < 0.1:
        time.sleep(0.02)


def as_json(run: Both) -> dict[str, object]:
    """One run's figures."""
    return {
        "quiet": run.quiet.as_json(),
        "noisy": run.noisy.as_json(),
        "neighbour_share": run.neighbour_share,
    }


def figure_table(results: Results) -> Table:
    """Absolute figures."""
    rows = [
        [
            name,
            spread([run.quiet.rate for run in runs]),
            spread([run.noisy.rate for run in runs]),
            milliseconds([run.quiet.itl_p99 for run in runs]),
            milliseconds([run.noisy.itl_p99 for run in runs]),
            spread([100 * run.neighbour_share for run in runs], 0),
        ]
        for name, runs in results.items()
    ]
    columns = ["", "quiet, tok/s", "noisy, tok/s", "ITL p99 quiet, ms", "ITL p99 noisy, ms", "neighbour's share, %"]
    return Table("Median (min..max) of the rounds", columns, rows)


def ratio_table(results: Results) -> Table:
    """What noise leaves, and every arm beside llama-server as it comes."""
    rows = []
    for name, runs in results.items():
        quiet, noisy = [run.quiet.rate for run in runs], [run.noisy.rate for run in runs]
        cells = [str(paired(noisy, quiet))]
        peers = results.get(LLAMA_SERVER.name)
        if peers is None:
            cells += ["-", "-"]
        else:
            cells.append(str(paired(quiet, [run.quiet.rate for run in peers])))
            cells.append(str(paired(noisy, [run.noisy.rate for run in peers])))
        rows.append([name, *cells])
    columns = ["", "noisy / quiet", "arm / llama-server, quiet", "arm / llama-server, noisy"]
    return Table("Ratios of the rates, median (min..max)", columns, rows)


def draw(figure: Figure, results: Results) -> None:
    """Rates of every arm, quiet and noisy."""
    axes = figure.subplots()
    names = list(results)[::-1]
    for offset, label, colour in ((0.2, "quiet", "tab:blue"), (-0.2, "one core busy", "tab:orange")):
        rates = [[(run.quiet if label == "quiet" else run.noisy).rate for run in results[name]] for name in names]
        middle = [statistics.median(cell) for cell in rates]
        spans = [[m - min(c) for m, c in zip(middle, rates, strict=True)]]
        spans.append([max(c) - m for m, c in zip(middle, rates, strict=True)])
        places = [place + offset for place in range(len(names))]
        axes.barh(places, middle, height=0.38, xerr=spans, capsize=2, label=label, color=colour)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("decode rate of 4 streams, tok/s (bars: median, lines: min..max)")
    axes.set_title("Four streams beside a process that keeps one core busy")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower left", ncols=2)


if __name__ == "__main__":
    main()
