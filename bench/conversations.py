"""Eight conversations of four turns on four slots, which share a system prompt: what a prefix cache is worth (S1).

Run: make bench-peers, then .venv/bin/python -m bench.conversations [--rounds N] [-m MODEL]

All conversations take their first turn, then all their second, four of them at a time, so that a conversation seldom
finds its slot as it left it. A turn is a chat request for exactly 24 tokens, greedy. TTFT counts from submission; a hit
ratio is the share of a request's prompt tokens that the server took from its cache, by its own usage figures. The arm
without a cache takes minutes where the others take seconds: it runs in the first round only.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.harness.arms import LLAMA_SERVER, LLAMA_SERVER_SPLIT, LLAMASERVE, Arm
from bench.harness.dialogue import QUESTIONS, Message, continued, opening
from bench.harness.engagement import require_reuse
from bench.harness.figures import milliseconds, require_complete, spread
from bench.harness.models import n_vocab
from bench.harness.options import read_options
from bench.harness.ratio import paired
from bench.harness.report import Report, Table, publish
from bench.harness.rounds import NotEngaged, alternate_later
from bench.harness.serving import Running, Setting, serving
from llamaserve.loadtest.call import CHAT_PATH, Call
from llamaserve.loadtest.drive import closed_loop
from llamaserve.loadtest.outcome import Outcome
from llamaserve.loadtest.summary import Distribution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SLOTS = 4
N_CTX = 8192
N_TURNS = 4
N_GENERATED = 24
ROUNDS = 2
QUICK_CONVERSATIONS = 3
QUICK_TURNS = 2

NO_CACHE: Mapping[str, Any] = {"cache_prompt": False}
OURS_OFF = replace(LLAMASERVE, name="llamaserve, cache off", body=NO_CACHE)
# Without its RAM cache, through which slots would share after all.
PEER_PER_SLOT = replace(
    LLAMA_SERVER_SPLIT, name="llama-server, per slot", flags=(*LLAMA_SERVER_SPLIT.flags, "--cache-ram", "0")
)
CACHED = (LLAMASERVE, LLAMA_SERVER, PEER_PER_SLOT)
ARMS = (*CACHED, OURS_OFF)


@dataclass(frozen=True)
class Held:
    """All conversations, held once."""

    ttft_p50: float
    ttft_p95: float
    hit_ratio: float
    """Mean over the requests."""
    prompt_tokens: int
    wall: float
    """Seconds for all turns."""
    texts: tuple[str, ...]

    def as_json(self) -> dict[str, float]:
        """The figures without the texts."""
        return {
            "ttft_p50": self.ttft_p50,
            "ttft_p95": self.ttft_p95,
            "hit_ratio": self.hit_ratio,
            "prompt_tokens": self.prompt_tokens,
            "wall": self.wall,
        }

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Held:
        """The figures over all requests."""
        ttft = Distribution.of(outcome.ttft or 0.0 for outcome in outcomes)
        hits = [(outcome.cached_tokens or 0) / (outcome.prompt_tokens or 1) for outcome in outcomes]
        wall = max(outcome.finished for outcome in outcomes) - min(outcome.submitted for outcome in outcomes)
        n_prompt = sum(outcome.prompt_tokens or 0 for outcome in outcomes)
        texts = tuple(outcome.text for outcome in outcomes)
        return cls(ttft.p50, ttft.p95, statistics.mean(hits), n_prompt, wall, texts)


Results = Mapping[str, Sequence[Held]]


def main() -> None:
    """Measure, publish."""
    options = read_options(__doc__, rounds=ROUNDS)
    setting = Setting(options.model, options.threads, N_CTX, SLOTS)
    vocabulary = n_vocab(options.model)
    questions, n_turns = QUESTIONS, N_TURNS
    if options.is_quick:
        questions, n_turns = QUESTIONS[:QUICK_CONVERSATIONS], QUICK_TURNS

    def run_one(arm: Arm, _round_number: int) -> Held:
        with serving(arm, setting) as running:
            warm_up(running)
            if not is_off(arm):
                require_reuse(running, vocabulary)
            held = Held.of(hold(running, questions, n_turns))
        require_engaged(arm, held)
        return held

    not_engaged: list[str] = []
    results = alternate_later(ARMS, CACHED, options.rounds, run_one, not_engaged)
    report = Report(
        scenario="conversations",
        question=f"What does a prefix cache save when {len(questions)} conversations share a system prompt and"
        f" {SLOTS} slots?",
        command=options.command,
        setting=f"{setting.described()}, {len(questions)} conversations of {n_turns} turns of {N_GENERATED} tokens,"
        f" {options.rounds} rounds",
        tables=[figure_table(results), ratio_table(results)],
        raw={name: [held.as_json() for held in rounds] for name, rounds in results.items()},
        notes=[
            '"per slot" is split KV without the RAM cache: a prompt is compared with what its own slot holds.',
            '"cache off" sends cache_prompt false with every request.',
            *equality_notes(results),
        ],
        not_engaged=not_engaged,
        results=options.results,
        is_quick=options.is_quick,
    )
    publish(report, lambda figure: draw(figure, results))


def hold(running: Running, questions: Sequence[Sequence[str]], n_turns: int) -> list[Outcome]:
    """Hold all conversations, a turn of each before the next turn of any. Raises RuntimeError for a bad answer."""
    conversations = [opening(asked[0]) for asked in questions]
    outcomes: list[Outcome] = []
    for turn in range(n_turns):
        calls = [chat_call(running, messages) for messages in conversations]
        answers = asyncio.run(closed_loop(running.url, calls, concurrency=SLOTS))
        require_complete(answers, running.arm.name)
        outcomes += answers
        if turn + 1 < n_turns:
            conversations = [
                continued(messages, answer.text, asked[turn + 1])
                for messages, answer, asked in zip(conversations, answers, questions, strict=True)
            ]
    return outcomes


def chat_call(running: Running, messages: Sequence[Message]) -> Call:
    """One turn."""
    body = {"messages": list(messages), "max_tokens": N_GENERATED, "temperature": 0, "ignore_eos": True}
    return Call({**body, **running.arm.body}, CHAT_PATH, expected_tokens=N_GENERATED)


def warm_up(running: Running) -> None:
    """Touch weights and template with a prompt that shares nothing with the conversations'."""
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Say hello."}]
    answers = asyncio.run(closed_loop(running.url, [chat_call(running, messages)] * SLOTS, concurrency=SLOTS))
    require_complete(answers, running.arm.name)


def is_off(arm: Arm) -> bool:
    """Whether the arm asks for no cache."""
    return arm.body.get("cache_prompt") is False


def require_engaged(arm: Arm, held: Held) -> None:
    """Raises NotEngaged when the cache hits speak against taking the figures for what the arm's name says."""
    if is_off(arm) and held.hit_ratio > 0:
        raise NotEngaged("prompt tokens came from a cache that is off")
    if not is_off(arm) and held.hit_ratio == 0:
        raise NotEngaged("no prompt token came from a cache")


def figure_table(results: Results) -> Table:
    """Absolute figures."""
    rows = [
        [
            name,
            milliseconds([held.ttft_p50 for held in rounds], 0),
            milliseconds([held.ttft_p95 for held in rounds], 0),
            spread([100 * held.hit_ratio for held in rounds]),
            spread([held.wall for held in rounds]),
            str(len(rounds)),
        ]
        for name, rounds in results.items()
    ]
    columns = ["", "TTFT median, ms", "TTFT p95, ms", "hit ratio, %", "all turns, s", "rounds"]
    return Table("Median (min..max) of the rounds", columns, rows)


def ratio_table(results: Results) -> Table:
    """llamaserve beside the peer, and what a cache gains."""
    pairs = [(LLAMASERVE, LLAMA_SERVER), (LLAMASERVE, PEER_PER_SLOT), (LLAMASERVE, OURS_OFF), (LLAMA_SERVER, OURS_OFF)]
    rows = []
    for ours, peer in pairs:
        if ours.name in results and peer.name in results:
            both = min(len(results[ours.name]), len(results[peer.name]))  # rounds in which both ran
            left, right = results[ours.name][:both], results[peer.name][:both]
            cells = [
                str(paired([held.ttft_p50 for held in left], [held.ttft_p50 for held in right])),
                str(paired([held.ttft_p95 for held in left], [held.ttft_p95 for held in right])),
                str(paired([held.wall for held in left], [held.wall for held in right])),
            ]
            rows.append([f"{ours.name} / {peer.name}", *cells, str(both)])
    columns = ["", "TTFT median", "TTFT p95", "all turns", "rounds"]
    return Table("Ratios, median (min..max); below 1 the first is faster", columns, rows)


def equality_notes(results: Results) -> list[str]:
    """Whether answers are the same with a cache as without; prompts cut elsewhere may round otherwise."""
    notes = []
    for cached, off in ((LLAMASERVE, OURS_OFF), (LLAMA_SERVER, OURS_OFF)):
        if cached.name in results and off.name in results:
            pairs = [
                (a, b)
                for left, right in zip(results[cached.name], results[off.name], strict=False)  # off has one round
                for a, b in zip(left.texts, right.texts, strict=True)
            ]
            equal = sum(a == b for a, b in pairs)
            notes.append(f"Texts of {cached.name} equal to those of {off.name}: {equal} of {len(pairs)}.")
    return notes


def draw(figure: Figure, results: Results) -> None:
    """TTFT and hit ratio of every arm."""
    times, hits = figure.subplots(1, 2, width_ratios=(3, 1), sharey=True)
    figure.suptitle("Conversations that share a system prompt, on 4 slots: time to first token and cache hits")
    names = list(results)[::-1]
    middle = [1000 * statistics.median(held.ttft_p50 for held in results[name]) for name in names]
    slow = [1000 * statistics.median(held.ttft_p95 for held in results[name]) for name in names]
    places = range(len(names))
    times.barh([place + 0.2 for place in places], middle, height=0.38, label="median")
    times.barh([place - 0.2 for place in places], slow, height=0.38, label="p95")
    times.set_yticks(places, names)
    times.set_xlabel("time to first token from submission, ms")
    figure.legend(loc="outside lower left", ncols=2)
    hits.barh(
        places, [100 * statistics.median(h.hit_ratio for h in results[name]) for name in names], color="tab:green"
    )
    hits.set(xlabel="from cache, %", xlim=(0, 100))
    for axes in (times, hits):
        axes.grid(axis="x", alpha=0.3)


if __name__ == "__main__":
    main()
