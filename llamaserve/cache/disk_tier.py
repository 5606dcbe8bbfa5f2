"""Copies of cells in files: what was evicted survives a restart.

Lookups are made in memory. Two threads do the rest, so that a prompt that waits for a file does not wait for others
being written. Whatever is wrong with a file is a miss; whatever is wrong with the folder turns the tier off.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from llamaserve.cache.disk_file import CorruptFile, FileMeta, ForeignFile, Stopped
from llamaserve.cache.disk_folder import KeptFile, PrefixFolder
from llamaserve.cache.disk_index import DiskEntry, DiskIndex
from llamaserve.cache.job_thread import JobThread
from llamaserve.cache.saved_prefix import SavedPrefix

_logger = logging.getLogger(__name__)

QUEUED_BYTES = 256 << 20
"""States that may wait to be written; they take RAM beside the RAM tier's."""

CLOSE_TIMEOUT_S = 10.0
"""How long a disk that does not answer holds up ``close``."""

_PASSING_ERRORS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""The process or the machine has run out of something else than disk; the folder is sound."""

_ONE_NAME_ERRORS = frozenset((errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY))
"""Something stands where one file shall go; the folder is sound."""


def _always() -> bool:
    """Whoever asked has not gone."""
    return True


class DiskHit(NamedTuple):
    """The file that brings most."""

    scope: str
    entry: DiskEntry
    n_tokens: int
    """Tokens of the prompt there are when it is restored and the rest of it is trimmed."""


class FetchedState(NamedTuple):
    """What a file had, checked; for ``Engine.load_state``."""

    scope: str
    tokens: array[int]
    """All tokens from position 0; never changed."""
    start: int
    """First position of the state; it ends with the tokens."""
    data: memoryview


@dataclass(slots=True)
class DiskCounters:
    """What a disk tier has done since the start."""

    written: int = 0
    fetched: int = 0
    refused: int = 0
    """States that were not written because too much waited."""
    bad_files: int = 0
    """Files that were corrupt, foreign, unreadable or gone."""
    evicted: int = 0


class DiskTier:
    """Saved prefixes in files, at most ``max_bytes`` of them: those used longest ago go first, also after a restart.

    Stored: scope (hashed), tokens and state, one file each, readable by its owner only. Keyed: by model and layout
    (``fingerprint``), scope and tokens. Rules as in ``RamTier``. Any thread.

    Processes may share the folder. Before each write a tier looks at what others did to it, so the budget holds for all
    files of one fingerprint together, but for two that are written at the same moment. Files of another fingerprint are
    not ours to delete and do not count.

    Making one looks at the folder, about 0.2 ms a file. It raises nothing but ValueError: for a budget below
    1 byte or a fingerprint of the wrong length.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        fingerprint: bytes,
        *,
        can_trim: bool = True,
        max_queued_bytes: int = QUEUED_BYTES,
    ) -> None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes is {max_bytes}: it must be at least 1")
        self.max_bytes = max_bytes
        self._max_queued_bytes = max_queued_bytes
        self._folder = PrefixFolder(folder, fingerprint)
        self._changed = threading.Condition()  # guards the next five
        self._index = DiskIndex(max_bytes, can_trim=can_trim)
        self._queued: dict[str, int] = {}
        self._counters = DiskCounters()
        self._is_on = True
        self._closing = threading.Event()
        self._writer = JobThread("llamaserve-disk-write")
        self._reader = JobThread("llamaserve-disk-read")
        try:
            self._folder.create()
            self._look()
        except OSError as error:
            self._turn_off(error)

    @property
    def is_on(self) -> bool:
        """False once the folder could not be used, and after ``close``."""
        return self._is_on

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return self._index.n_bytes

    @property
    def n_entries(self) -> int:
        """Files there are."""
        return len(self._index)

    @property
    def counters(self) -> DiskCounters:
        """As they are now."""
        with self._changed:
            return replace(self._counters)

    def wants(self, scope: str, tokens: array[int], start: int) -> bool:
        """Whether a state of these tokens from ``start`` on would be written if it fits; to be asked before the cells
        are copied."""
        meta = FileMeta(self._folder.scope_hash(scope), start, tokens, 0)
        with self._changed:
            return self._would_keep(meta) and self._has_queue_room(meta)

    def goes_on(self, scope: str, tokens: array[int], start: int) -> bool:
        """As ``RamTier.goes_on``."""
        scope_hash = self._folder.scope_hash(scope)
        with self._changed:
            return self._index.goes_on(scope_hash, tokens, start)

    def put(self, saved: SavedPrefix, timeout_s: float = 0.0) -> bool:
        """Have a copy written; False if it is not kept. Waits so long for room among those that wait to be written."""
        meta = FileMeta(self._folder.scope_hash(saved.scope), saved.start, saved.tokens, saved.state.n_bytes)
        name = self._folder.name_of(meta.scope_hash, meta.start, meta.tokens)
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if name in self._queued or not self._would_keep(meta):
                    return False
                if self._has_queue_room(meta):
                    break
                if not self._changed.wait(deadline - time.monotonic()):
                    self._counters.refused += 1
                    return False
            self._queued[name] = meta.n_file_bytes
        leave_queue = partial(self._leave_queue, name)
        if not self._writer.post(partial(self._write, name, meta, saved), leave_queue):
            leave_queue()
            return False
        return True

    def best(
        self, scope: str, tokens: array[int], n_have: int, limit: int, least_gain: int | None = None
    ) -> DiskHit | None:
        """The file that gives a prompt, of which ``n_have`` tokens are there, most of its first ``limit``, as
        ``RamTier.best``. It counts as used."""
        scope_hash = self._folder.scope_hash(scope)
        with self._changed:
            found = self._index.best(scope_hash, tokens, n_have, limit, least_gain)
        return None if found is None else DiskHit(scope, found.copy, found.n_tokens)

    def fetch(
        self,
        hit: DiskHit,
        done: Callable[[FetchedState | None], None],
        is_wanted: Callable[[], bool] = _always,
    ) -> None:
        """Read a state; ``done`` is called once, with None if there is none: by the reading thread, or at once if the
        tier is off. The reading thread asks ``is_wanted`` when it begins; what is not is not read."""

        def run() -> None:
            fetched = None
            try:
                if is_wanted():
                    fetched = self._read(hit)
            finally:
                done(fetched)

        if not (self._is_on and self._reader.post(run, partial(done, None))):
            done(None)

    def discard(self, hit: DiskHit) -> None:
        """Delete a file, some time soon: the engine could not use it."""
        with self._changed:
            self._index.forget(hit.entry.name)
        self._writer.post(partial(self._drop_bad, hit.entry.name, is_ours=True))

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was put is written; whether it is."""
        return self._writer.drain(timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End; what waits to be written is dropped, what waits to be read gets None. Waits so long for what is under
        way. May be called twice."""
        deadline = time.monotonic() + timeout_s
        self._closing.set()
        with self._changed:
            self._switch_off()
        for thread in (self._reader, self._writer):
            thread.close()
        for thread in (self._reader, self._writer):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _would_keep(self, meta: FileMeta) -> bool:
        return self._is_on and self._index.would_keep(meta)

    def _has_queue_room(self, meta: FileMeta) -> bool:
        """One state may wait however large it is."""
        return not self._queued or sum(self._queued.values()) + meta.n_file_bytes <= self._max_queued_bytes

    def _leave_queue(self, name: str) -> None:
        with self._changed:
            del self._queued[name]
            self._changed.notify_all()

    # On the writing thread.

    def _write(self, name: str, meta: FileMeta, saved: SavedPrefix) -> None:
        try:
            self._look()
            if self._make_room(meta):
                self._folder.write(name, meta, saved.state.view(), self._closing.is_set)
                self._add([(name, meta)])
                with self._changed:
                    self._counters.written += 1
        except Stopped:
            pass
        except OSError as error:
            if error.errno in _ONE_NAME_ERRORS:
                self._drop_bad(name, is_ours=False)
            elif error.errno in _PASSING_ERRORS:
                _logger.info("%s is not written: %s", name, error)
            else:
                self._turn_off(error)
        finally:
            self._leave_queue(name)

    def _look(self) -> None:
        """Learn what other processes did to the folder, or what there was before this one. Raises OSError."""
        names = self._folder.names()
        with self._changed:
            unknown = self._index.unknown(names)
        found = [kept for name in unknown if (kept := self._look_at(name)) is not None]
        found.sort(key=lambda kept: kept.used_ns)
        self._add((kept.name, kept.meta) for kept in found)
        with self._changed:
            evicted = self._index.evict()
            self._counters.evicted += len(evicted)
        self._delete(evicted)

    def _look_at(self, name: str) -> KeptFile | None:
        try:
            return self._folder.look(name)
        except CorruptFile as error:
            self._drop_corrupt(name, error)
        except (OSError, ForeignFile):
            self._drop_bad(name, is_ours=False)
        return None

    def _make_room(self, meta: FileMeta) -> bool:
        """Delete files until one more fits; False if it is not wanted any more. Raises OSError."""
        with self._changed:
            if not self._would_keep(meta):
                return False
            replaced = self._index.replace(meta)
            evicted = self._index.evict(meta)
            self._counters.evicted += len(evicted)
        self._delete(replaced)
        self._delete(evicted)
        return True

    def _add(self, files: Iterable[tuple[str, FileMeta]]) -> None:
        with self._changed:
            for name, meta in files:
                if self._is_on:
                    self._index.add(name, meta)

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._folder.remove(name)

    # On the reading thread.

    def _read(self, hit: DiskHit) -> FetchedState | None:
        entry = hit.entry
        if not self._is_on:
            return None
        try:
            data = self._folder.read(entry.name, entry.n_bytes, self._closing.is_set)
        except Stopped:
            return None
        except CorruptFile as error:
            self._drop_corrupt(entry.name, error)
            return None
        except (OSError, ForeignFile) as error:
            _logger.info("%s cannot be read: %r", entry.name, error)
            if not (isinstance(error, OSError) and error.errno in _PASSING_ERRORS):
                self._drop_bad(entry.name, is_ours=False)
            return None
        self._folder.touch(entry.name)
        with self._changed:
            self._counters.fetched += 1
        return FetchedState(hit.scope, entry.tokens, entry.start, data)

    # On both.

    def _drop_corrupt(self, name: str, error: CorruptFile) -> None:
        _logger.info("%s in %s is corrupt and deleted: %s", name, self._folder.path, error)
        self._drop_bad(name, is_ours=True)

    def _drop_bad(self, name: str, *, is_ours: bool) -> None:
        """Have a file be a miss from now on; delete it if it is ours, so that no good file is kept from its name."""
        with self._changed:
            self._counters.bad_files += 1
            self._index.ignore(name)
        if is_ours:
            try:
                self._folder.remove(name)
            except OSError as error:
                _logger.info("%s cannot be deleted: %s", name, error)

    def _switch_off(self) -> None:
        self._is_on = False
        self._index.clear()
        self._changed.notify_all()

    def _turn_off(self, error: OSError) -> None:
        with self._changed:
            was_on = self._is_on
            self._switch_off()
        if was_on:
            _logger.warning("the prefix cache in %s is off from now on: %s", self._folder.path, error)
