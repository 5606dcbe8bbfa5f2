"""Eight requests at once over one prefix of 1,500 tokens: cold, and again when the prefix has been computed.

Run: make bench-peers, then .venv/bin/python -m bench.shared_prefix [--rounds N] [-m MODEL]

Each request has 20 tokens of its own after the prefix. Cold, no server has seen the prefix: one that shares it computes
1,500 + 8 × 20 prompt tokens, one that does not 8 × 1,520. Warm, eight requests with other ends follow. TTFT counts
from submission; computed prompt tokens are those of all requests less those the server says came from its cache.
llama-server has 8 slots on one KV pool.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.harness.arms import LLAMA_SERVER, LLAMASERVE, Arm
from bench.harness.engagement import require_reuse
from bench.harness.figures import computed_prompt_tokens, milliseconds, require_complete, spread
from bench.harness.models import n_vocab
from bench.harness.options import read_options
from bench.harness.prompts import shared_prefix_prompts
from bench.harness.ratio import paired
from bench.harness.report import Report, Table, publish
from bench.harness.rounds import NotEngaged, alternate
from bench.harness.serving import Running, Setting, serving
from bench.harness.streams import warm_up
from llamaserve.loadtest.call import Call
from llamaserve.loadtest.drive import together
from llamaserve.loadtest.summary import Distribution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REQUESTS = 8
SLOTS = 8
N_PREFIX = 1500
N_SUFFIX = 20
N_GENERATED = 8
N_CTX = 16_384  # eight whole prompts fit, for servers that share nothing
ROUNDS = 2  # a burst that shares nothing takes more than a minute on two slow cores
QUICK_PREFIX = 200

ARMS = (LLAMASERVE, LLAMA_SERVER)


@dataclass(frozen=True)
class Burst:
    """Eight requests that came at once."""

    ttft_p50: float
    ttft_max: float
    prompt_tokens: int
    computed: int
    """Prompt tokens that did not come from a cache."""

    def as_json(self) -> dict[str, float]:
        """All figures."""
        return {
            "ttft_p50": self.ttft_p50,
            "ttft_max": self.ttft_max,
            "prompt_tokens": self.prompt_tokens,
            "computed": self.computed,
        }


@dataclass(frozen=True)
class Bursts:
    """The first burst over a prefix, and the next."""

    cold: Burst
    warm: Burst

    @property
    def by_name(self) -> dict[str, Burst]:
        """Both."""
        return {"cold": self.cold, "warm": self.warm}

    @property
    def shared(self) -> bool:
        """Whether anything came from a cache."""
        return any(burst.computed < burst.prompt_tokens for burst in self.by_name.values())


Results = Mapping[str, Sequence[Bursts]]


def main() -> None:
    """Measure, publish."""
    options = read_options(__doc__, rounds=ROUNDS)
    setting = Setting(options.model, options.threads, N_CTX, SLOTS)
    n_prefix = QUICK_PREFIX if options.is_quick else N_PREFIX
    vocabulary = n_vocab(options.model)

    def run_one(arm: Arm, round_number: int) -> Bursts:
        prompts = shared_prefix_prompts(2 * REQUESTS, n_prefix, N_SUFFIX, round_number, vocabulary)
        with serving(arm, setting) as running:
            warm_up(running, SLOTS, N_SUFFIX, vocabulary)
            require_reuse(running, vocabulary)
            bursts = Bursts(send_burst(running, prompts[:REQUESTS]), send_burst(running, prompts[REQUESTS:]))
        require_engaged(bursts)
        return bursts

    not_engaged: list[str] = []
    results = alternate(ARMS, options.rounds, run_one, not_engaged)
    report = Report(
        scenario="shared_prefix",
        question=f"How long do {REQUESTS} requests wait that come at once over one prefix of {n_prefix} tokens, and how"
        " much of it is computed again?",
        command=options.command,
        setting=f"{setting.described()}, {REQUESTS} prompts of {n_prefix} + {N_SUFFIX} tokens, {N_GENERATED} generated,"
        f" {options.rounds} rounds",
        tables=[figure_table(results), ratio_table(results)],
        raw={
            name: [{label: burst.as_json() for label, burst in both.by_name.items()} for both in rounds]
            for name, rounds in results.items()
        },
        notes=[
            f"Nothing shared would be {REQUESTS * (n_prefix + N_SUFFIX)} computed tokens a burst.",
        ],
        not_engaged=not_engaged,
        results=options.results,
        is_quick=options.is_quick,
    )
    publish(report, lambda figure: draw(figure, results))


def send_burst(running: Running, prompts: Sequence[Sequence[int]]) -> Burst:
    """Send all prompts at once. Raises RuntimeError for a bad answer."""
    body = {"max_tokens": N_GENERATED, "ignore_eos": True, "temperature": 0, **running.arm.body}
    calls = [Call({"prompt": list(prompt), **body}, expected_tokens=N_GENERATED) for prompt in prompts]
    outcomes = asyncio.run(together(running.url, calls))
    require_complete(outcomes, running.arm.name)
    ttft = Distribution.of(outcome.ttft or 0.0 for outcome in outcomes)
    n_prompt = sum(len(prompt) for prompt in prompts)
    if n_prompt != sum(outcome.prompt_tokens or 0 for outcome in outcomes):
        raise RuntimeError(f"{running.arm.name}: its usage does not add up to the {n_prompt} prompt tokens it was sent")
    return Burst(ttft.p50, ttft.max, n_prompt, computed_prompt_tokens(outcomes))


def require_engaged(bursts: Bursts) -> None:
    """Raises NotEngaged when nothing came from a cache."""
    if not bursts.shared:
        raise NotEngaged("no prefix was shared")


def figure_table(results: Results) -> Table:
    """Absolute figures."""
    rows = []
    for name, rounds in results.items():
        for label in rounds[0].by_name:
            bursts = [both.by_name[label] for both in rounds]
            rows.append(
                [
                    f"{name}, {label}",
                    milliseconds([burst.ttft_p50 for burst in bursts], 0),
                    milliseconds([burst.ttft_max for burst in bursts], 0),
                    spread([burst.computed for burst in bursts], 0),
                ]
            )
    columns = ["", "TTFT median, ms", "TTFT max, ms", "prompt tokens computed"]
    return Table("Median (min..max) of the rounds", columns, rows)


def ratio_table(results: Results) -> Table:
    """llamaserve beside the peer; cold and warm apart."""
    rows = []
    if LLAMASERVE.name in results and LLAMA_SERVER.name in results:
        ours, peer = results[LLAMASERVE.name], results[LLAMA_SERVER.name]
        cells = [
            str(paired(*([both.by_name[label].ttft_p50 for both in rounds] for rounds in (ours, peer))))
            for label in ("cold", "warm")
        ]
        rows.append([f"{LLAMASERVE.name} / {LLAMA_SERVER.name}", *cells])
    title = "Ratios of the median TTFT, median (min..max); below 1 the first is faster"
    return Table(title, ["", "cold", "warm"], rows)


def draw(figure: Figure, results: Results) -> None:
    """TTFT and computed tokens, cold and warm."""
    times, computed = figure.subplots(1, 2, sharey=True)
    figure.suptitle("Eight requests at once over one long prefix: time to first token, and what is computed")
    names = list(results)[::-1]
    for offset, label in ((0.2, "cold"), (-0.2, "warm")):
        bursts = [[both.by_name[label] for both in results[name]] for name in names]
        places = [place + offset for place in range(len(names))]
        times.barh(places, [statistics.median(b.ttft_p50 for b in cell) for cell in bursts], height=0.38, label=label)
        computed.barh(
            places, [statistics.median(b.computed for b in cell) for cell in bursts], height=0.38, label=label
        )
    times.set_yticks(range(len(names)), names)
    times.set_xlabel("median time to first token, s")
    computed.set_xlabel("prompt tokens computed")
    for axes in (times, computed):
        axes.grid(axis="x", alpha=0.3)
    figure.legend(*times.get_legend_handles_labels(), loc="outside lower left", ncols=2)


if __name__ == "__main__":
    main()
