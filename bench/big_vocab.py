"""Decode speed with a vocabulary of 262,144 tokens (Gemma 3 270M), where drawing a token costs what one can see.

Run: make bench-peers, then .venv/bin/python -m bench.big_vocab [--rounds N] [-m MODEL]

1 and 8 streams, greedy and with temperature 0.8, top_k 40, top_p 0.95, on servers with 8 slots. The limit,
llama-batched-bench, computes the same logits and draws nothing, so what a step takes longer than the limit's is
drawing, text and delivery.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.harness.arms import LLAMA_SERVER, LLAMASERVE, Arm
from bench.harness.figures import spread
from bench.harness.limit import Limit
from bench.harness.models import gemma, n_vocab
from bench.harness.options import read_options
from bench.harness.prompts import distinct_prompts
from bench.harness.ratio import paired
from bench.harness.report import Report, Table, publish
from bench.harness.rounds import alternate
from bench.harness.serving import Setting, serving
from bench.harness.streams import GREEDY, StreamFigures, run_streams, warm_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STREAMS = (1, 8)
SLOTS = max(STREAMS)
N_PROMPT = 20
N_GENERATED = 64
N_CTX = 4096
ROUNDS = 5
QUICK_STREAMS = (1, 2)
QUICK_GENERATED = 12

SAMPLED: Mapping[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 1}
SAMPLINGS = {"greedy": GREEDY, "temperature 0.8": SAMPLED}
LIMIT = Limit()
ARMS: tuple[Arm | Limit, ...] = (LLAMASERVE, LLAMA_SERVER, LIMIT)

Case = tuple[str, int]
"""A name of SAMPLINGS, and a number of streams."""
ByCase = Mapping[Case, StreamFigures]
Results = Mapping[str, Sequence[ByCase]]


def main() -> None:
    """Measure, publish."""
    options = read_options(__doc__, rounds=ROUNDS, default_model=gemma)
    setting = Setting(options.model, options.threads, N_CTX, SLOTS)
    streams, n_generated = (QUICK_STREAMS, QUICK_GENERATED) if options.is_quick else (STREAMS, N_GENERATED)
    cases = [(sampling, n) for sampling in SAMPLINGS for n in streams]
    vocabulary = n_vocab(options.model)

    def run_one(arm: Arm | Limit, round_number: int) -> ByCase:
        if isinstance(arm, Limit):
            rows = arm.rows(setting, n_prompt=N_PROMPT, n_generated=n_generated, streams=streams)
            return {(s, n): StreamFigures.of_rate(rows[n].decode_rate, n) for s, n in cases}
        with serving(arm, setting) as running:
            warm_up(running, SLOTS, N_PROMPT, vocabulary)
            return {
                (sampling, n): run_streams(
                    running,
                    distinct_prompts(n, N_PROMPT, 100 * round_number + n, vocabulary),
                    n_generated,
                    SAMPLINGS[sampling],
                )
                for sampling, n in cases
            }

    results = alternate(ARMS, options.rounds, run_one)
    report = Report(
        scenario="big_vocab",
        question=f"What does it cost to draw from {vocabulary} tokens?",
        command=options.command,
        setting=f"{setting.described()}, {N_PROMPT} prompt tokens, {n_generated} generated, {options.rounds} rounds",
        tables=[rate_table(results, cases), ratio_table(results, cases), cost_table(results, cases)],
        raw={name: [as_json(by_case) for by_case in rounds] for name, rounds in results.items()},
        notes=[
            f"temperature 0.8 goes with top_k {SAMPLED['top_k']}, top_p {SAMPLED['top_p']}, min_p {SAMPLED['min_p']}.",
            f"{LIMIT.name} draws nothing: its figures do not depend on the sampling.",
        ],
        results=options.results,
        is_quick=options.is_quick,
    )
    publish(report, lambda figure: draw(figure, results, cases))


def as_json(by_case: ByCase) -> dict[str, dict[str, float]]:
    """One round's figures."""
    return {title(case): figures.as_json() for case, figures in by_case.items()}


def title(case: Case) -> str:
    """What a case is called."""
    sampling, n = case
    return f"{sampling}, {n} stream{'s' if n > 1 else ''}"


def rates(results: Results, name: str, case: Case) -> list[float]:
    """One a round."""
    return [by_case[case].rate for by_case in results[name]]


def step_ms_above_limit(results: Results, name: str, case: Case) -> list[float]:
    """What a step takes longer than the limit's step of the same round."""
    n_streams = case[1]
    pairs = zip(rates(results, name, case), rates(results, LIMIT.name, case), strict=True)
    return [1000 * n_streams * (1 / rate - 1 / limit) for rate, limit in pairs]


def rate_table(results: Results, cases: Sequence[Case]) -> Table:
    """Tokens a second."""
    rows = [[name, *(spread(rates(results, name, case)) for case in cases)] for name in results]
    return Table("Decode rate, tok/s over all streams, median (min..max) of the rounds", heads(cases), rows)


def ratio_table(results: Results, cases: Sequence[Case]) -> Table:
    """llamaserve beside the others."""
    rows = [
        [
            f"llamaserve / {name}",
            *(str(paired(rates(results, LLAMASERVE.name, case), rates(results, name, case))) for case in cases),
        ]
        for name in (LLAMA_SERVER.name, LIMIT.name)
    ]
    return Table("Ratio of the rates, median (min..max); above 1 llamaserve is faster", heads(cases), rows)


def cost_table(results: Results, cases: Sequence[Case]) -> Table:
    """What is not computing logits."""
    rows = [
        [name, *(spread(step_ms_above_limit(results, name, case), 2) for case in cases)]
        for name in (LLAMASERVE.name, LLAMA_SERVER.name)
    ]
    return Table("Milliseconds a step takes longer than the limit's, median (min..max)", heads(cases), rows)


def heads(cases: Sequence[Case]) -> list[str]:
    """Column titles."""
    return ["", *(title(case) for case in cases)]


def draw(figure: Figure, results: Results, cases: Sequence[Case]) -> None:
    """Rates as shares of the limit."""
    axes = figure.subplots()
    width = 0.38
    for offset, name in ((-width / 2, LLAMASERVE.name), (width / 2, LLAMA_SERVER.name)):
        shares = [paired(rates(results, name, case), rates(results, LIMIT.name, case)) for case in cases]
        spans = [[share.median - share.low for share in shares], [share.high - share.median for share in shares]]
        places = [place + offset for place in range(len(cases))]
        axes.bar(places, [share.median for share in shares], width, yerr=spans, capsize=3, label=name)
    axes.axhline(1, color="grey", linestyle="--", label=LIMIT.name)
    limits = [statistics.median(rates(results, LIMIT.name, case)) for case in cases]
    labels = [f"{title(case)}\n(limit {limit:.0f} tok/s)" for case, limit in zip(cases, limits, strict=True)]
    axes.set_xticks(range(len(cases)), labels, fontsize=8)
    axes.set_ylabel("share of the limit's decode rate (lines: min..max)")
    axes.set_title("A vocabulary of 262,144 tokens: what drawing, text and delivery leave of the limit")
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower left", ncols=3)


if __name__ == "__main__":
    main()
