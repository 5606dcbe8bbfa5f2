"""One thread that does jobs in their order. Any thread may post."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

_logger = logging.getLogger(__name__)


def _nothing() -> None:
    """Nobody waits for the job."""


class _Job(NamedTuple):
    run: Callable[[], None]
    drop: Callable[[], None]


class JobThread:
    """Begins with its first job; ``close`` drops the jobs that have not begun. It does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._is_busy = False

    def post(self, run: Callable[[], None], drop: Callable[[], None] = _nothing) -> bool:
        """Have a job done; ``drop`` is called instead if the thread is closed before it begins. False once closed."""
        with self._changed:
            if self._is_closed:
                return False
            self._jobs.append(_Job(run, drop))
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            return True

    def drain(self, timeout_s: float) -> bool:
        """Wait until all jobs are done; whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._is_busy, timeout_s)

    def close(self) -> None:
        """End after the job under way; drop the others. May be called twice."""
        with self._changed:
            self._is_closed = True
            dropped = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for job in dropped:
            self._guarded(job.drop)

    def join(self, timeout_s: float) -> None:
        """Wait for the job under way, once closed; no longer than the timeout."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self._guarded(job.run)
            del job  # it may hold a large state

    def _next(self) -> _Job | None:
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: bool(self._jobs) or self._is_closed)
            if not self._jobs:
                return None
            self._is_busy = True
            return self._jobs.popleft()

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            _logger.exception("a job of %s failed", self._name)
