"""Files of the disk tier that are read for requests that wait, and what they had until those begin.

A file is read once for all who want it. It is kept until the last of them has begun or has gone. What is read and what
is kept stays within a budget: whoever comes when that is used up waits for its turn. Nobody waits for a disk that
hangs: its prompt is computed instead, and while the disk hangs nothing more is asked of it.

Scheduler thread, but for ``n_bytes`` and ``n_entries``. The reading thread's answers are guarded by a lock.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from llamaserve.cache.disk_tier import DiskHit, FetchedState
from llamaserve.cache.saved_index import Found, SavedIndex
from llamaserve.cache.saved_prefix import SavedPrefix
from llamaserve.errors import EngineDown

READ_BYTES = 256 << 20
"""Most bytes of files that are being read or wait for their requests; those of one request may be more."""
READ_TIMEOUT_S = 10.0
"""How long a file may take, beside what its size takes; after that the disk is taken to hang."""
SLOWEST_BYTES_PER_S = 64 << 20
"""A disk slower than this counts as one that hangs."""
WAIT_TIMEOUT_S = 30.0
"""How long a request that could begin waits for its files, its turn included."""
CHECK_S = 2.0
"""How often the scheduler is woken to look at the time while a request waits."""

_logger = logging.getLogger(__name__)


class Files(Protocol):
    """What is asked of the disk tier."""

    def fetch(
        self, hit: DiskHit, done: Callable[[FetchedState | None], None], is_wanted: Callable[[], bool]
    ) -> None: ...
    def discard(self, hit: DiskHit) -> None: ...


class _File:
    """A file somebody wants. It counts towards the budget from when it is ordered until nothing of it is kept."""

    __slots__ = ("fetched", "hit", "is_answered", "is_ordered", "saved", "wanted_by")

    def __init__(self, hit: DiskHit) -> None:
        self.hit = hit
        self.wanted_by: set[str] = set()
        self.is_ordered = False
        self.is_answered = False
        self.fetched: FetchedState | None = None
        """What it had, until the engine has taken it over as ``saved``."""
        self.saved: SavedPrefix | None = None

    @property
    def name(self) -> str:
        return self.hit.entry.name

    @property
    def is_spent(self) -> bool:
        """Whether it was read and nothing of it is kept."""
        return self.is_answered and self.fetched is None and self.saved is None


class _Request:
    """One that waits, and its files."""

    __slots__ = ("asked_at", "done", "files", "is_over")

    def __init__(self, files: Sequence[_File], done: Callable[[], None]) -> None:
        self.files = files
        self.done = done
        self.asked_at: float | None = None
        """When it could have begun first."""
        self.is_over = False
        """Whether it waits no more: it has all there is."""

    @property
    def has_turn(self) -> bool:
        return all(file.is_ordered for file in self.files)

    @property
    def has_all(self) -> bool:
        return all(file.is_answered for file in self.files)


class DiskReads:
    """Reads under way and what they brought.

    ``load`` makes a copy for the engine of what a file had. ``check_s`` as CHECK_S, for tests.
    """

    def __init__(
        self,
        disk: Files,
        load: Callable[[FetchedState], SavedPrefix],
        *,
        can_trim: bool,
        max_bytes: int = READ_BYTES,
        clock: Callable[[], float] = time.monotonic,
        check_s: float = CHECK_S,
    ) -> None:
        self._disk = disk
        self._load = load
        self._max_bytes = max_bytes
        self._clock = clock
        self._check_s = check_s
        self._arrived: SavedIndex[SavedPrefix] = SavedIndex(can_trim=can_trim)
        self._lock = threading.Lock()  # guards all below
        self._requests: dict[str, _Request] = {}
        self._files: dict[str, _File] = {}
        self._by_copy: dict[SavedPrefix, _File] = {}
        self._n_bytes = 0
        self._reading: tuple[_File, float] | None = None
        """The file the disk is at, and since when."""
        self._has_warned = False
        self._alarm: threading.Timer | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes of files that are read or kept. Any thread."""
        return self._n_bytes

    @property
    def n_entries(self) -> int:
        """Copies that are kept. Any thread."""
        return len(self._arrived)

    # A request comes, waits and goes.

    def order(self, request_id: str, hits: Iterable[DiskHit], done: Callable[[], None]) -> None:
        """Have files read for a request, when it is its turn. ``done`` is called, on any thread, when it may wait no
        more. Files of a disk that hangs are not waited for."""
        self.forget(request_id)
        with self._lock:
            if self._is_stuck():
                return
            files = [self._file_of(hit) for hit in hits]
            for file in files:
                file.wanted_by.add(request_id)
            self._requests[request_id] = _Request(files, done)
        self._begin_reading()

    def is_waiting(self, request_id: str) -> bool:
        """Whether a request that could begin now has files to wait for; when it has not, ``best`` has what arrived."""
        request = self._requests.get(request_id)
        if request is None or request.is_over:
            return False
        self._begin_reading()
        for file in request.files:
            self._take_in(file)
        with self._lock:
            now = self._clock()
            if request.asked_at is None:
                request.asked_at = now
            is_late = now - request.asked_at >= WAIT_TIMEOUT_S
            request.is_over = request.has_all or is_late or self._is_stuck()
            if request.is_over:
                self._leave_unread(request_id, request)
            else:
                self._set_alarm()
            return not request.is_over

    def forget(self, request_id: str) -> None:
        """The request has begun, or will not: what only it wanted is dropped."""
        with self._lock:
            request = self._requests.pop(request_id, None)
            for file in () if request is None else request.files:
                self._unwant(file, request_id)
        if request is not None:
            self._begin_reading()

    def close(self) -> None:
        """Nobody waits any more. May be called twice."""
        with self._lock:
            if self._alarm is not None:
                self._alarm.cancel()

    # What has arrived.

    def best(
        self, scope: str, tokens: array[int], n_have: int, limit: int, least_gain: int | None = None
    ) -> Found[SavedPrefix] | None:
        """As ``SavedIndex.best``."""
        return self._arrived.best(scope, tokens, n_have, limit, least_gain)

    def release(self, saved: SavedPrefix) -> None:
        """It is kept elsewhere now."""
        with self._lock:
            file = self._by_copy.get(saved)
            if file is not None:
                self._empty(file)

    def discard(self, saved: SavedPrefix) -> None:
        """It could not be used, if it came from here: its file is deleted."""
        file = self._by_copy.get(saved)
        if file is not None:
            self.release(saved)
            self._disk.discard(file.hit)

    # Under the lock.

    def _file_of(self, hit: DiskHit) -> _File:
        file = self._files.get(hit.entry.name)
        if file is None or file.is_spent:
            file = self._files[hit.entry.name] = _File(hit)
        return file

    def _unwant(self, file: _File, request_id: str) -> None:
        file.wanted_by.discard(request_id)
        if not file.wanted_by and (file.is_answered or not file.is_ordered):
            self._drop(file)

    def _leave_unread(self, request_id: str, request: _Request) -> None:
        """A request goes without what is not read yet."""
        for file in request.files:
            if not file.is_answered:
                self._unwant(file, request_id)

    def _drop(self, file: _File) -> None:
        if self._files.get(file.name) is file:
            del self._files[file.name]
        self._empty(file)

    def _empty(self, file: _File) -> None:
        """Keep nothing of a file that is not being read."""
        is_counted = file.is_ordered and not file.is_spent
        if file.saved is not None:
            self._arrived.discard(file.saved)
            del self._by_copy[file.saved]
        file.fetched = file.saved = None
        file.is_answered = True
        if is_counted:
            self._n_bytes -= file.hit.entry.n_bytes

    def _is_stuck(self) -> bool:
        """Whether the disk does not answer."""
        if self._reading is None:
            return False
        file, since = self._reading
        limit = READ_TIMEOUT_S + file.hit.entry.n_bytes / SLOWEST_BYTES_PER_S
        is_stuck = self._clock() - since >= limit
        if is_stuck and not self._has_warned:
            self._has_warned = True
            _logger.warning("the disk has not read a computed prefix within %.0f s: prompts are computed", limit)
        return is_stuck

    def _ordered(self) -> list[_File]:
        """Files whose turn it is now, noted as ordered: of one request after the other, as long as there is room."""
        ordered = []
        has_room = True
        for request in self._requests.values():
            missing = [] if request.is_over else [file for file in request.files if not file.is_ordered]
            n_bytes = sum(file.hit.entry.n_bytes for file in missing)
            has_room = has_room and (self._n_bytes == 0 or self._n_bytes + n_bytes <= self._max_bytes)
            if not has_room:
                break
            for file in missing:
                file.is_ordered = True
            self._n_bytes += n_bytes
            ordered += missing
        return ordered

    # Reading. The last two are called by the reading thread.

    def _begin_reading(self) -> None:
        with self._lock:
            ordered = self._ordered()
        for file in ordered:
            self._disk.fetch(file.hit, partial(self._answer, file), partial(self._begin, file))

    def _take_in(self, file: _File) -> None:
        """Have the engine take over what a file had."""
        fetched = file.fetched
        if fetched is None:
            return
        try:
            saved = self._load(fetched)
        except EngineDown:
            raise
        except Exception:
            _logger.exception("a state from disk does not fit")
            with self._lock:
                self._empty(file)
            self._disk.discard(file.hit)
            return
        with self._lock:
            file.saved, file.fetched = saved, None
            self._arrived.add(saved)
            self._by_copy[saved] = file

    def _begin(self, file: _File) -> bool:
        """It is the file's turn; whether anybody wants it still."""
        with self._lock:
            if not file.wanted_by:
                self._drop(file)
                return False
            self._reading = file, self._clock()
            return True

    def _answer(self, file: _File, fetched: FetchedState | None) -> None:
        with self._lock:
            if self._reading is not None and self._reading[0] is file:
                self._reading = None
                self._has_warned = False
            if not file.is_answered:
                file.is_answered = True
                file.fetched = fetched
                if fetched is None:
                    self._n_bytes -= file.hit.entry.n_bytes
                if not file.wanted_by:
                    self._drop(file)
            waiting = [request for request in self._requests.values() if not request.is_over]
            woken = {request.done for request in waiting if request.has_all or not request.has_turn}
        for done in woken:
            done()

    def _set_alarm(self) -> None:
        """Have the scheduler look at the time again."""
        if self._alarm is None:
            self._alarm = threading.Timer(self._check_s, self._ring)
            self._alarm.daemon = True
            self._alarm.start()

    def _ring(self) -> None:
        with self._lock:
            self._alarm = None
            woken = {request.done for request in self._requests.values() if not request.is_over}
        for done in woken:
            done()
