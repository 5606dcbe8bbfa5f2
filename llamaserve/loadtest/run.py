"""Runs a plan, point by point. One event loop; imports aiohttp."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp
import msgspec

from llamaserve.loadtest.call import Call
from llamaserve.loadtest.drive import closed_loop, open_loop
from llamaserve.loadtest.load import ClosedLoad, Load, OpenLoad
from llamaserve.loadtest.outcome import Outcome
from llamaserve.loadtest.plan import Plan
from llamaserve.loadtest.view import NoView, View

MODEL_LIST_TIMEOUT = 10.0


@dataclass(slots=True)
class Point:
    """What came of one point of the sweep; it fills while it runs."""

    load: Load
    warmup: list[Outcome] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    """In the order of the requests; while the point runs, in that of their ends."""
    generator_cpu: float = 0.0
    """Processor seconds of this process during the measured requests."""


class Run:
    """A plan under way. After a Ctrl-C ``points`` hold what was measured until then."""

    def __init__(self, plan: Plan, view: View | None = None) -> None:
        self.plan = plan
        self.model = plan.model
        """The name sent with requests; None sends none."""
        self.points: list[Point] = []
        self._view: View = view or NoView()

    async def run(self) -> None:
        """Run all points."""
        if self.model is None:
            self.model = await first_model(self.plan)
        for index, load in enumerate(self.plan.loads):
            point = Point(load)
            self.points.append(point)
            await self._warm_up(index, point)
            await self._measure(index, point)

    async def _warm_up(self, index: int, point: Point) -> None:
        calls = self.plan.warmup_calls(index, self.model)
        if calls:
            concurrency = point.load.concurrency if isinstance(point.load, ClosedLoad) else 1
            self._view.part(f"{point.load.title}, warm-up", len(calls))
            point.warmup = await self._drive(ClosedLoad(concurrency), calls, point.warmup)

    async def _measure(self, index: int, point: Point) -> None:
        calls = self.plan.calls(index, self.model)
        self._view.part(point.load.title, len(calls))
        cpu_before = time.process_time()
        try:
            point.outcomes = await self._drive(point.load, calls, point.outcomes)
        finally:
            point.generator_cpu = time.process_time() - cpu_before

    async def _drive(self, load: Load, calls: list[Call], outcomes: list[Outcome]) -> list[Outcome]:
        def on_outcome(outcome: Outcome) -> None:
            outcomes.append(outcome)
            self._view.outcome(outcome)

        plan = self.plan
        if isinstance(load, OpenLoad):
            return await open_loop(
                plan.url,
                calls,
                stall_timeout=plan.stall_timeout,
                headers=plan.headers,
                on_outcome=on_outcome,
                on_tokens=self._view.tokens,
            )
        return await closed_loop(
            plan.url,
            calls,
            concurrency=load.concurrency,
            stall_timeout=plan.stall_timeout,
            headers=plan.headers,
            on_outcome=on_outcome,
            on_tokens=self._view.tokens,
        )


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_Model]


async def first_model(plan: Plan) -> str | None:
    """The first model the server lists, or None if it lists none: the requests will show what is wrong with it."""
    timeout = aiohttp.ClientTimeout(total=min(MODEL_LIST_TIMEOUT, plan.stall_timeout))
    try:
        async with (
            aiohttp.ClientSession(headers=plan.headers, timeout=timeout) as session,
            session.get(f"{plan.url}/v1/models") as response,
        ):
            models = msgspec.json.decode(await response.read(), type=_ModelList).data
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError, RecursionError):
        return None
    return models[0].id if models else None
