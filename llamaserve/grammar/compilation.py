"""One restriction being compiled, and all who wait for it: whoever asks for the same meanwhile waits for the same run.

What a run may take counts from its own beginning, not from when it was asked for: a request that waits behind others is
not at fault. A run cannot be ended from outside; it asks now and then how much time is left.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Generic, TypeVar

from llamaserve.errors import BadGrammar, CompilerBusy, EngineDown
from llamaserve.grammar.compile_threads import CompileThreads

COMPILE_TIMEOUT_S = 1.0
"""Of one run."""
QUEUE_TIMEOUT_S = 3.0
"""For a thread to begin it."""

CompiledT = TypeVar("CompiledT")
TimeLeft = Callable[[], float]
"""Seconds a run may yet take; 0 when nobody waits for it any more."""


class TooSlow(BadGrammar):
    """A run took more than its time."""

    def __init__(self) -> None:
        super().__init__(
            f"the grammar or schema takes more than {COMPILE_TIMEOUT_S:g} s to compile: it must be simpler"
        )


class Compilation(Generic[CompiledT]):
    """``join`` and ``leave`` are called under the lock of whoever owns it; the rest by any thread."""

    def __init__(self, compiles: Callable[[TimeLeft], CompiledT]) -> None:
        self._compiles = compiles
        self._n_waiting = 0
        self._begun = threading.Event()
        self._begun_at = 0.0
        self._future: Future[CompiledT] | None = None

    def begin(self, threads: CompileThreads, on_end: Callable[[CompiledT | None], None]) -> None:
        """Have one of the threads run it; ``on_end`` is told there what came of it, before those who wait are."""
        self._future = threads.submit(functools.partial(self._run, on_end))
        self._future.add_done_callback(lambda _: self._begun.set())  # it may be cancelled before

    def join(self) -> None:
        """Somebody is going to wait."""
        self._n_waiting += 1

    def leave(self) -> bool:
        """Somebody has waited; whether nobody else does and it will never begin."""
        self._n_waiting -= 1
        return self._n_waiting == 0 and self._future is not None and self._future.cancel()

    def wait(self) -> CompiledT:
        """What came of it. Raises BadGrammar where it was refused, TooSlow where it took too long, CompilerBusy where
        it did not begin in time, EngineDown where it never will."""
        future = self._future
        if future is None:
            raise RuntimeError("the compilation was not begun")
        if not self._begun.wait(QUEUE_TIMEOUT_S):
            raise CompilerBusy(QUEUE_TIMEOUT_S)
        try:
            return future.result(self._own_time_left())
        except CancelledError:
            raise EngineDown("the engine was shut down") from None
        except FutureTimeoutError:
            raise TooSlow from None

    def _run(self, on_end: Callable[[CompiledT | None], None]) -> CompiledT:
        self._begun_at = time.monotonic()
        self._begun.set()
        compiled: CompiledT | None = None
        try:
            compiled = self._compiles(self._time_left)
        finally:
            on_end(compiled)
        return compiled

    def _time_left(self) -> float:
        return self._own_time_left() if self._n_waiting else 0.0

    def _own_time_left(self) -> float:
        return max(0.0, self._begun_at + COMPILE_TIMEOUT_S - time.monotonic())
