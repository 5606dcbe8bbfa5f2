"""Copies of cells outside the KV cache: in RAM, and on disk behind it. Scheduler thread; the disk has its own threads.

A run of cells that is evicted is copied to RAM; what RAM has no room for goes to disk. A prompt is looked up in RAM
when it begins. The disk is read while it waits: ``prefetch`` has what only the disk has of a prompt brought to where
``best`` finds it.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from llamaserve.cache.disk_tier import DiskHit, DiskTier, FetchedState
from llamaserve.cache.prompt import Prompt
from llamaserve.cache.ram_tier import RamTier
from llamaserve.cache.saved_prefix import SavedPrefix, is_long_enough
from llamaserve.engine.port import Engine
from llamaserve.errors import EngineDown

ARRIVED_BYTES = 256 << 20
"""Most bytes read from disk that wait for their prompts."""
WRITE_TIMEOUT_S = 10.0
"""How long the end of the process waits for each state to be written."""

_logger = logging.getLogger(__name__)


class TierHit(NamedTuple):
    """A copy that carries a prompt further."""

    saved: SavedPrefix
    n_tokens: int
    """Tokens of the prompt there are when it is restored and the rest of it is trimmed."""
    is_from_disk: bool


class _Fetch:
    """Files that are being read for a request. The reading thread fills it, the scheduler thread empties it."""

    __slots__ = ("_arrived", "_done", "_lock", "_n_left")

    def __init__(self, n_files: int, done: Callable[[], None]) -> None:
        self._n_left = n_files
        self._done = done
        self._arrived: list[tuple[DiskHit, FetchedState]] = []
        self._lock = threading.Lock()

    def take(self, hit: DiskHit, fetched: FetchedState | None) -> None:
        """A file was read, or could not be."""
        with self._lock:
            self._n_left -= 1
            if fetched is not None:
                self._arrived.append((hit, fetched))
            is_complete = self._n_left == 0
        if is_complete:
            self._done()

    @property
    def arrived(self) -> list[tuple[DiskHit, FetchedState]] | None:
        """What the files had; None while one is missing."""
        with self._lock:
            return None if self._n_left else self._arrived


class Tiers:
    """RAM tier and disk tier of one engine; either may be missing."""

    def __init__(self, engine: Engine, ram: RamTier | None, disk: DiskTier | None, *, can_trim: bool = True) -> None:
        self._engine = engine
        self._ram = ram
        self._disk = disk
        self._bytes_per_token = 0.0
        """Of the last copy; before the first nothing is known."""
        self._fetching: dict[str, _Fetch] = {}
        self._arrived = RamTier(ARRIVED_BYTES, can_trim=can_trim)
        self._files: dict[SavedPrefix, DiskHit] = {}
        """Where what has arrived came from."""

    @property
    def has_disk(self) -> bool:
        """Whether anything can be brought back that is not in RAM."""
        return self._disk is not None and self._disk.is_on

    # Into the tiers.

    def offer(self, scope: str, tokens: array[int], start: int, seq_id: int) -> bool:
        """Copy the cells of ``tokens[start:]``, which ``seq_id`` holds and is about to lose, if they are worth it;
        whether they were copied. Raises EngineDown."""
        ram, disk = self._ram, self._disk
        if ram is not None:
            if not ram.wants(scope, tokens, start, 0):
                return False
            saved = self._save(scope, tokens, start, seq_id, ram.max_bytes)
            if saved is None:
                return False
            self._to_disk(ram.put(saved))
            return True
        if disk is None or not disk.wants(scope, tokens, start, 0):
            return False
        saved = self._save(scope, tokens, start, seq_id, disk.max_bytes)
        return saved is not None and disk.put(saved)

    def take_over(self, scope: str, tokens: array[int], start: int, seq_id: int, n_pool: int) -> bool:
        """Have RAM keep the cells of ``tokens[start:]`` so that ``seq_id`` can lose them without need; False where it
        cannot, or is smaller than the ``n_pool`` cells there are. A few tokens are given up: they are soon computed.
        Raises EngineDown."""
        ram = self._ram
        if ram is None or self._bytes_per_token * n_pool > ram.max_bytes:
            return False
        if not is_long_enough(start, len(tokens)) or ram.has(scope, tokens, start):
            return True
        return self.offer(scope, tokens, start, seq_id)

    def keep(self, scope: str, tokens: array[int], seq_id: int) -> None:
        """Have the disk keep what ``seq_id`` holds, as the process ends; what it has already is not written again.
        Raises EngineDown."""
        disk = self._disk
        if disk is None:
            return
        start = 0
        while (hit := disk.best(scope, tokens, start, len(tokens))) is not None:
            start = hit.n_tokens
        if not self._engine.can_share:
            start = 0
        if start < len(tokens) and disk.wants(scope, tokens, start, 0):
            saved = self._save(scope, tokens, start, seq_id, disk.max_bytes)
            if saved is not None:
                disk.put(saved, timeout_s=WRITE_TIMEOUT_S)
                disk.flush(WRITE_TIMEOUT_S)

    def close(self) -> None:
        """Have the disk keep what RAM has, wait for it, and end."""
        if self._disk is None:
            return
        if self._ram is not None:
            for saved in reversed(self._ram.entries()):
                self._disk.put(saved, timeout_s=WRITE_TIMEOUT_S)
        if not self._disk.flush(WRITE_TIMEOUT_S):
            _logger.warning("the disk did not take all computed prefixes within %g s", WRITE_TIMEOUT_S)
        self._disk.close()

    def _to_disk(self, evicted: Sequence[SavedPrefix]) -> None:
        if self._disk is not None:
            for saved in evicted:
                self._disk.put(saved)

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
        return saved

    # Out of the tiers.

    def best(self, scope: str, tokens: array[int], n_held: int, limit: int) -> TierHit | None:
        """The copy that brings a prompt, of which ``n_held`` tokens are there, most of its first ``limit``."""
        hit = None if self._ram is None else self._ram.best(scope, tokens, n_held, limit)
        arrived = self._arrived.best(scope, tokens, n_held, limit)
        if arrived is not None and (hit is None or arrived.n_tokens > hit.n_tokens):
            return TierHit(arrived.saved, arrived.n_tokens, is_from_disk=True)
        return None if hit is None else TierHit(hit.saved, hit.n_tokens, is_from_disk=False)

    def took(self, hit: TierHit) -> None:
        """It was restored. What came from disk stays in RAM where there is room for it."""
        if hit.is_from_disk:
            self._drop_arrived(hit.saved)
            if self._ram is not None:
                self._to_disk(self._ram.put(hit.saved))

    def discard(self, hit: TierHit) -> None:
        """It could not be restored."""
        file = self._drop_arrived(hit.saved)
        if file is not None and self._disk is not None:
            self._disk.discard(file)
        if self._ram is not None:
            self._ram.discard(hit.saved)

    def _drop_arrived(self, saved: SavedPrefix) -> DiskHit | None:
        self._arrived.discard(saved)
        return self._files.pop(saved, None)

    def prefetch(self, request_id: str, prompt: Prompt, n_held: int, done: Callable[[], None]) -> None:
        """Begin to read what neither cells, which hold ``n_held`` tokens, nor RAM have of a prompt. Another thread
        calls ``done``."""
        hits = [] if self._disk is None else self._missing(self._disk, prompt, n_held)
        if hits and self._disk is not None:
            fetch = self._fetching[request_id] = _Fetch(len(hits), done)
            for hit in hits:
                self._disk.fetch(hit, partial(fetch.take, hit))

    def _missing(self, disk: DiskTier, prompt: Prompt, n_held: int) -> list[DiskHit]:
        hits = []
        while True:
            in_ram = self.best(prompt.scope, prompt.tokens, n_held, prompt.n_reusable)
            on_disk = disk.best(prompt.scope, prompt.tokens, n_held, prompt.n_reusable)
            if on_disk is not None and (in_ram is None or on_disk.n_tokens > in_ram.n_tokens):
                hits.append(on_disk)
                n_held = on_disk.n_tokens
            elif in_ram is not None:
                n_held = in_ram.n_tokens
            else:
                return hits

    def is_fetching(self, request_id: str) -> bool:
        """Whether files are being read for it; ``best`` has them when that is over."""
        fetch = self._fetching.get(request_id)
        if fetch is None:
            return False
        arrived = fetch.arrived
        if arrived is None:
            return True
        del self._fetching[request_id]
        for hit, fetched in arrived:
            self._arrive(hit, fetched)
        return False

    def drop_fetch(self, request_id: str) -> None:
        """The request will not begin."""
        self._fetching.pop(request_id, None)

    def _arrive(self, hit: DiskHit, fetched: FetchedState) -> None:
        try:
            state = self._engine.load_state(fetched.data, fetched.start, len(fetched.tokens))
        except EngineDown:
            raise
        except Exception:
            _logger.exception("a state from disk does not fit")
            if self._disk is not None:
                self._disk.discard(hit)
            return
        saved = SavedPrefix(fetched.scope, fetched.tokens, fetched.start, state)
        self._files[saved] = hit
        self._arrived.put(saved)
        kept = set(self._arrived.entries())
        self._files = {saved: hit for saved, hit in self._files.items() if saved in kept}

    # Looking in. Any thread.

    @property
    def ram_entries(self) -> int:
        """Copies in RAM."""
        return self._arrived.n_entries + (0 if self._ram is None else self._ram.n_entries)

    @property
    def ram_bytes(self) -> int:
        """Bytes they take."""
        return self._arrived.n_bytes + (0 if self._ram is None else self._ram.n_bytes)

    @property
    def disk_entries(self) -> int:
        """Files."""
        return 0 if self._disk is None else self._disk.n_entries

    @property
    def disk_bytes(self) -> int:
        """Bytes they take."""
        return 0 if self._disk is None else self._disk.n_bytes
