"""Drives a scheduler by hand on a fake engine: no thread, a clock that is set, invariants checked after every tick."""

from __future__ import annotations

import itertools
from collections import defaultdict

from llamaserve.cache.build import make_prefix_memory
from llamaserve.config import CacheConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.errors import LlamaServeError
from llamaserve.request import Event, Failed, Finished, GenerationRequest, Lane, Progress, SamplingParams, TextDelta
from llamaserve.scheduler.scheduler import Scheduler
from tests.unit.scheduler.invariants import check

NO_TIERS = CacheConfig(cache_ram=0)


class SetClock:
    """A clock that stands still until told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Harness:
    """A scheduler, its engine, and what it delivered."""

    def __init__(
        self,
        engine: FakeEngine | None = None,
        config: SchedulerConfig | None = None,
        cache: CacheConfig | None = None,
    ) -> None:
        self.engine = engine or FakeEngine()
        self.clock = SetClock()
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.batches: list[list[tuple[str, Event]]] = []
        self.prefixes = make_prefix_memory(self.engine, cache or NO_TIERS)
        self.scheduler = Scheduler(
            self.engine, config or SchedulerConfig(), self._deliver, self.prefixes, clock=self.clock
        )
        self._ids = itertools.count()

    def _deliver(self, events: list[tuple[str, Event]]) -> None:
        self.batches.append(events)
        for request_id, event in events:
            self.events[request_id].append(event)

    def submit(
        self,
        prompt: bytes | tuple[int, ...] = b"hello",
        *,
        max_tokens: int | None = 8,
        stop: tuple[str, ...] = (),
        sampling: SamplingParams | None = None,
        request_id: str | None = None,
        cache_prompt: bool = False,
        cache_salt: str = "",
        session: str | None = None,
        return_progress: bool = False,
        priority: Lane = Lane.NORMAL,
        owner: str = "",
        timeout_s: float | None = None,
        prompt_group: str = "",
    ) -> str:
        """Submit a request; its id. It reuses nothing and leaves nothing unless ``cache_prompt`` says so."""
        name = f"r{next(self._ids)}" if request_id is None else request_id
        request = GenerationRequest(
            name,
            tuple(prompt),
            max_tokens,
            stop,
            sampling or SamplingParams(),
            cache_prompt=cache_prompt,
            cache_salt=cache_salt,
            session=session,
            return_progress=return_progress,
            priority=priority,
            owner=owner,
            prompt_group=prompt_group,
        )
        self.scheduler.submit(request, timeout_s=timeout_s)
        return name

    def tick(self, times: int = 1) -> None:
        """Tick and check; a FakeEngine keeps exactly the computed tokens of the running requests."""
        for _ in range(times):
            self.scheduler.tick()
            check(self.scheduler)

    def run(self, most_ticks: int = 10_000) -> None:
        """Tick until there is nothing to do."""
        for _ in range(most_ticks):
            did = self.scheduler.tick()
            check(self.scheduler)
            if not did:
                return
        raise AssertionError(f"not done after {most_ticks} ticks")

    def text(self, request_id: str) -> str:
        """The text delivered so far."""
        return "".join(event.text for event in self.events[request_id] if isinstance(event, TextDelta))

    def tokens(self, request_id: str) -> list[int]:
        """The tokens delivered so far."""
        return [token for event in self.events[request_id] if isinstance(event, TextDelta) for token in event.tokens]

    def progress(self, request_id: str) -> list[Progress]:
        """How far the prompt was, as delivered."""
        return [event for event in self.events[request_id] if isinstance(event, Progress)]

    def terminals(self, request_id: str) -> list[Event]:
        """The terminal events; there should be one, at the end."""
        return [event for event in self.events[request_id] if isinstance(event, Finished | Failed)]

    def finished(self, request_id: str) -> Finished:
        """The end of a request that did not fail."""
        event = self.events[request_id][-1]
        assert isinstance(event, Finished), event
        assert len(self.terminals(request_id)) == 1
        return event

    def error(self, request_id: str) -> LlamaServeError:
        """The error of a request that failed."""
        event = self.events[request_id][-1]
        assert isinstance(event, Failed), event
        assert len(self.terminals(request_id)) == 1
        return event.error


def alone(
    prompt: bytes | tuple[int, ...], max_tokens: int | None = 8, stop: tuple[str, ...] = (), **sizes: int
) -> tuple[str, list[int]]:
    """Text and tokens a prompt gets from a fake engine when nothing runs beside it."""
    harness = Harness(FakeEngine(**sizes))  # type: ignore[arg-type]  # every size is an int
    request_id = harness.submit(prompt, max_tokens=max_tokens, stop=stop)
    harness.run()
    return harness.text(request_id), harness.tokens(request_id)
