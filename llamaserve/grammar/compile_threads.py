"""The threads that compile: few, with large stacks, and not waited for when the process ends.

A run cannot be ended from outside. One that nobody waits for any more keeps its thread until it ends by itself; as long
as that are few, others take its place.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

THREADS = 2
MOST_REPLACED = 4
"""Threads started for those that are held by runs nobody waits for."""
STACK_BYTES = 512 * 2**20
"""llguidance recurses with the rules that refer to each other: 8 MiB are too little for 1,500 of them, and a grammar of
64 KiB may have 6,000. Only what is used takes memory."""

ResultT = TypeVar("ResultT")
_Job = tuple["Future[Any]", Callable[[], Any]]
_starting = threading.Lock()


class CompileThreads:
    """Any thread may call it."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._n_replaced = 0
        for _ in range(THREADS):
            self._start()

    def submit(self, run: Callable[[], ResultT]) -> Future[ResultT]:
        """Have a thread run this, after all that was submitted before."""
        future: Future[ResultT] = Future()
        self._jobs.put((future, run))
        return future

    def replace(self) -> None:
        """A thread is held by a run that nobody waits for: have another one, if not too many are held already."""
        with self._lock:
            if self._n_replaced == MOST_REPLACED:
                return
            self._n_replaced += 1
        self._start()

    def close(self) -> None:
        """Run nothing that has not begun. Does not wait."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job[0].cancel()
        for _ in range(THREADS + MOST_REPLACED):
            self._jobs.put(None)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="llamaserve-grammar", daemon=True)
        with _starting:  # the size is the process's, for threads started from now on
            before = threading.stack_size(STACK_BYTES)
            try:
                thread.start()
            finally:
                threading.stack_size(before)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, run = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(run())
                except BaseException as error:  # noqa: BLE001  whoever waits for it raises it
                    future.set_exception(error)
            del future, run, job  # a thread that waits keeps no grammar
            if self._is_surplus():
                return

    def _is_surplus(self) -> bool:
        with self._lock:
            if self._n_replaced == 0:
                return False
            self._n_replaced -= 1
            return True
