"""A client that leaves its requests, and sees how long the server goes on with them. One event loop."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import count

import aiohttp

from bench.harness.figures import require_complete
from bench.harness.prompts import distinct_prompts
from bench.harness.rounds import NotEngaged
from bench.harness.streams import GREEDY
from llamaserve.loadtest.call import Call
from llamaserve.loadtest.outcome import Outcome
from llamaserve.loadtest.send import send

COUNTERS = ("llamacpp:tokens_predicted_total",)
"""Names under which /metrics counts generated tokens."""
N_PROMPT = 8
"""Of short requests and of streams."""


class LeavingClient:
    """Sends requests whose prompts nobody has sent before. One event loop."""

    def __init__(self, session: aiohttp.ClientSession, url: str, vocabulary: int, seed: int) -> None:
        self._session = session
        self._url = url
        self._vocabulary = vocabulary
        self._seeds = count(seed)

    def call(self, n_prompt: int, n_tokens: int, stop_after: int | None = None) -> Call:
        """A request with a prompt of its own."""
        prompt = distinct_prompts(1, n_prompt, next(self._seeds), self._vocabulary)[0]
        body = {"prompt": prompt, "max_tokens": n_tokens, "ignore_eos": True, **GREEDY}
        return Call(body, expected_tokens=n_tokens, stop_after=stop_after)

    async def answered(self, call: Call) -> Outcome:
        """Raises RuntimeError when the answer is not whole."""
        outcome = await send(self._session, self._url, call)
        require_complete([outcome], self._url)
        return outcome

    async def ttft(self, n_prompt: int) -> float:
        """Of a request for one token."""
        outcome = await self.answered(self.call(n_prompt, 1))
        return outcome.token_times[0] - outcome.submitted

    async def wait_after(self, dropped: float) -> float:
        """From a moment to the first token of a short request that is sent now."""
        outcome = await self.answered(self.call(N_PROMPT, 1))
        return outcome.token_times[0] - dropped

    async def drop_stream(self, n_tokens: int, stop_after: int) -> float:
        """Leave a stream after so many tokens; when that was. Raises NotEngaged."""
        outcome = await send(self._session, self._url, self.call(N_PROMPT, n_tokens, stop_after))
        if not outcome.is_abandoned or outcome.completion_tokens is not None:
            raise NotEngaged(f"a stream was not dropped in the middle: {outcome.failure}")
        return outcome.finished

    async def drop_prompt(self, n_prompt: int, after: float) -> float:
        """Leave while a long prompt is computed; when that was. Raises NotEngaged."""
        sending = asyncio.ensure_future(send(self._session, self._url, self.call(n_prompt, 1)))
        done, _ = await asyncio.wait({sending}, timeout=after)
        if done:
            raise NotEngaged(f"the long prompt was answered within {after:.1f} s: {sending.result().failure}")
        sending.cancel()
        await asyncio.wait({sending})
        return time.perf_counter()

    async def generated(self) -> int | None:
        """Tokens the server has generated since its start; None if it does not tell."""
        async with self._session.get(f"{self._url}/metrics") as response:
            return counted(await response.text()) if response.status == 200 else None


def counted(metrics: str) -> int | None:
    """The generated tokens in a Prometheus text; None if it has no counter that is known here."""
    for name in COUNTERS:
        found = re.search(rf"^{re.escape(name)}(?:\{{.*\}})? ([0-9.e+]+)$", metrics, re.MULTILINE)
        if found is not None:
            return int(float(found[1]))
    return None
