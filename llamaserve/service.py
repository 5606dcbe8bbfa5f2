"""Requests in, events out, from any event loop or plain thread. Knows no JSON and no slot.

Owns the scheduler thread, and who listens to which request. A consumer that goes away (its task cancelled, its loop
closed, its iterator closed or collected) cancels its request (S51, S52, S54).
"""

from __future__ import annotations

import asyncio
import logging
import queue
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llamaserve.cache.build import make_prefix_memory
from llamaserve.cache.prefix_memory import Holder
from llamaserve.config import CacheConfig, SchedulerConfig
from llamaserve.engine.port import Engine, ModelInfo, Vocabulary
from llamaserve.errors import BadRequest, Cancelled, DeadlineExceeded, EngineDown, shown
from llamaserve.grammar.compiler import GrammarCompiler
from llamaserve.request import Event, Failed, Finished, GenerationRequest
from llamaserve.scheduler.slot_view import SlotView
from llamaserve.scheduler.stats import SchedulerStats
from llamaserve.scheduler.thread import SchedulerThread

if TYPE_CHECKING:
    from llamaserve.chat.template import ChatTemplate

MAX_TIMEOUT_S = 30 * 24 * 3600  # what every system's timers can wait

_logger = logging.getLogger(__name__)


class _TaskListener:
    """A consumer on an event loop: a function that takes its events there. It must not raise: one that does gets no
    more, and its request is cancelled."""

    __slots__ = ("has_failed", "loop", "take")

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[Event], None]) -> None:
        self.loop = loop
        self.take = take
        self.has_failed = False


class _ThreadListener:
    """A consumer that blocks a thread."""

    __slots__ = ("events",)

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()


_Listener = _TaskListener | _ThreadListener


class _Delivery:
    """Brings the events of a tick to their consumers: one hand-off for each event loop.

    ``add`` and ``remove``: any thread; ``deliver``: scheduler thread. Every operation on the table is one atomic dict
    call.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, _Listener] = {}
        self.cancel: Callable[[str], bool] | None = None
        """How to end a request nobody can listen to any more."""

    def add(self, request_id: str, listener: _Listener) -> None:
        """Send the request's events there. Raises BadRequest when somebody listens to this id already."""
        if self._listeners.setdefault(request_id, listener) is not listener:
            raise BadRequest(f"request id {request_id!r} is in use", "request_id")

    def has(self, request_id: str, listener: _Listener) -> bool:
        """Whether the request's events go there; no more if it was given up, and the id may be another's then."""
        return self._listeners.get(request_id) is listener

    def remove(self, request_id: str) -> None:
        """Drop the request's further events; its id is free."""
        self._listeners.pop(request_id, None)

    def deliver(self, events: list[tuple[str, Event]]) -> None:
        """Hand the events over; those of a consumer that has gone are dropped."""
        batches: dict[asyncio.AbstractEventLoop, list[tuple[str, _TaskListener, Event]]] = {}
        for request_id, event in events:
            listener = self._listeners.get(request_id)
            if isinstance(listener, _TaskListener):
                batches.setdefault(listener.loop, []).append((request_id, listener, event))
            elif listener is not None:
                listener.events.put(event)
        for loop, batch in batches.items():
            try:
                loop.call_soon_threadsafe(self._hand_over, batch)
            except RuntimeError:  # the loop is closed, and its consumers with it
                for request_id in {request_id for request_id, _, _ in batch}:
                    self._give_up(request_id)

    def _hand_over(self, batch: list[tuple[str, _TaskListener, Event]]) -> None:
        """On the event loop. A consumer that raises costs the others nothing."""
        for request_id, listener, event in batch:
            if listener.has_failed:
                continue
            try:
                listener.take(event)
            except Exception:
                _logger.exception("request %s: its consumer failed", request_id)
                listener.has_failed = True
                if self.has(request_id, listener):
                    self._give_up(request_id)

    def _give_up(self, request_id: str) -> None:
        """End a request nobody listens to any more."""
        if self.cancel is not None:
            self.cancel(request_id)
        self.remove(request_id)


class _Deadline:
    """When a request's time is over, and the event that says so. Starts now; raises BadRequest."""

    __slots__ = ("_clock", "_ends_at", "event", "timeout_s")

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
        if not is_number or not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise BadRequest(
                f"timeout_s is {shown(timeout_s)}: it must be a number above 0, at most {MAX_TIMEOUT_S} (30 days)",
                "timeout_s",
            )
        self.timeout_s = timeout_s
        self.event = Failed(DeadlineExceeded(timeout_s))
        self._clock = clock
        self._ends_at = clock() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds left; 0 or less when it is over."""
        return self._ends_at - self._clock()


class Service:
    """A model being served. Any thread and any event loop, several at once.

    The engine belongs to the service: ``close`` shuts it down. A service that is never closed is closed when it is
    collected or the interpreter exits.
    """

    def __init__(
        self,
        engine: Engine,
        template: ChatTemplate | None,
        config: SchedulerConfig,
        model_name: str,
        *,
        cache: CacheConfig | None = None,
        model_path: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``model_path`` is the file the model came from: what the disk keeps is bound to it."""
        self._model_name = model_name
        self._model_path = model_path
        self._clock = clock
        self._info = engine.info
        self._vocab = engine.vocab
        self._template = template
        self._grammars = GrammarCompiler(engine.vocab)
        self._delivery = _Delivery()
        self._cache = cache or CacheConfig()
        self._max_queue = config.max_queue
        self._wants_boundaries = not engine.can_share
        prefixes = make_prefix_memory(engine, self._cache, model_path)
        self._thread = SchedulerThread(engine, config, self._delivery.deliver, prefixes, clock=clock)
        self._delivery.cancel = self._thread.cancel
        # Not a method of this object: the finalizer must not keep it alive.
        self._finalizer = weakref.finalize(self, _end, self._thread, self._delivery)

    @property
    def model_name(self) -> str:
        """The name clients use."""
        return self._model_name

    @property
    def model_path(self) -> Path | None:
        """The file the model came from, if it came from one."""
        return self._model_path

    @property
    def info(self) -> ModelInfo:
        """The model and the sizes of its context."""
        return self._info

    @property
    def vocab(self) -> Vocabulary:
        """Text to tokens and back."""
        return self._vocab

    @property
    def template(self) -> ChatTemplate | None:
        """The model's chat template; None when it has none."""
        return self._template

    @property
    def grammars(self) -> GrammarCompiler:
        """Compiles restrictions of answers."""
        return self._grammars

    @property
    def failure(self) -> EngineDown | None:
        """Why nothing is served any more; None while requests are taken."""
        return self._thread.failure

    @property
    def most_at_once(self) -> int | None:
        """Requests that can be taken together, at best; None for any number."""
        return self._info.n_slots + self._max_queue if self._max_queue else None

    def stats(self) -> SchedulerStats:
        """Numbers as they are now."""
        return self._thread.stats()

    @property
    def cache(self) -> CacheConfig:
        """What is kept of computed prompts."""
        return self._cache

    @property
    def wants_boundaries(self) -> bool:
        """Whether the places where a prompt's messages end help its cache: not where any prefix can be shared."""
        return self._wants_boundaries

    def slots(self) -> Sequence[SlotView]:
        """What each slot does."""
        return self._thread.slots()

    def holders(self) -> Sequence[Holder]:
        """Which sequences hold computed prefixes; may be one tick old."""
        return self._thread.holders()

    def check_room(self) -> None:
        """Raises QueueFull when no request could be taken now, for whoever has work to do before there is one."""
        self._thread.check_room()

    def cancel(self, request_id: str) -> bool:
        """Ask for the end of a request, waiting or running (S53); whether it was live. Its consumer gets
        Failed(Cancelled)."""
        return self._thread.cancel(request_id)

    async def stream(
        self, request: GenerationRequest, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """The events of a request; the last is Finished or Failed. Closing the iterator cancels the request.

        ``timeout_s``, at most ``MAX_TIMEOUT_S``, counts from here to the last event; when it is over the request is
        cancelled and Failed(DeadlineExceeded) is the last event (K7).

        Raises at the first step, before anything is queued: EmptyPrompt, PromptTooLong, BadToken, BadRequest,
        QueueFull, EngineDown.
        """
        deadline = None if timeout_s is None else _Deadline(timeout_s, self._clock)
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()
        listener = _TaskListener(loop, events.put_nowait)
        self._begin([request], {request.request_id: listener}, timeout_s)
        timer = None
        if deadline is not None:
            timer = loop.call_later(deadline.timeout_s, self._expire, request.request_id, listener, deadline)
        try:
            while not isinstance(event := await events.get(), Finished | Failed):
                yield event
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(request.request_id, listener)
        yield event  # the consumer may keep the iterator, or an exception that holds it: the request is over

    def listen(
        self, requests: Sequence[GenerationRequest], takes: Sequence[Callable[[Event], None]]
    ) -> Callable[[], None]:
        """As ``stream``, for requests that are taken together, all or none, and without an iterator: the events of each
        go to its function on the running event loop, which must not raise. The result is to be called when the
        consumer is done, early or not; events under way may still come.

        Raises what ``stream`` raises.
        """
        loop = asyncio.get_running_loop()
        listeners = {
            request.request_id: _TaskListener(loop, take) for request, take in zip(requests, takes, strict=True)
        }
        self._begin(requests, listeners)

        def leave() -> None:
            for request_id, listener in listeners.items():
                self._leave(request_id, listener)

        return leave

    def stream_blocking(
        self, request: GenerationRequest, *, timeout_s: float | None = None
    ) -> Generator[Event, None, None]:
        """As ``stream``, for a plain thread; waiting blocks it."""
        deadline = None if timeout_s is None else _Deadline(timeout_s, self._clock)
        listener = _ThreadListener()
        self._begin([request], {request.request_id: listener}, timeout_s)
        try:
            while not isinstance(event := self._next(listener, deadline, request.request_id), Finished | Failed):
                yield event
        finally:
            self._leave(request.request_id, listener)
        yield event  # as in ``stream``

    def _next(self, listener: _ThreadListener, deadline: _Deadline | None, request_id: str) -> Event:
        """The next event, or the deadline's. A consumer that reads late still gets what was done in time."""
        if deadline is None:
            return listener.events.get()
        left_s = deadline.left_s
        if left_s <= 0:
            self._thread.cancel(request_id)
        try:
            event = listener.events.get(timeout=max(0.0, left_s))
        except queue.Empty:
            return deadline.event
        if isinstance(event, Failed) and isinstance(event.error, Cancelled) and left_s <= 0:
            return deadline.event
        return event

    def close(self) -> None:
        """Fail what runs with EngineDown, end the thread, shut the engine down. Blocks until that is done; may be
        called twice, and from several threads. The weights go with this object."""
        self._finalizer.detach()
        self._grammars.close()
        _end(self._thread, self._delivery)

    def _begin(
        self,
        requests: Sequence[GenerationRequest],
        listeners: Mapping[str, _Listener],
        timeout_s: float | None = None,
    ) -> None:
        """``listeners``: by request id."""
        added: list[str] = []
        try:
            # Listening starts before the requests do, so that no event is missed.
            for request_id, listener in listeners.items():
                self._delivery.add(request_id, listener)
                added.append(request_id)
            self._thread.submit(*requests, timeout_s=timeout_s)
        except BaseException:
            for request_id in added:
                self._delivery.remove(request_id)
            raise

    def _expire(self, request_id: str, listener: _TaskListener, deadline: _Deadline) -> None:
        """The time of a request is over, read or not. Event loop only."""
        listener.take(deadline.event)
        self._thread.cancel(request_id)

    def _leave(self, request_id: str, listener: _Listener) -> None:
        """The consumer is done: nothing happens if the request is too."""
        if self._delivery.has(request_id, listener):
            # In this order: once the id is free it may be another request's.
            self._thread.cancel(request_id)
            self._delivery.remove(request_id)


def _end(thread: SchedulerThread, delivery: _Delivery) -> None:
    """Close the thread. The two know each other no more: else the weights would stay until garbage is collected."""
    thread.close()
    delivery.cancel = None
