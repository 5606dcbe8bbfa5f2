"""Microseconds an admission spends on looking for its prefix. Run: python -m bench.prefix_lookup

250 holders share 16,384 tokens and have 16,384 of their own; in a second tree each goes 128 tokens farther than the one
before. Below stands what one comparison of two prompts costs natively and in its Python twin.
"""

from __future__ import annotations

import platform
import random
import sys
import time
from array import array
from collections.abc import Callable
from functools import partial

from llamaserve._hot import common_prefix
from llamaserve.cache.prefix_index import PrefixIndex
from tests.reference.common_prefix import common_prefix as reference_common_prefix

N_HOLDERS = 250
N_SHARED = 16_384
N_PROMPT = 2 * N_SHARED
N_VOCABULARY = 150_000
N_ROUNDS = 200
SCOPE = ""


def best_us(function: Callable[[], object], n_rounds: int = N_ROUNDS) -> float:
    """The best of some rounds."""
    times = []
    for _ in range(n_rounds):
        start = time.perf_counter_ns()
        function()
        times.append(time.perf_counter_ns() - start)
    return min(times) / 1000


def prompts() -> list[array[int]]:
    """They are equal up to ``N_SHARED`` and diverge there."""
    source = random.Random(1)
    shared = array("i", source.choices(range(N_VOCABULARY), k=N_SHARED))
    own = [source.sample(range(N_VOCABULARY), k=N_PROMPT - N_SHARED) for _ in range(N_HOLDERS + 1)]
    return [shared + array("i", tokens) for tokens in own]


def index_of(held: list[array[int]]) -> PrefixIndex:
    index = PrefixIndex()
    for holder, tokens in enumerate(held):
        index.add(holder, SCOPE, tokens, index.peek(SCOPE, tokens, len(tokens)).n_tokens)
    return index


def lookup(index: PrefixIndex, prompt: array[int], tokens: array[int]) -> None:
    """A match that cannot use the answer to the one before."""
    index.match(SCOPE, tokens, 1)
    index.match(SCOPE, prompt, len(prompt) - 1)


def admission(index: PrefixIndex, prompt: array[int]) -> None:
    """What a request does: it looks, is added with what was found, and is removed so that the next round is equal."""
    found = index.match(SCOPE, prompt, len(prompt) - 1)
    index.add(N_HOLDERS, SCOPE, prompt, found.n_tokens, n_tokens=found.n_tokens)
    index.remove(N_HOLDERS)


def index_cases() -> list[tuple[str, Callable[[], object]]]:
    *held, new = prompts()
    wide = index_of(held)
    chain = index_of([new[: 128 * (n + 1)] for n in range(N_HOLDERS)])
    nothing = array("i")
    foreign = new[:]
    foreign[0] = -1
    found = [wide.match(SCOPE, held[99], N_PROMPT).n_tokens, wide.match(SCOPE, new, N_PROMPT).n_tokens]
    assert found == [N_PROMPT, N_SHARED]
    assert wide.match(SCOPE, foreign, N_PROMPT).n_tokens == 0
    assert chain.match(SCOPE, new, N_PROMPT).n_tokens == 128 * N_HOLDERS
    return [
        ("match, all 32,768 tokens are held", partial(lookup, wide, held[99], nothing)),
        ("match, 16,384 are held", partial(lookup, wide, new, nothing)),
        ("match, the first token differs", partial(lookup, wide, foreign, nothing)),
        ("match, 32,000 in 250 runs", partial(lookup, chain, new, nothing)),
        ("the same match again (answered from memory)", partial(wide.peek, SCOPE, new, N_PROMPT)),
        ("match, add and remove, 16,384 are held", partial(admission, wide, new)),
        ("match, add and remove, 32,000 in 250 runs", partial(admission, chain, new)),
        ("victim, 250 runs to choose from", wide.victim),
        ("a match of nothing (part of each match above)", partial(wide.match, SCOPE, nothing, 1)),
    ]


def main() -> None:
    first, second, *_ = prompts()
    equal = first[:]
    early = first[:]
    early[0] = -1
    print(f"{N_HOLDERS} holders, prompts of {N_PROMPT} tokens, Python {sys.version.split()[0]}, {platform.machine()}\n")
    print(f"| {'index':48} | µs |\n|---|---|")
    for name, function in index_cases():
        print(f"| {name:48} | {best_us(function):.1f} |")
    print(f"\n| {'common_prefix':33} | native | GB/s | twin | twin/native |\n|---|---|---|---|---|")
    for name, other in (("32,768 equal", equal), ("16,384 equal", second), ("the first differs", early)):
        native_us = best_us(partial(common_prefix, first, other))
        twin_us = best_us(partial(reference_common_prefix, first, other), n_rounds=10)
        n_bytes = 4 * common_prefix(first, other)
        speed = f"{n_bytes / native_us / 1000:.0f}" if n_bytes else ""
        print(f"| {name:33} | {native_us:.2f} | {speed} | {twin_us:.1f} | {twin_us / native_us:.0f} |")


if __name__ == "__main__":
    main()
