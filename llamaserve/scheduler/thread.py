"""The thread that runs a scheduler and, through it, an engine."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from llamaserve.cache.prefix_memory import Holder, PrefixMemory
from llamaserve.config import SchedulerConfig
from llamaserve.engine.port import Engine
from llamaserve.errors import EngineDown
from llamaserve.request import GenerationRequest
from llamaserve.scheduler.scheduler import Deliver, Scheduler
from llamaserve.scheduler.slot_view import SlotView
from llamaserve.scheduler.stats import SchedulerStats

_logger = logging.getLogger(__name__)


class SchedulerThread:
    """Owns the engine from the first request to ``close``: ticks while there is work, else sleeps on the inbox.

    Any thread, ``close`` too. The thread starts with the first ``submit``. It is a daemon, so a program that never
    calls ``close`` still ends; ``deliver`` runs on it.

    Threads do not survive a fork: in a child process there is nothing to compute with, and the locks may be as some
    thread of the parent held them. There requests are refused, and nothing else of it is touched.
    """

    def __init__(
        self,
        engine: Engine,
        config: SchedulerConfig,
        deliver: Deliver,
        prefixes: PrefixMemory,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._scheduler = Scheduler(engine, config, deliver, prefixes, clock=clock)
        self._thread = threading.Thread(target=self._loop, name="llamaserve-scheduler", daemon=True)
        self._lock = threading.Lock()
        self._is_closed = False
        self._process_id = os.getpid()

    def submit(self, *requests: GenerationRequest, timeout_s: float | None = None) -> None:
        """Take requests in, all or none; ``timeout_s`` is how long each may wait for a slot.

        Raises what ``Scheduler.submit`` raises; EngineDown after ``close``, and in a forked child.
        """
        if self._is_forked:
            raise _loaded_before_fork()
        self._start()
        self._scheduler.submit(*requests, timeout_s=timeout_s)

    def check_room(self) -> None:
        """Raises QueueFull when no request could come in now."""
        self._scheduler.check_room()

    def cancel(self, request_id: str) -> bool:
        """Ask for the end of a request; whether it was live."""
        return not self._is_forked and self._scheduler.cancel(request_id)

    @property
    def failure(self) -> EngineDown | None:
        """Why nothing is served any more; None while requests are taken."""
        return _loaded_before_fork() if self._is_forked else self._scheduler.failure

    def stats(self) -> SchedulerStats:
        """Numbers as they are now."""
        return self._scheduler.stats()

    def slots(self) -> Sequence[SlotView]:
        """What each slot does."""
        return self._scheduler.slots()

    def holders(self) -> Sequence[Holder]:
        """Which sequences hold computed prefixes."""
        return self._scheduler.holders()

    def close(self) -> None:
        """Answer what is left with EngineDown, end the thread, shut the engine down. May be called twice.

        Does nothing in a forked child: what it would close is the parent's.
        """
        if self._is_forked:
            return
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            is_started = self._is_started
            if is_first:
                # Under the lock: a submit that finds no thread to start must find the refusal.
                self._scheduler.stop(EngineDown("the server is shutting down"))
                if not is_started:
                    self._shut_down()
        # A garbage collection may close from the scheduler thread itself, which cannot wait for its own end.
        if is_started and threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._process_id

    @property
    def _is_started(self) -> bool:
        # Not a flag of our own: an interrupt inside start() would leave it behind.
        return self._thread.ident is not None

    def _start(self) -> None:
        if self._is_started:
            return
        with self._lock:
            if not self._is_started and not self._is_closed:
                self._thread.start()

    def _loop(self) -> None:
        scheduler = self._scheduler
        try:
            while not scheduler.is_stopped:
                if not scheduler.tick():
                    scheduler.wait()
        except BaseException as error:  # an abort in a native extension is no Exception, and nobody else answers
            _logger.exception("the scheduler failed")
            scheduler.fail_all(EngineDown(f"the scheduler failed: {type(error).__name__}: {error}"))
        finally:
            self._shut_down()

    def _shut_down(self) -> None:
        try:
            self._scheduler.close()
        except Exception:
            _logger.exception("what was computed could not be kept")
        self._engine.shutdown()


def _loaded_before_fork() -> EngineDown:
    return EngineDown("the model was loaded before a fork: load it in the child process")
