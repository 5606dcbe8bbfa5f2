"""A number of streams at once on one server: what decode, big_vocab and noisy_neighbour have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.figures import decode_rate, pooled_itl, ran_together, require_complete
from bench.harness.prompts import distinct_prompts
from bench.harness.serving import Running
from llamaserve.loadtest.call import Call
from llamaserve.loadtest.drive import together
from llamaserve.loadtest.summary import Distribution

GREEDY: Mapping[str, Any] = {"temperature": 0}
WARM_UP_TOKENS = 48
WARM_UP_SEED = 1_000_000  # no scenario's own seeds are so large


@dataclass(frozen=True)
class StreamFigures:
    """What some streams that ran together came to."""

    rate: float
    """Tokens a second of all of them."""
    itl_p50: float
    itl_p99: float
    """Over the gaps of all of them, in seconds."""
    texts: tuple[str, ...] = ()

    def as_json(self) -> dict[str, float]:
        """The figures without the texts."""
        return {"rate": self.rate, "itl_p50": self.itl_p50, "itl_p99": self.itl_p99}

    @classmethod
    def of_rate(cls, rate: float, streams: int) -> StreamFigures:
        """Figures of a program that tells its rate only: its steps count as equally long."""
        return cls(rate, streams / rate, streams / rate)


def run_streams(
    running: Running, prompts: Sequence[Sequence[int]], n_generated: int, sampling: Mapping[str, Any] = GREEDY
) -> StreamFigures:
    """Send all prompts at once, each for exactly ``n_generated`` tokens.

    Raises RuntimeError when an answer is not whole, or when the streams did not run at the same time.
    """
    body = {"max_tokens": n_generated, "ignore_eos": True, **sampling, **running.arm.body}
    calls = [Call({"prompt": list(prompt), **body}, expected_tokens=n_generated) for prompt in prompts]
    outcomes = asyncio.run(together(running.url, calls))
    require_complete(outcomes, running.arm.name)
    if not ran_together(outcomes):
        raise RuntimeError(f"{running.arm.name}: {len(calls)} streams did not run at the same time")
    gaps = Distribution.of(pooled_itl(outcomes))
    return StreamFigures(decode_rate(outcomes), gaps.p50, gaps.p99, tuple(outcome.text for outcome in outcomes))


def warm_up(running: Running, streams: int, n_tokens: int, n_vocab: int) -> None:
    """Let the server touch its weights and allocate what it needs, with prompts that no scenario sends again."""
    run_streams(running, distinct_prompts(streams, n_tokens, WARM_UP_SEED, n_vocab), WARM_UP_TOKENS)
