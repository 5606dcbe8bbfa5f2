"""Copies of cells outside the KV cache: in RAM, and on disk behind it. Scheduler thread; the disk has its own threads.

A run of cells that is evicted is copied to RAM; what RAM has no room for goes to disk. A prompt is looked up in RAM
when it begins. The disk is read while it waits: ``prefetch`` has what only the disk has of a prompt brought to where
``best`` finds it, until the request begins.

Copies of a text may be pieces, one behind the other, and a piece is of use only with those before it. So a piece of a
few tokens, which would be computed rather than kept, is kept and brought back where another goes on behind it.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from llamaserve.cache.disk_reads import DiskReads
from llamaserve.cache.disk_tier import DiskCounters, DiskHit, DiskTier, FetchedState
from llamaserve.cache.prefix_memory import PrefixCounters, PrefixGauges
from llamaserve.cache.prompt import Prompt
from llamaserve.cache.ram_tier import RamHit, RamTier
from llamaserve.cache.saved_prefix import SavedPrefix, is_long_enough
from llamaserve.engine.port import Engine
from llamaserve.errors import EngineDown

CLOSE_TIMEOUT_S = 30.0
"""How long the end of the process waits for the disk, over all that is written then."""
LAST_WAIT_S = 1.0
"""How long it waits then for the threads of a disk that did not take all in that time."""

_logger = logging.getLogger(__name__)


class TierHit(NamedTuple):
    """A copy that carries a prompt further."""

    saved: SavedPrefix
    n_tokens: int
    """Tokens of the prompt there are when it is restored and the rest of it is trimmed."""
    is_from_disk: bool


class Tiers:
    """RAM tier and disk tier of one engine; either may be missing."""

    def __init__(
        self,
        engine: Engine,
        ram: RamTier | None,
        disk: DiskTier | None,
        *,
        can_trim: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._ram = ram
        self._disk = disk
        self._clock = clock
        self.counters = PrefixCounters()
        """Of the prefix memory whose tiers these are; here only copies are counted."""
        self._bytes_per_token = 0.0
        """Of the last copy; before the first nothing is known."""
        self._reads = None if disk is None else DiskReads(disk, self._load, can_trim=can_trim, clock=clock)
        self._deadline: float | None = None
        """When the end of the process waits for the disk no more; None while it is not the end."""
        self._is_late = False

    @property
    def has_disk(self) -> bool:
        """Whether anything can be brought back that is not in RAM."""
        return self._disk is not None and self._disk.is_on

    # Into the tiers.

    def offer(self, scope: str, tokens: array[int], start: int, seq_id: int, most_bytes: int | None = None) -> bool:
        """Copy the cells of ``tokens[start:]``, which ``seq_id`` holds and is about to lose, if they are worth it and
        take at most ``most_bytes`` (None: as many as a tier holds); whether they were copied. What alone is over the
        RAM budget goes to disk. Raises EngineDown."""
        ram, disk = self._ram, self._disk
        if not self._is_worth_a_copy(scope, tokens, start) or (ram is not None and ram.has(scope, tokens, start)):
            return False
        limits = [ram.max_bytes] if ram is not None else []
        if disk is not None and disk.wants(scope, tokens, start):
            limits.append(disk.max_bytes)
        if not limits:
            return False
        limit = max(limits) if most_bytes is None else min(max(limits), most_bytes)
        saved = self._save(scope, tokens, start, seq_id, limit)
        if saved is None:
            return False
        if ram is None:
            return disk is not None and disk.put(saved)
        took = self._to_disk(ram.put(saved))
        return saved in took or ram.has(scope, tokens, start)

    def take_over(self, scope: str, tokens: array[int], start: int, seq_id: int, n_pool: int) -> bool:
        """Have RAM keep the cells of ``tokens[start:]`` so that ``seq_id`` can lose them without need; False where it
        cannot, or is smaller than the ``n_pool`` cells there are. A few tokens nothing goes on behind are given up:
        they are soon computed.

        A full RAM gives up for them what was used longest ago, as it does when cells are wanted, so that stale copies
        do not stop this. That is right by age: what left the cells did so because all that stayed had been used later,
        so of two texts that are in one place only, that in RAM is the older; sessions, which leave last, shall outlive
        others. A text in both places loses its copy only, and is copied again when it leaves the cells. Raises
        EngineDown.
        """
        ram = self._ram
        if ram is None or self._bytes_per_token * n_pool > ram.max_bytes:
            return False
        if not self._is_worth_a_copy(scope, tokens, start) or ram.has(scope, tokens, start):
            return True
        return self.offer(scope, tokens, start, seq_id, most_bytes=ram.max_bytes)

    def keep(self, scope: str, tokens: array[int], seq_id: int) -> None:
        """Have the disk keep what ``seq_id`` holds, as the process ends; what it has already is not written again.
        Once the disk did not take something in time nothing more is given to it. Raises EngineDown."""
        disk = self._disk
        if disk is None or self._is_late:
            return
        start = 0
        while (hit := self._best_on_disk(disk, scope, tokens, start, len(tokens))) is not None:
            start = hit.n_tokens
        if not self._engine.can_share:
            start = 0
        if is_long_enough(start, len(tokens)) and disk.wants(scope, tokens, start):
            saved = self._save(scope, tokens, start, seq_id, disk.max_bytes)
            if saved is not None:
                disk.put(saved, timeout_s=self._time_left())
                self._wait_for(disk)

    def close(self) -> None:
        """Have the disk keep what RAM has, wait for it, and end."""
        disk = self._disk
        if disk is None:
            return
        if self._reads is not None:
            self._reads.close()
        for saved in reversed(() if self._ram is None else self._ram.entries()):
            if not self._is_late:
                disk.put(saved, timeout_s=self._time_left())
                self._is_late = self._time_left() == 0.0
        self._wait_for(disk)
        if self._is_late:
            _logger.warning("the disk did not take all computed prefixes within %g s", CLOSE_TIMEOUT_S)
        disk.close(max(LAST_WAIT_S, self._time_left()))

    def _time_left(self) -> float:
        """Seconds, from when it is asked first."""
        now = self._clock()
        if self._deadline is None:
            self._deadline = now + CLOSE_TIMEOUT_S
        return max(0.0, self._deadline - now)

    def _wait_for(self, disk: DiskTier) -> None:
        if not self._is_late:
            self._is_late = not disk.flush(self._time_left())

    def _is_worth_a_copy(self, scope: str, tokens: array[int], start: int) -> bool:
        """Whether there are many tokens, or a copy is of no use without them."""
        return is_long_enough(start, len(tokens)) or any(
            tier.goes_on(scope, tokens, start) for tier in (self._ram, self._disk) if tier is not None
        )

    def _to_disk(self, evicted: Sequence[SavedPrefix]) -> list[SavedPrefix]:
        """Those the disk took."""
        disk = self._disk
        return [] if disk is None else [saved for saved in evicted if disk.put(saved)]

    def _save(self, scope: str, tokens: array[int], start: int, seq_id: int, max_bytes: int) -> SavedPrefix | None:
        try:
            state = self._engine.save(seq_id, start, max_bytes)
        except EngineDown:
            raise
        except Exception:
            _logger.exception("sequence %d could not be copied", seq_id)
            return None
        if state is None:
            return None
        saved = SavedPrefix(scope, tokens, start, state)
        self._bytes_per_token = saved.n_bytes / (saved.end - start)
        self.counters.saves += 1
        return saved

    # Out of the tiers.

    def best(self, scope: str, tokens: array[int], n_held: int, limit: int) -> TierHit | None:
        """The copy that brings a prompt, of which ``n_held`` tokens are there, most of its first ``limit``: of what is
        in RAM, or was read from disk for a request that has not begun."""

        def look(n_held: int, least_gain: int | None) -> TierHit | None:
            hit = None if self._ram is None else self._ram.best(scope, tokens, n_held, limit, least_gain)
            arrived = None if self._reads is None else self._reads.best(scope, tokens, n_held, limit, least_gain)
            if arrived is not None and (hit is None or arrived.n_tokens > hit.n_tokens):
                return TierHit(arrived.copy, arrived.n_tokens, is_from_disk=True)
            return None if hit is None else TierHit(hit.saved, hit.n_tokens, is_from_disk=False)

        return _best_piece(look, n_held)

    @staticmethod
    def _best_on_disk(disk: DiskTier, scope: str, tokens: array[int], n_held: int, limit: int) -> DiskHit | None:
        return _best_piece(lambda n_held, least_gain: disk.best(scope, tokens, n_held, limit, least_gain), n_held)

    def took(self, hit: TierHit) -> None:
        """It was restored. What came from disk stays in RAM where there is room for it, else until nobody waits for
        it."""
        if hit.is_from_disk and self._ram is not None and self._reads is not None:
            self._to_disk(self._ram.put(hit.saved))
            if self._ram.has(hit.saved.scope, hit.saved.tokens, hit.saved.start):
                self._reads.release(hit.saved)

    def discard(self, hit: TierHit) -> None:
        """The engine has refused it: it is of no use to anybody."""
        if self._reads is not None:
            self._reads.discard(hit.saved)
        if self._ram is not None:
            self._ram.discard(hit.saved)

    def prefetch(self, request_id: str, prompt: Prompt, n_held: int, done: Callable[[], None]) -> None:
        """Have read, for a request that waits, what neither cells, which hold ``n_held`` tokens, nor RAM have of its
        prompt. ``done`` is called, on any thread, when ``is_fetching`` may have become false. What arrives is kept
        until ``drop_fetch``."""
        hits = [] if self._disk is None else self._missing(self._disk, prompt, n_held)
        if hits and self._reads is not None:
            self._reads.order(request_id, hits, done)

    def _missing(self, disk: DiskTier, prompt: Prompt, n_held: int) -> list[DiskHit]:
        """Files, in the order of what they bring. What was read for others counts as on disk: they may go first."""
        hits: list[DiskHit] = []

        def look(n_held: int, least_gain: int | None) -> DiskHit | RamHit | None:
            in_ram = None
            if self._ram is not None:
                in_ram = self._ram.best(prompt.scope, prompt.tokens, n_held, prompt.n_reusable, least_gain)
            on_disk = disk.best(prompt.scope, prompt.tokens, n_held, prompt.n_reusable, least_gain)
            if on_disk is not None and (in_ram is None or on_disk.n_tokens > in_ram.n_tokens):
                return on_disk
            return in_ram

        while (hit := _best_piece(look, n_held)) is not None:
            if isinstance(hit, DiskHit):
                hits.append(hit)
            n_held = hit.n_tokens
        return hits

    def is_fetching(self, request_id: str) -> bool:
        """Whether a request that could begin has files to wait for; ``best`` has what they brought when that is over.
        It is over too when the disk takes too long. Raises EngineDown."""
        return self._reads is not None and self._reads.is_waiting(request_id)

    def drop_fetch(self, request_id: str) -> None:
        """The request has begun, or it will not: what was read for nobody else is dropped."""
        if self._reads is not None:
            self._reads.forget(request_id)

    def _load(self, fetched: FetchedState) -> SavedPrefix:
        state = self._engine.load_state(fetched.data, fetched.start, len(fetched.tokens))
        return SavedPrefix(fetched.scope, fetched.tokens, fetched.start, state)

    # Looking in. Any thread.

    @property
    def ram_entries(self) -> int:
        """Copies in RAM, with those that were read from disk for requests that wait."""
        n_read = 0 if self._reads is None else self._reads.n_entries
        return n_read + (0 if self._ram is None else self._ram.n_entries)

    @property
    def ram_bytes(self) -> int:
        """Bytes they take, with files that are being read."""
        n_read = 0 if self._reads is None else self._reads.n_bytes
        return n_read + (0 if self._ram is None else self._ram.n_bytes)

    @property
    def disk_entries(self) -> int:
        """Files."""
        return 0 if self._disk is None else self._disk.n_entries

    @property
    def disk_bytes(self) -> int:
        """Bytes they take."""
        return 0 if self._disk is None else self._disk.n_bytes

    def gauges(self, *, parked_sequences: int, parked_cells: int, shares: bool) -> PrefixGauges:
        """Those of a prefix memory with these tiers."""
        counters = DiskCounters() if self._disk is None else self._disk.counters
        return PrefixGauges(
            parked_sequences=parked_sequences,
            parked_cells=parked_cells,
            ram_entries=self.ram_entries,
            ram_bytes=self.ram_bytes,
            disk_entries=self.disk_entries,
            disk_bytes=self.disk_bytes,
            disk_written=counters.written,
            disk_fetched=counters.fetched,
            disk_evicted=counters.evicted,
            disk_refused=counters.refused,
            disk_bad_files=counters.bad_files,
            shares=shares,
        )


class _Hit(Protocol):
    @property
    def n_tokens(self) -> int: ...


HitT = TypeVar("HitT", bound=_Hit)


def _best_piece(look: Callable[[int, int | None], HitT | None], n_held: int) -> HitT | None:
    """The piece to bring back to a prompt that has ``n_held`` tokens; ``look(n_held, least_gain)`` finds the best one.

    One that is long enough, or else one that a piece that is long enough can be reached over, by way of others if need
    be.
    """
    hit = look(n_held, None)
    if hit is not None:
        return hit
    first = look(n_held, 1)
    step = first
    while step is not None:
        if look(step.n_tokens, None) is not None:
            return first
        step = look(step.n_tokens, 1)
    return None
