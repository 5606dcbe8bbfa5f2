"""The scheduler's thread: starts, sleeps, stops promptly, survives. Events instead of sleeps."""

from __future__ import annotations

import os
import queue
import signal
import threading
import warnings
from collections.abc import Callable

import pytest

from llamaserve.cache.build import make_prefix_memory
from llamaserve.config import CacheConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine, FakeFlag
from llamaserve.engine.port import StepPlan
from llamaserve.errors import Cancelled, EngineDown, LlamaServeError
from llamaserve.request import Event, Failed, Finished, GenerationRequest
from llamaserve.scheduler.scheduler import Scheduler
from llamaserve.scheduler.thread import SchedulerThread

PATIENCE_S = 30.0


class Running:
    """A thread, and a queue of what it delivered."""

    def __init__(self, engine: FakeEngine, config: SchedulerConfig | None = None) -> None:
        self.engine = engine
        self.delivered: queue.SimpleQueue[tuple[str, Event]] = queue.SimpleQueue()
        prefixes = make_prefix_memory(engine, CacheConfig(cache_ram=0))
        self.thread = SchedulerThread(engine, config or SchedulerConfig(), self._deliver, prefixes)

    def _deliver(self, events: list[tuple[str, Event]]) -> None:
        for event in events:
            self.delivered.put(event)

    def submit(self, request_id: str = "r", max_tokens: int = 3) -> None:
        """Submit a small request."""
        self.thread.submit(GenerationRequest(request_id, (1, 2, 3), max_tokens))

    def terminal(self) -> tuple[str, Event]:
        """The next terminal event."""
        while True:
            request_id, event = self.delivered.get(timeout=PATIENCE_S)
            if isinstance(event, Finished | Failed):
                return request_id, event


def blocks_until_flagged(entered: threading.Event) -> Callable[[StepPlan, FakeFlag | None], None]:
    """A step that runs until its flag is set, as a long prefill that is stopped."""

    def before_step(plan: StepPlan, flag: FakeFlag | None) -> None:
        assert flag is not None
        entered.set()
        assert flag.wait(PATIENCE_S)

    return before_step


def n_scheduler_threads() -> int:
    """Scheduler threads alive; other tests of the run may have one."""
    return sum(thread.name == "llamaserve-scheduler" for thread in threading.enumerate())


def test_requests_are_served_one_after_the_other_and_at_once() -> None:
    running = Running(FakeEngine())
    running.submit("a")
    assert running.terminal()[0] == "a"
    running.submit("b")
    running.submit("c")
    assert {running.terminal()[0], running.terminal()[0]} == {"b", "c"}
    running.thread.close()


def test_a_cancel_ends_a_long_step_in_the_middle() -> None:
    """S56, K12: the running step is stopped, and the thread serves the next request."""
    entered = threading.Event()
    running = Running(FakeEngine(before_step=blocks_until_flagged(entered)))
    running.submit("a")
    assert entered.wait(PATIENCE_S)
    assert running.thread.cancel("a")
    request_id, event = running.terminal()
    assert request_id == "a"
    assert isinstance(event, Failed)
    assert isinstance(event.error, Cancelled)
    running.engine.before_step = None
    running.submit("b")
    assert isinstance(running.terminal()[1], Finished)
    running.thread.close()


def test_a_close_ends_a_long_step_and_answers_everybody() -> None:
    """K15."""
    entered = threading.Event()
    n_before = n_scheduler_threads()
    running = Running(FakeEngine(n_slots=1, before_step=blocks_until_flagged(entered)))
    running.submit("a")
    running.submit("b")
    assert entered.wait(PATIENCE_S)
    running.thread.close()
    answers = dict([running.terminal(), running.terminal()])
    assert answers.keys() == {"a", "b"}
    for event in answers.values():
        assert isinstance(event, Failed)
        assert isinstance(event.error, EngineDown)
    assert running.engine.is_shut_down
    assert n_scheduler_threads() == n_before


def test_a_closed_thread_refuses() -> None:
    running = Running(FakeEngine())
    running.submit("a")
    running.terminal()
    running.thread.close()
    running.thread.close()
    with pytest.raises(EngineDown, match="shutting down"):
        running.submit("b")


def test_a_thread_that_never_started_closes_and_never_starts() -> None:
    n_before = n_scheduler_threads()
    running = Running(FakeEngine())
    running.thread.close()
    assert running.engine.is_shut_down
    with pytest.raises(EngineDown):
        running.submit("a")
    assert n_scheduler_threads() == n_before


def test_a_submit_in_the_middle_of_the_close_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """K15: it is not taken in by a scheduler whose thread will never start."""
    running = Running(FakeEngine())
    refusals: list[EngineDown] = []

    def submit_late() -> None:
        try:
            running.submit("late")
        except EngineDown as error:
            refusals.append(error)

    late = threading.Thread(target=submit_late)
    stop = Scheduler.stop

    def submit_then_stop(scheduler: Scheduler, error: EngineDown) -> None:
        late.start()
        late.join(0.2)
        stop(scheduler, error)

    monkeypatch.setattr(Scheduler, "stop", submit_then_stop)
    running.thread.close()
    late.join(PATIENCE_S)
    assert [str(error) for error in refusals] == ["the server is shutting down"]


def test_a_thread_closed_from_itself_ends() -> None:
    """A garbage collection on the scheduler thread may close it."""
    closed = threading.Event()
    running = Running(FakeEngine())

    def close(plan: StepPlan, flag: FakeFlag | None) -> None:
        running.thread.close()
        closed.set()

    running.engine.before_step = close
    running.submit("a")
    _, event = running.terminal()
    assert closed.is_set()
    assert isinstance(event, Failed)
    assert isinstance(event.error, EngineDown)
    running.thread.close()
    assert running.engine.is_shut_down


class Abort(BaseException):
    """As a native extension's arrives: no Exception."""


@pytest.mark.parametrize("fault", [ZeroDivisionError("a bug"), Abort("a bug"), SystemExit("a bug")], ids=repr)
def test_a_fault_of_the_scheduler_itself_answers_everybody(fault: BaseException) -> None:
    """K36, K15: nobody waits for a thread that has died."""

    class FaultyEngine(FakeEngine):
        def used_cells(self) -> int:
            if self.plans:
                raise fault
            return 0

    running = Running(FaultyEngine(n_slots=1))
    running.submit("a")
    request_id, event = running.terminal()
    assert request_id == "a"
    assert isinstance(event, Failed)
    assert "a bug" in str(event.error)
    assert running.thread.failure is not None
    with pytest.raises(EngineDown):
        running.submit("b")
    running.thread.close()
    assert running.engine.is_shut_down


def test_many_threads_submit_and_cancel_and_each_gets_one_answer() -> None:
    """K15, K50."""
    running = Running(FakeEngine(), SchedulerConfig(max_queue=0))
    n_requests = 60

    def submit(start: int) -> None:
        for n in range(start, n_requests, 4):
            running.submit(f"r{n}", max_tokens=5)
            if n % 3 == 0:
                running.thread.cancel(f"r{n}")

    threads = [threading.Thread(target=submit, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answered = [running.terminal()[0] for _ in range(n_requests)]
    running.thread.close()
    assert sorted(answered) == sorted(f"r{n}" for n in range(n_requests))
    assert running.delivered.empty()


def in_a_fork(work: Callable[[], str], patience_s: int = 30) -> str:
    """What ``work`` returns in a forked child, or the error it raises there; empty if the child hangs."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
        process_id = os.fork()
    if process_id == 0:
        signal.alarm(patience_s)
        try:
            said = work()
        except LlamaServeError as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(process_id, 0)
    return said


LOADED_BEFORE_FORK = "EngineDown: the model was loaded before a fork: load it in the child process"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("has_served", [False, True])
def test_a_forked_child_is_told_that_there_is_no_model(has_served: bool) -> None:
    """No thread survives a fork: nobody would ever answer there. The parent goes on."""
    running = Running(FakeEngine())

    def submit_in_child() -> str:
        running.submit()
        return "submitted"

    if has_served:
        running.submit()
        running.terminal()
    assert in_a_fork(submit_in_child) == LOADED_BEFORE_FORK
    assert in_a_fork(lambda: repr(running.thread.failure)) == repr(EngineDown(LOADED_BEFORE_FORK.split(": ", 1)[1]))
    assert running.thread.failure is None
    running.submit()
    assert isinstance(running.terminal()[1], Finished)
    running.thread.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_can_cancel_and_close_whatever_its_parent_was_doing() -> None:
    """The locks may be held for ever there, and the engine is the parent's."""
    entered = threading.Event()
    running = Running(FakeEngine(before_step=blocks_until_flagged(entered)))
    running.submit()
    assert entered.wait(PATIENCE_S)

    def leave() -> str:
        was_live = running.thread.cancel("r")
        running.thread.close()
        return f"{was_live} {running.engine.is_shut_down}"

    are_held, may_go = threading.Event(), threading.Event()

    def hold_locks() -> None:
        with running.thread._lock, running.thread._scheduler._inbox._lock:
            are_held.set()
            may_go.wait(PATIENCE_S)

    holder = threading.Thread(target=hold_locks)
    holder.start()
    assert are_held.wait(PATIENCE_S)
    assert in_a_fork(leave) == "False False"
    may_go.set()
    holder.join()
    running.thread.close()
