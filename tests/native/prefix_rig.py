"""Requests on a scheduler with a real engine, by hand: submitted, ticked, cancelled at a given token."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from llamaserve.cache.build import make_prefix_memory
from llamaserve.cache.shared_prefixes import SharedPrefixes
from llamaserve.config import CacheConfig, SchedulerConfig
from llamaserve.engine.native import NativeEngine
from llamaserve.request import Event, Failed, Finished, GenerationRequest, SamplingParams, TextDelta
from llamaserve.scheduler.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0.0)


class Rig:
    """A scheduler, its engine, and what it delivered by request."""

    def __init__(
        self,
        engine: NativeEngine,
        config: SchedulerConfig | None = None,
        cache: CacheConfig | None = None,
        *,
        model_path: Path | None = None,
    ) -> None:
        self.engine = engine
        self.prefixes = make_prefix_memory(engine, cache or CacheConfig(cache_ram=0), model_path)
        self.events: dict[str, list[Event]] = {}
        self.scheduler = Scheduler(engine, config or SchedulerConfig(), self._take, self.prefixes)
        self._ids = itertools.count()

    def _take(self, events: list[tuple[str, Event]]) -> None:
        for request_id, event in events:
            self.events[request_id].append(event)

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int | None = 8,
        stop: tuple[str, ...] = (),
        sampling: SamplingParams = GREEDY,
        *,
        cache_prompt: bool = True,
        cache_salt: str = "",
        session: str | None = None,
    ) -> str:
        """Its id."""
        request_id = f"r{next(self._ids)}"
        self.events[request_id] = []
        request = GenerationRequest(
            request_id,
            tuple(prompt),
            max_tokens,
            stop,
            sampling,
            cache_prompt=cache_prompt,
            cache_salt=cache_salt,
            session=session,
        )
        self.scheduler.submit(request)
        return request_id

    def run(self) -> None:
        """Tick until there is nothing to do."""
        while self.scheduler.tick():
            pass

    def tokens(self, request_id: str) -> list[int]:
        """Tokens delivered so far."""
        return [token for event in self.events[request_id] if isinstance(event, TextDelta) for token in event.tokens]

    def text(self, request_id: str) -> str:
        """Text delivered so far."""
        return "".join(event.text for event in self.events[request_id] if isinstance(event, TextDelta))

    def end(self, request_id: str) -> Finished | Failed:
        """How it ended."""
        last = self.events[request_id][-1]
        assert isinstance(last, (Finished, Failed)), last
        return last

    def cached(self, request_id: str) -> int:
        """Prompt tokens it did not compute."""
        end = self.end(request_id)
        assert isinstance(end, Finished), end
        return end.cached_tokens

    def cold(self, prompt: Sequence[int], max_tokens: int | None = 8) -> list[int]:
        """What a prompt gives that neither reuses nor leaves anything."""
        request_id = self.submit(prompt, max_tokens, cache_prompt=False)
        self.run()
        return self.tokens(request_id)

    def forget_slots(self) -> None:
        """Empty the idle slots."""
        for seq_id in range(self.engine.info.n_slots):
            self.prefixes.leave(seq_id, None)

    def flush_disk(self) -> bool:
        """Wait until the disk tier has written all it has got."""
        assert isinstance(self.prefixes, SharedPrefixes)
        disk = self.prefixes._tiers._disk
        return disk is not None and disk.flush(30.0)

    def check_books(self) -> None:
        """llama.cpp's cells are those the books have, each once, and no id is lost (S23)."""
        prefixes = self.prefixes
        assert isinstance(prefixes, SharedPrefixes)
        index, engine = prefixes._index, self.engine
        n_private = 0
        for seq_id in range(engine.n_ids):
            n_held = engine.length(seq_id)
            n_indexed = index.length(seq_id) if seq_id in index else 0
            if seq_id >= engine.info.n_slots:
                assert n_held == n_indexed
                assert (seq_id in index) != (seq_id in prefixes._parked.free_ids)
            n_private += n_held - n_indexed
        assert engine.used_cells() == index.n_cells + n_private
