"""What other threads share with the scheduler thread, under one lock: commands, live requests, the running step.

Requests come in, are cancelled and are counted here, so that a full queue is answered at once (S48), while a step is
running; and a step whose requests are all cancelled is stopped inside the native call (S56).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from llamaserve.cache.prompt import Prompt
from llamaserve.engine.port import StepFlag
from llamaserve.errors import BadRequest, EngineDown, QueueFull, QueueTokensFull
from llamaserve.request import GenerationRequest, Lane
from llamaserve.scheduler.drain_rate import DrainRate
from llamaserve.scheduler.queue_limits import Comer, QueueLimits


@dataclass(frozen=True, slots=True)
class Submit:
    """Compute a request: a ``QueueItem``. Times are in clock seconds."""

    request: GenerationRequest
    prompt: Prompt
    submitted_at: float
    timeout_s: float | None = None
    """How long it may wait."""

    @property
    def request_id(self) -> str:
        """The request's."""
        return self.request.request_id

    @property
    def lane(self) -> Lane:
        """How urgent it is."""
        return self.request.priority

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.request.owner

    @property
    def session(self) -> str | None:
        """The conversation it belongs to."""
        return self.request.session

    @property
    def n_tokens(self) -> int:
        """Of its prompt."""
        return len(self.prompt.tokens)

    @property
    def max_tokens(self) -> int | None:
        """Tokens it may draw."""
        return self.request.max_tokens

    @property
    def deadline(self) -> float | None:
        """When it has waited long enough."""
        return None if self.timeout_s is None else self.submitted_at + self.timeout_s


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request, waiting or running."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Answer everything with EngineDown and end."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Look again: something a waiting request needs may be there."""


Command = Submit | Cancel | Stop | Wake


def _comers(entries: Sequence[Submit]) -> list[Comer]:
    """The requests as the queue's limits see them: a prompt that several share waits once."""
    prompts: set[int] = set()
    comers = []
    for entry in entries:
        prompt = id(entry.request.prompt)
        comers.append(Comer(entry.request_id, 0 if prompt in prompts else entry.n_tokens))
        prompts.add(prompt)
    return comers


class Inbox:
    """The scheduler's door. Methods say who may call; commands come out in the order they came in.

    A request is live from ``submit`` to ``leave``. A step's flag is set at most while that step runs: ``begin_step``
    and ``end_step`` bind it to the step under the same lock that ``cancel`` takes.

    ``stop`` may come from a garbage collection, on any thread and in the middle of any method here: the lock is
    reentrant, and the queue of commands is one that a put from inside its own get does not disturb.
    """

    def __init__(self, *, n_slots: int, max_queue: int, max_queue_tokens: int = 0) -> None:
        self._lock = threading.RLock()
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._woken_by: list[Command] = []
        self._limits = QueueLimits(n_slots=n_slots, max_requests=max_queue, max_tokens=max_queue_tokens)
        self.drain = DrainRate()
        """How fast the queue empties; the scheduler thread tells it."""
        self._live: set[str] = set()
        self._cancelled: set[str] = set()
        self._refusal: EngineDown | None = None
        self._n_rejected = 0
        self._n_rejected_tokens = 0
        self._running: Collection[str] = ()
        self._prompting: Collection[str] = ()
        self._flag: StepFlag | None = None
        self._is_stopping = False

    # Any thread.

    def submit(self, *entries: Submit) -> None:
        """Take requests in, at least one, all or none. Raises EngineDown after ``refuse``, QueueFull when there is no
        place for all of them, BadRequest when a live request has the id of one or two of them have the same."""
        request_ids = {entry.request_id for entry in entries}
        with self._lock:
            if self._refusal is not None:
                # A new exception each time: one object raised in several threads would mix their tracebacks.
                raise EngineDown(*self._refusal.args)
            taken = request_ids & self._live
            if taken or len(request_ids) < len(entries):
                raise BadRequest(f"request id {min(taken or request_ids)!r} is in use", "request_id")
            try:
                self._limits.enter(_comers(entries))
            except QueueFull as error:
                error.retry_after_s = self.drain.retry_after_s(entries[0].submitted_at)
                if isinstance(error, QueueTokensFull):
                    self._n_rejected_tokens += len(entries)
                else:
                    self._n_rejected += len(entries)
                raise
            self._live |= request_ids
            for entry in entries:
                self._commands.put(entry)

    def check_room(self, now: float) -> None:
        """Raises QueueFull, and counts a refusal, when no request could come in now (clock seconds)."""
        with self._lock:
            try:
                self._limits.check_room()
            except QueueFull as error:
                error.retry_after_s = self.drain.retry_after_s(now)
                self._n_rejected += 1
                raise

    def cancel(self, request_id: str) -> bool:
        """Ask for the end of a request; whether it was live. Stops the running step if it now works for nobody."""
        with self._lock:
            if request_id not in self._live:
                return False
            self._cancelled.add(request_id)
            self._limits.leave(request_id)  # its place is free at once (S53)
            self._commands.put(Cancel(request_id))
            self._stop_useless_step()
            return True

    def stop(self, error: EngineDown) -> None:
        """Refuse new requests with this error, stop the running step and every later one, ask the scheduler to end."""
        with self._lock:
            self._refusal = self._refusal or error
            self._is_stopping = True
            self._commands.put(Stop())
            self._stop_useless_step()

    def wake(self) -> None:
        """Have the scheduler look again at who waits."""
        self._commands.put(Wake())

    @property
    def refusal(self) -> EngineDown | None:
        """Why no request is taken any more; None while they are."""
        return self._refusal

    @property
    def n_rejected(self) -> int:
        """Requests refused because as many waited as may."""
        return self._n_rejected

    @property
    def n_rejected_tokens(self) -> int:
        """Requests refused because as many prompt tokens waited as may."""
        return self._n_rejected_tokens

    # Scheduler thread only.

    def wait(self) -> None:
        """Block until there is a command."""
        if not self._woken_by:
            self._woken_by.append(self._commands.get())

    def take(self) -> list[Command]:
        """All commands, oldest first."""
        commands, self._woken_by = self._woken_by, []
        while not self._commands.empty():
            commands.append(self._commands.get_nowait())
        return commands

    def refuse(self, error: EngineDown) -> None:
        """Take no request any more; the first reason stays."""
        with self._lock:
            self._refusal = self._refusal or error

    def begin(self, request_id: str) -> None:
        """The request waits no more: it gets a slot."""
        with self._lock:
            self._limits.begin(request_id)

    def leave(self, request_id: str) -> None:
        """The request has ended; its place is free."""
        with self._lock:
            self._limits.leave(request_id)
            self._live.discard(request_id)
            self._cancelled.discard(request_id)

    def leave_all(self) -> list[str]:
        """End every live request, those in untaken commands too; their ids."""
        with self._lock:
            left = list(self._live)
            self._limits.clear()
            self._live.clear()
            self._cancelled.clear()
            return left

    def begin_step(self, request_ids: Collection[str], prompting: Collection[str], flag: StepFlag) -> None:
        """A step for these requests starts. Its flag is set as soon as all of them are cancelled, or all those of them
        that are ``prompting``: long work that rows of a token each need not wait for."""
        with self._lock:
            self._running = request_ids
            self._prompting = prompting
            self._flag = flag
            self._stop_useless_step()

    def end_step(self) -> None:
        """The step is over; nothing touches its flag any more."""
        with self._lock:
            self._running = self._prompting = ()
            self._flag = None

    def is_cancelled(self, request_id: str) -> bool:
        """Whether the end of a live request was asked for."""
        return request_id in self._cancelled

    @property
    def is_stopping(self) -> bool:
        """Whether ``stop`` was called."""
        return self._is_stopping

    @property
    def live(self) -> frozenset[str]:
        """Ids of the live requests."""
        with self._lock:
            return frozenset(self._live)

    def _stop_useless_step(self) -> None:
        if self._flag is None:
            return
        is_useless = self._cancelled.issuperset(self._running)
        is_held_up = bool(self._prompting) and self._cancelled.issuperset(self._prompting)
        if self._is_stopping or (self._cancelled and (is_useless or is_held_up)):
            self._flag.set()
