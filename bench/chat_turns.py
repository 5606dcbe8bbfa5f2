"""A chat of four turns through a running server, beside calls that remember nothing (S2).

Run: make bench-peers, then .venv/bin/python -m bench.chat_turns [--rounds N] [-m MODEL]

Every turn sends the whole conversation, greedy, for exactly 24 tokens. A running server may keep what it computed for
the turns before. Stateless, on both servers, are requests with cache_prompt false; the third stateless way is the
Python API with a new ``Server`` a turn, whose time is given without and with loading the model. Times are from
submission to the last token, over all four turns.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.harness.arms import LLAMA_SERVER, LLAMASERVE, Arm
from bench.harness.dialogue import QUESTIONS, continued, opening
from bench.harness.figures import milliseconds, require_complete, spread
from bench.harness.options import read_options
from bench.harness.ratio import paired
from bench.harness.report import Report, Table, publish
from bench.harness.rounds import NotEngaged, alternate
from bench.harness.serving import Running, Setting, serving
from llamaserve import Server
from llamaserve.loadtest.call import CHAT_PATH, Call
from llamaserve.loadtest.drive import closed_loop

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_TURNS = 4
N_GENERATED = 24
N_CTX = 8192
SLOTS = 4
ROUNDS = 5
QUICK_TURNS = 2

SAMPLING: Mapping[str, Any] = {"max_tokens": N_GENERATED, "temperature": 0, "ignore_eos": True}
NO_CACHE: Mapping[str, Any] = {"cache_prompt": False}
OURS_OFF = replace(LLAMASERVE, name="llamaserve, stateless", body=NO_CACHE)
PEER_OFF = replace(LLAMA_SERVER, name="llama-server, stateless", body=NO_CACHE)


@dataclass(frozen=True)
class NewServers:
    """The Python API with a server a turn; takes turns with the arms."""

    name: str = "Python API, a Server a turn"


NEW_SERVERS = NewServers()
ARMS: tuple[Arm | NewServers, ...] = (LLAMASERVE, LLAMA_SERVER, OURS_OFF, PEER_OFF, NEW_SERVERS)


@dataclass(frozen=True)
class Chat:
    """One chat, held once."""

    seconds: tuple[float, ...]
    """A turn each."""
    loading: float
    """Seconds spent on loading, which are not in ``seconds``."""
    hit_ratio: float
    texts: tuple[str, ...]

    @property
    def total(self) -> float:
        """Seconds of all turns."""
        return sum(self.seconds)

    def as_json(self) -> dict[str, object]:
        """The figures without the texts."""
        return {"seconds": list(self.seconds), "loading": self.loading, "hit_ratio": self.hit_ratio}


Results = Mapping[str, Sequence[Chat]]


def main() -> None:
    """Measure, check the texts, publish."""
    options = read_options(__doc__, rounds=ROUNDS)
    setting = Setting(options.model, options.threads, N_CTX, SLOTS)
    n_turns = QUICK_TURNS if options.is_quick else N_TURNS

    def run_one(arm: Arm | NewServers, round_number: int) -> Chat:
        questions = QUESTIONS[round_number % len(QUESTIONS)][:n_turns]
        if isinstance(arm, NewServers):
            return chat_with_new_servers(setting, questions)
        with serving(arm, setting) as running:
            warm_up(running)
            chat = chat_over_http(running, questions)
        require_engaged(arm, chat)
        return chat

    not_engaged: list[str] = []
    results = alternate(ARMS, options.rounds, run_one, not_engaged)
    require_equal_texts(results)
    report = Report(
        scenario="chat_turns",
        question=f"What does a chat of {n_turns} turns gain when the server remembers the turns before?",
        command=options.command,
        setting=f"{setting.described()}, one chat, {N_GENERATED} tokens a turn, {options.rounds} rounds",
        tables=[figure_table(results), ratio_table(results)],
        raw={name: [chat.as_json() for chat in rounds] for name, rounds in results.items()},
        notes=[
            "Stateless is cache_prompt false on the servers; the Python API opens and closes a server every turn, and"
            " loading it is in a column of its own.",
            *equality_notes(results),
        ],
        not_engaged=not_engaged,
        results=options.results,
        is_quick=options.is_quick,
    )
    publish(report, lambda figure: draw(figure, results))


def chat_over_http(running: Running, questions: Sequence[str]) -> Chat:
    """Hold the chat, a request a turn. Raises RuntimeError for a bad answer."""
    messages = opening(questions[0])
    seconds, texts, n_cached, n_prompt = [], [], 0, 0
    for turn in range(len(questions)):
        call = Call({"messages": messages, **SAMPLING, **running.arm.body}, CHAT_PATH, expected_tokens=N_GENERATED)
        answers = asyncio.run(closed_loop(running.url, [call], concurrency=1))
        require_complete(answers, running.arm.name)
        answer = answers[0]
        seconds.append(answer.e2e or 0.0)
        texts.append(answer.text)
        n_cached += answer.cached_tokens or 0
        n_prompt += answer.prompt_tokens or 0
        if turn + 1 < len(questions):
            messages = continued(messages, answer.text, questions[turn + 1])
    return Chat(tuple(seconds), 0.0, n_cached / n_prompt, tuple(texts))


def warm_up(running: Running) -> None:
    """Touch weights and template with a prompt that shares nothing with the chat's."""
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Say hello."}]
    call = Call({"messages": messages, **SAMPLING, **running.arm.body}, CHAT_PATH, expected_tokens=N_GENERATED)
    require_complete(asyncio.run(closed_loop(running.url, [call], concurrency=1)), running.arm.name)


def chat_with_new_servers(setting: Setting, questions: Sequence[str]) -> Chat:
    """The chat in a process of its own, which ends with its threads."""
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawning) as executor:
        return executor.submit(_chat_with_new_servers, setting, tuple(questions)).result()


def _chat_with_new_servers(setting: Setting, questions: Sequence[str]) -> Chat:
    messages = opening(questions[0])
    seconds, texts, loading = [], [], 0.0
    for turn in range(len(questions)):
        start = time.perf_counter()
        with Server(setting.model, n_ctx=setting.n_ctx, n_slots=setting.slots, n_threads=setting.threads) as server:
            loaded = time.perf_counter()
            answer = server.chat(messages, **SAMPLING)
            seconds.append(time.perf_counter() - loaded)
        loading += loaded - start
        if answer.usage.completion_tokens != N_GENERATED:
            raise RuntimeError(f"asked for {N_GENERATED} tokens, got {answer.usage.completion_tokens}")
        texts.append(answer.content)
        if turn + 1 < len(questions):
            messages = continued(messages, answer.content, questions[turn + 1])
    return Chat(tuple(seconds), loading, 0.0, tuple(texts))


def require_engaged(arm: Arm, chat: Chat) -> None:
    """Raises NotEngaged when the cache hits speak against taking the figures for what the arm's name says."""
    is_off = arm.body.get("cache_prompt") is False
    if is_off and chat.hit_ratio > 0:
        raise NotEngaged("prompt tokens came from a cache that is off")
    if not is_off and chat.hit_ratio == 0:
        raise NotEngaged("no prompt token came from an earlier turn")


def require_equal_texts(results: Results) -> None:
    """Alone, greedy and with prompts computed alike the stateless ways must agree: exits with 1 when they do not."""
    first, *others = [name for name in (NEW_SERVERS.name, OURS_OFF.name, PEER_OFF.name) if name in results]
    for name in others:
        for ours, theirs in zip(results[first], results[name], strict=True):
            if ours.texts != theirs.texts:
                sys.exit(f"the texts of {first} and {name} differ: {ours.texts} and {theirs.texts}")


def equality_notes(results: Results) -> list[str]:
    """Texts with the memory beside those without: a prompt that is cut elsewhere may round otherwise."""
    notes = ["The texts of all stateless ways are equal, turn by turn."]
    for kept, off in ((LLAMASERVE, OURS_OFF), (LLAMA_SERVER, PEER_OFF)):
        if kept.name not in results or off.name not in results:
            continue
        pairs = zip(results[kept.name], results[off.name], strict=True)
        equal = [a == b for left, right in pairs for a, b in zip(left.texts, right.texts, strict=True)]
        notes.append(f"Texts of {kept.name} equal to those of {off.name}: {sum(equal)} of {len(equal)}.")
    return notes


def figure_table(results: Results) -> Table:
    """Absolute figures."""
    rows = [
        [
            name,
            milliseconds([chat.total for chat in rounds], 0),
            milliseconds([chat.seconds[-1] for chat in rounds], 0),
            spread([100 * chat.hit_ratio for chat in rounds]),
            milliseconds([chat.loading for chat in rounds], 0) if any(chat.loading for chat in rounds) else "-",
        ]
        for name, rounds in results.items()
    ]
    columns = ["", "all turns, ms", "last turn, ms", "prompt tokens from cache, %", "loading, ms"]
    return Table("Median (min..max) of the rounds", columns, rows)


def ratio_table(results: Results) -> Table:
    """What memory brings each server, and like with like."""
    pairs = [(OURS_OFF.name, LLAMASERVE.name), (PEER_OFF.name, LLAMA_SERVER.name), (NEW_SERVERS.name, LLAMASERVE.name)]
    pairs += [(LLAMASERVE.name, LLAMA_SERVER.name), (OURS_OFF.name, PEER_OFF.name)]
    rows = []
    for left, right in pairs:
        if left in results and right in results:
            ratio = paired([chat.total for chat in results[left]], [chat.total for chat in results[right]])
            rows.append([f"{left} / {right}", str(ratio)])
    title = "Ratios of the time of all turns, without loading, median (min..max)"
    return Table(title, ["", "all turns"], rows)


def draw(figure: Figure, results: Results) -> None:
    """Time of every turn."""
    axes = figure.subplots()
    for name, rounds in results.items():
        turns = range(1, len(rounds[0].seconds) + 1)
        axes.plot(
            turns, [1000 * statistics.median(chat.seconds[t - 1] for chat in rounds) for t in turns], "o-", label=name
        )
        axes.set_xticks(turns)
    axes.set(xlabel="turn", ylabel="submission to last token, ms (median)", title="A chat, turn by turn")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()


if __name__ == "__main__":
    main()
