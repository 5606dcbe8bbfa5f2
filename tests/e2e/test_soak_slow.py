"""200 clients at once on 8 slots, for minutes, with clients that leave: nothing fails, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

SECONDS = float(os.environ.get("LLAMASERVE_SOAK_SECONDS", "300"))
CLIENTS = 200
N_SLOTS = 8
WARM_UP = 0.3
"""Part of the time after which memory shall not grow any more."""
MOST_GROWTH = 1.1
MOST_LAG_S = 0.02

pytestmark = pytest.mark.slow


class Client:
    """Sends one request after the other; leaves some of them early."""

    def __init__(self, session: aiohttp.ClientSession, number: int, outcomes: Counter[str]) -> None:
        self._session = session
        self._chance = random.Random(number)
        self._outcomes = outcomes

    async def run(self, ends_at: float) -> None:
        while time.monotonic() < ends_at:
            outcome = await self._one()
            self._outcomes[outcome] += 1
            if outcome == "429":
                await asyncio.sleep(self._chance.uniform(0.5, 2.0))

    async def _one(self) -> str:
        chance = self._chance
        is_streamed = chance.random() < 0.7
        words = " ".join(chance.choices(("time", "moon", "tree", "seven", "river"), k=chance.randint(1, 120)))
        body = {
            "prompt": f"{chance.randint(1, 30)} {words}",
            "max_tokens": chance.randint(1, 24),
            "ignore_eos": True,
            "stream": is_streamed,
            "temperature": chance.choice((0, 0.8)),
            "cache_prompt": chance.random() < 0.7,
        }
        leaves_after = chance.uniform(0.0, 3.0) if chance.random() < 0.3 else None
        try:
            return await asyncio.wait_for(self._answer(body), leaves_after)
        except asyncio.TimeoutError:
            return "left"

    async def _answer(self, body: dict[str, object]) -> str:
        async with self._session.post("/v1/completions", json=body) as response:
            text = await response.text()
            if response.status != 200:
                return str(response.status)
            if body["stream"] and not text.endswith("data: [DONE]\n\n"):
                return "cut off"
            return "ok"


async def load(url: str, ends_at: float) -> Counter[str]:
    """All clients until the end; how their requests came out."""
    outcomes: Counter[str] = Counter()
    connector = aiohttp.TCPConnector(limit=CLIENTS)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(Client(session, number, outcomes).run(ends_at) for number in range(CLIENTS)))
    return outcomes


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def scrape(url: str) -> dict[str, float]:
    """Samples without labels; idle slots, and the buckets of the loop's lag by bound."""
    samples = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
        for sample in family.samples:
            if not sample.labels:
                samples[sample.name] = sample.value
            elif sample.name == "llamaserve_event_loop_lag_seconds_bucket":
                samples[f"lag {sample.labels['le']}"] = sample.value
            elif sample.name == "llamaserve_slots":
                samples[f"slots {sample.labels['state']}"] = sample.value
    return samples


async def watch_memory(pid: int, begins_at: float, ends_at: float) -> list[float]:
    """Resident memory every second of the time after the warm-up."""
    seen = []
    while (now := time.monotonic()) < ends_at:
        if now >= begins_at:
            seen.append(rss_mib(pid))
        await asyncio.sleep(1)
    return seen


def test_two_hundred_clients_for_minutes_leave_nothing_behind() -> None:
    """Issue-sized load: no error but 429, a loop that is never late, flat memory, counters that add up."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "llamaserve", "serve", "--port", str(port), "-np", str(N_SLOTS), "-c", "8192"]
    command += ["--cache-ram", "0"]  # what is kept there grows to its limit, and longer than the warm-up
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_ready(url)
        outcomes, memory = asyncio.run(drive(url, server.pid))
        time.sleep(1.0)
        after = scrape(url)
        rest = httpx.get(f"{url}/slots?parked=true").json()
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0
    print(outcomes, f"RSS {memory[0]:.0f} to {max(memory):.0f} MiB", {k: v for k, v in after.items() if "lag" in k})
    assert set(outcomes) <= {"ok", "left", "429"}, outcomes
    assert outcomes["ok"] > SECONDS, "hardly anything was served"
    assert max(memory) <= MOST_GROWTH * memory[0]
    assert after["lag 0.02"] >= 0.99 * after["lag +Inf"], "the event loop was late"
    check_end(after, rest)


def check_end(after: dict[str, float], slots: list[dict[str, object]]) -> None:
    """Nobody runs or waits; what the cache holds is what is parked."""
    assert after["slots idle"] == N_SLOTS
    assert after["llamaserve_queue_depth"] == 0
    assert after["llamaserve_preempted_requests"] == 0
    assert after["llamaserve_kv_cells_used"] == after["llamaserve_parked_cells"]
    assert not any(slot["is_processing"] for slot in slots)


def wait_ready(url: str) -> None:
    """Until the model is there."""
    ends_at = time.monotonic() + 120
    while time.monotonic() < ends_at:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError("the server did not come up")


async def drive(url: str, pid: int) -> tuple[Counter[str], list[float]]:
    """The load, and the server's memory meanwhile."""
    now = time.monotonic()
    outcomes, memory = await asyncio.gather(
        load(url, now + SECONDS), watch_memory(pid, now + WARM_UP * SECONDS, now + SECONDS)
    )
    return outcomes, memory
