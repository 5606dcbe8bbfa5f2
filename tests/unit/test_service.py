"""The service: events to loops and threads, cancellation when a consumer goes, time limits, closing."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from llamaserve.completion import CompletionBuilder
from llamaserve.config import SchedulerConfig
from llamaserve.engine.fake import FakeEngine, FakeFlag
from llamaserve.engine.port import StepPlan
from llamaserve.errors import (
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    EmptyPrompt,
    EngineDown,
    LlamaServeError,
    PromptTooLong,
    QueueFull,
)
from llamaserve.request import Event, Failed, Finished, GenerationRequest, Progress, TextDelta
from llamaserve.scheduler.thread import SchedulerThread
from llamaserve.service import Service
from llamaserve.text_stream import TextStream
from tests.unit.scheduler.harness import SetClock

PATIENCE_S = 30.0


def request(request_id: str = "r", max_tokens: int | None = 5, prompt: bytes = b"hello") -> GenerationRequest:
    """A request for some letters."""
    return GenerationRequest(request_id, tuple(prompt), max_tokens)


def serve(engine: FakeEngine | None = None, config: SchedulerConfig | None = None) -> Service:
    """A service on a fake engine."""
    return Service(engine or FakeEngine(), None, config or SchedulerConfig(), "fake")


@pytest.fixture
def service() -> Iterator[Service]:
    service = serve(FakeEngine(n_ctx=100_000))
    yield service
    service.close()


class Gate:
    """Holds every step until it is opened or the step's flag is set."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.is_open = threading.Event()

    def __call__(self, plan: StepPlan, flag: FakeFlag | None) -> None:
        self.entered.set()
        while not self.is_open.wait(0.001):
            if flag is not None and flag.is_set:
                return


async def until(is_true: Callable[[], bool]) -> None:
    """Wait until the claim holds; the test's own time limit ends it."""

    def poll() -> None:
        while not is_true():
            time.sleep(0.001)

    await asyncio.to_thread(poll)


def until_idle(service: Service) -> None:
    """Wait until no request runs or waits, by asking for one more: a tick later all cancels are done."""
    for event in service.stream_blocking(request("until-idle", 1), timeout_s=PATIENCE_S):
        assert not isinstance(event, Failed), event


def error_of(events: list[Event]) -> LlamaServeError:
    """The error of the last event."""
    assert isinstance(events[-1], Failed), events[-1]
    assert all(isinstance(event, TextDelta) for event in events[:-1])
    return events[-1].error


async def collect(events: AsyncIterator[Event]) -> list[Event]:
    """All events."""
    return [event async for event in events]


def test_the_events_of_a_request_come_in_order_and_end_once(service: Service) -> None:
    """S49, S65."""
    events = asyncio.run(collect(service.stream(request())))
    assert [type(event) for event in events] == [TextDelta] * 5 + [Finished]


def test_a_plain_thread_gets_the_same_events(service: Service) -> None:
    ends = (asyncio.run(collect(service.stream(request())))[:-1], list(service.stream_blocking(request()))[:-1])
    assert ends[0] == ends[1]


def test_progress_passes_and_is_no_part_of_the_text(service: Service) -> None:
    asked = GenerationRequest("r", tuple(b"hello"), 5, return_progress=True)
    kinds = [Progress] * 2 + [TextDelta] * 5 + [Finished]
    assert [type(event) for event in asyncio.run(collect(service.stream(asked)))] == kinds
    events = list(service.stream_blocking(asked))
    assert [type(event) for event in events] == kinds
    builder = CompletionBuilder()
    for event in events:
        builder.add(event)
    text = "".join(TextStream(service.stream_blocking(asked)))
    assert builder.completion.text == text
    assert len(builder.completion.tokens) == 5


def test_several_loops_and_threads_are_served_side_by_side(service: Service) -> None:
    answers: dict[str, list[Event]] = {}

    def on_a_loop(name: str) -> None:
        async def several() -> list[list[Event]]:
            return await asyncio.gather(*(collect(service.stream(request(f"{name}{n}"))) for n in range(3)))

        for n, events in enumerate(asyncio.run(several())):
            answers[f"{name}{n}"] = events

    def blocking(name: str) -> None:
        answers[name] = list(service.stream_blocking(request(name)))

    threads = [threading.Thread(target=on_a_loop, args=(name,)) for name in "ab"]
    threads += [threading.Thread(target=blocking, args=(name,)) for name in "cd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    texts = {"".join(event.text for event in events if isinstance(event, TextDelta)) for events in answers.values()}
    assert len(texts) == 1
    assert all(isinstance(events[-1], Finished) for events in answers.values())


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (request(prompt=b""), EmptyPrompt),
        (request(prompt=b"p" * 100_000), PromptTooLong),
    ],
)
def test_a_bad_request_raises_at_the_first_step_of_the_iterator(
    service: Service, bad: GenerationRequest, error: type[Exception]
) -> None:
    """S67: on both kinds; and nothing is left behind of it."""
    with pytest.raises(error):
        asyncio.run(collect(service.stream(bad)))
    with pytest.raises(error):
        next(service.stream_blocking(bad))
    assert isinstance(list(service.stream_blocking(request()))[-1], Finished)


def test_requests_that_do_not_fit_together_are_all_answered_in_full() -> None:
    """S12, S13: consumers notice nothing but time; no text is cut and no error comes through."""
    gate = Gate()
    service = serve(FakeEngine(n_slots=4, n_ctx=64, before_step=gate))
    requests = [request(f"r{n}", max_tokens=40, prompt=bytes([n]) * 20) for n in range(4)]

    async def together() -> list[list[Event]]:
        running = [asyncio.ensure_future(collect(service.stream(one))) for one in requests]
        await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
        gate.is_open.set()
        return await asyncio.gather(*running)

    beside_others = asyncio.run(together())
    assert service.stats().preemptions > 0
    for one, events in zip(requests, beside_others, strict=True):
        alone = list(service.stream_blocking(one))
        assert events[:-1] == alone[:-1]
        assert isinstance(events[-1], Finished)
    service.close()


def test_a_full_queue_is_answered_while_a_step_runs() -> None:
    """S48: the refusal does not wait for the tick."""
    gate = Gate()
    service = serve(FakeEngine(n_slots=1, before_step=gate), SchedulerConfig(max_queue=1))

    async def check() -> None:
        running = asyncio.ensure_future(collect(service.stream(request("a"))))
        waiting = asyncio.ensure_future(collect(service.stream(request("b"))))
        await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
        with pytest.raises(QueueFull, match="1 waiting"):
            await collect(service.stream(request("c")))
        gate.is_open.set()
        assert isinstance((await running)[-1], Finished)
        assert isinstance((await waiting)[-1], Finished)

    asyncio.run(check())
    assert service.stats().queue_rejects == 1
    service.close()


def test_requests_that_are_taken_together_are_taken_all_or_none() -> None:
    gate = Gate()
    service = serve(FakeEngine(n_slots=1, before_step=gate), SchedulerConfig(max_queue=3))

    async def check() -> None:
        taken: dict[str, list[Event]] = {name: [] for name in "abcdefgh"}

        def listen(names: str) -> Callable[[], None]:
            return service.listen([request(name) for name in names], [taken[name].append for name in names])

        leave_first = listen("ab")
        await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
        with pytest.raises(QueueFull):
            listen("cde")
        with pytest.raises(BadRequest):
            listen("cc")
        with pytest.raises(BadRequest):
            listen("da")
        leave_second = listen("cd")  # the ids are free
        gate.is_open.set()
        await until(lambda: all(taken[name] and isinstance(taken[name][-1], Finished) for name in "abcd"))
        assert not any(taken[name] for name in "efgh")
        leave_first()
        leave_second()

    asyncio.run(asyncio.wait_for(check(), PATIENCE_S))
    service.close()


def test_who_listens_to_several_ends_them_all() -> None:
    service = serve(FakeEngine(n_slots=2, n_ctx=100_000, step_s=0.001))

    async def check() -> None:
        events: list[Event] = []
        leave = service.listen([request(name, None) for name in "abc"], [events.append] * 3)
        await until(lambda: bool(events))
        leave()
        leave()
        await until(lambda: service.stats().active_slots + service.stats().queue_depth == 0)
        assert service.stats().requests_cancelled == 3

    asyncio.run(asyncio.wait_for(check(), PATIENCE_S))
    service.close()


def test_a_consumer_that_raises_loses_its_own_events_only() -> None:
    """K15: those of the same tick behind it come, and its request holds no slot."""
    service = serve(FakeEngine(n_slots=3, n_ctx=100_000))

    async def check() -> None:
        taken: dict[str, list[Event]] = {name: [] for name in "abc"}

        def fail(event: Event) -> None:
            taken["b"].append(event)
            raise RuntimeError("an encoder")

        requests = [request("a", 50), request("b", None), request("c", 50)]
        leave = service.listen(requests, [taken["a"].append, fail, taken["c"].append])
        await until(lambda: service.stats().active_slots == 0)
        await until(lambda: all(taken[name] and isinstance(taken[name][-1], Finished) for name in "ac"))
        assert [sum(isinstance(event, TextDelta) for event in taken[name]) for name in "ac"] == [50, 50]
        assert len(taken["b"]) == 1
        assert service.stats().requests_cancelled == 1
        leave()

    asyncio.run(asyncio.wait_for(check(), PATIENCE_S))
    service.close()


def test_an_id_in_use_is_refused_and_its_owner_is_not_disturbed() -> None:
    gate = Gate()
    service = serve(FakeEngine(before_step=gate))
    owner = service.stream_blocking(request("same"))
    answer: list[Event] = []
    thread = threading.Thread(target=lambda: answer.extend(owner))
    thread.start()
    assert gate.entered.wait(PATIENCE_S)
    with pytest.raises(BadRequest, match="'same' is in use"):
        next(service.stream_blocking(request("same")))
    gate.is_open.set()
    thread.join()
    assert isinstance(answer[-1], Finished)
    service.close()


# A consumer that goes away.


async def leave_by_break(service: Service) -> None:
    stream = service.stream(request(max_tokens=None))
    async for _ in stream:
        break
    await stream.aclose()


async def leave_by_task_cancel(service: Service) -> None:
    first = asyncio.Event()

    async def consume() -> None:
        async for _ in service.stream(request(max_tokens=None)):
            first.set()

    task = asyncio.ensure_future(consume())
    await first.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_by_collection(service: Service) -> None:
    stream = service.stream(request(max_tokens=None))
    await anext(stream)
    del stream
    gc.collect()


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_task_cancel, leave_by_collection])
def test_a_task_that_goes_away_frees_its_slot(leave: Callable[[Service], object]) -> None:
    """S51, S52, S54, S3: an endless request has the only slot, and the next one is served all the same."""
    service = serve(FakeEngine(n_slots=1, n_ctx=1_000_000))
    asyncio.run(leave(service))  # type: ignore[arg-type]  # the three above are coroutine functions
    until_idle(service)
    assert service.stats().requests_cancelled == 1
    service.close()


@pytest.mark.parametrize("how", ["close", "collect", "break"])
def test_a_thread_that_goes_away_frees_its_slot(how: str) -> None:
    """S52, S54."""
    service = serve(FakeEngine(n_slots=1, n_ctx=1_000_000))
    stream = service.stream_blocking(request(max_tokens=None))
    if how == "break":
        for _ in stream:
            break
        stream.close()
    else:
        next(stream)
        if how == "close":
            stream.close()
    del stream
    gc.collect()
    until_idle(service)
    assert service.stats().requests_cancelled == 1
    service.close()


def test_a_loop_that_was_closed_frees_its_slots_and_harms_nobody() -> None:
    """S51, K36."""
    service = serve(FakeEngine(n_slots=1, n_ctx=1_000_000))
    loop = asyncio.new_event_loop()
    stream = service.stream(request(max_tokens=None))
    loop.run_until_complete(anext(stream))
    loop.close()
    until_idle(service)
    assert service.stats().requests_cancelled == 1
    assert isinstance(list(service.stream_blocking(request("r")))[-1], Finished), "its id is free again"
    service.close()
    del stream
    gc.collect()


def test_a_consumer_that_closes_late_does_not_harm_the_next_request_of_its_id() -> None:
    """Its loop was closed and its request given up long ago."""
    gate = Gate()
    gate.is_open.set()
    service = serve(FakeEngine(n_slots=1, n_ctx=1_000_000, before_step=gate))
    loop = asyncio.new_event_loop()
    old = service.stream(request(max_tokens=None))
    loop.run_until_complete(anext(old))
    loop.close()
    until_idle(service)
    gate.is_open.clear()
    gate.entered.clear()
    answer: list[Event] = []
    new = threading.Thread(target=lambda: answer.extend(service.stream_blocking(request(), timeout_s=PATIENCE_S)))
    new.start()
    assert gate.entered.wait(PATIENCE_S)
    asyncio.run(old.aclose())
    gate.is_open.set()
    new.join()
    assert [type(event) for event in answer] == [TextDelta] * 5 + [Finished]
    service.close()


def test_an_id_is_not_free_before_its_consumer_has_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes the id in between would be the one that is cancelled."""
    service = serve()
    cancel = SchedulerThread.cancel
    answers: list[list[Event]] = []

    def reuse_then_cancel(thread: SchedulerThread, request_id: str) -> bool:
        monkeypatch.undo()
        with pytest.raises(BadRequest, match="in use"):
            answers.append(list(service.stream_blocking(request())))
        return cancel(thread, request_id)

    stream = service.stream_blocking(request())
    next(stream)
    monkeypatch.setattr(SchedulerThread, "cancel", reuse_then_cancel)
    assert isinstance(list(stream)[-1], Finished)
    assert SchedulerThread.cancel is cancel, "the consumer left without a cancel"
    assert answers == []
    service.close()


def test_a_request_cancelled_by_another_ends_with_cancelled() -> None:
    """S53: its consumer hears of it."""
    gate = Gate()
    service = serve(FakeEngine(n_slots=1, before_step=gate))
    answers: dict[str, list[Event]] = {}

    def consume(name: str) -> None:
        answers[name] = list(service.stream_blocking(request(name)))

    threads = [threading.Thread(target=consume, args=("running",))]
    threads[0].start()
    assert gate.entered.wait(PATIENCE_S)
    threads.append(threading.Thread(target=consume, args=("queued",)))
    threads[1].start()
    while not service.cancel("queued"):
        pass
    assert service.cancel("running")
    for thread in threads:
        thread.join()
    assert all(isinstance(error_of(events), Cancelled) for events in answers.values())
    assert not service.cancel("running")
    service.close()


# Time limits.


def test_a_task_that_runs_out_of_time_gets_an_error_and_its_slot_is_free() -> None:
    """K7, K38, K39: while its step still runs."""
    gate = Gate()
    service = serve(FakeEngine(n_slots=1, before_step=gate))
    error = error_of(asyncio.run(collect(service.stream(request(), timeout_s=0.01))))
    assert isinstance(error, DeadlineExceeded)
    assert "0.01 s" in str(error)
    gate.is_open.set()
    until_idle(service)
    assert service.stats().requests_cancelled == 1
    service.close()


def test_a_thread_that_runs_out_of_time_gets_an_error_and_its_slot_is_free() -> None:
    """K7."""
    gate = Gate()
    service = serve(FakeEngine(n_slots=1, before_step=gate))
    assert isinstance(error_of(list(service.stream_blocking(request(), timeout_s=0.01))), DeadlineExceeded)
    gate.is_open.set()
    until_idle(service)
    assert service.stats().requests_cancelled == 1
    service.close()


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_request_is_cancelled_before_its_consumer_hears_that_its_time_is_over(kind: str) -> None:
    """K7, S54: the consumer keeps the iterator and never takes another step."""
    gate = Gate()
    service = serve(FakeEngine(n_slots=1, before_step=gate))

    async def first_event() -> Event:
        stream = service.stream(request("kept"), timeout_s=0.01)
        event = await anext(stream)
        await asyncio.to_thread(finish)
        await stream.aclose()
        return event

    def finish() -> None:
        gate.is_open.set()
        until_idle(service)
        assert service.stats().requests_cancelled == 1

    if kind == "async":
        event = asyncio.run(first_event())
    else:
        stream = service.stream_blocking(request("kept"), timeout_s=0.01)
        event = next(stream)
        finish()
    assert isinstance(error_of([event]), DeadlineExceeded)
    service.close()


def test_an_endless_request_ends_at_its_time_limit() -> None:
    """K7: also when there is always a next event to take."""
    service = serve(FakeEngine(n_ctx=1_000_000))
    in_thread = service.stream_blocking(request("a", None), timeout_s=0.05)
    assert isinstance(error_of(list(in_thread)), DeadlineExceeded)
    in_task = service.stream(request("b", None), timeout_s=0.05)
    assert isinstance(error_of(asyncio.run(collect(in_task))), DeadlineExceeded)
    service.close()


def test_a_slow_reader_holds_no_slot_after_its_time_limit() -> None:
    """K7: the request is cancelled though there are events left to read; the reader gets them, then the error."""
    clock = SetClock()
    service = Service(FakeEngine(n_slots=1, n_ctx=1_000_000), None, SchedulerConfig(), "fake", clock=clock)
    stream = service.stream_blocking(request(max_tokens=None), timeout_s=5)
    events = [next(stream)]
    clock.now_s += 6
    events.append(next(stream))
    until_idle(service)
    assert service.stats().requests_cancelled == 1
    assert isinstance(error_of([*events, *stream]), DeadlineExceeded)
    service.close()


async def let_time_pass(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move the clock of the running loop on, so that its timers are due."""
    loop = asyncio.get_running_loop()
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + seconds)
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_slow_task_holds_no_slot_after_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """K7: as a slow thread, also when it never comes back to read."""
    service = serve(FakeEngine(n_slots=1, n_ctx=1_000_000))

    async def check() -> None:
        stream = service.stream(request(max_tokens=None), timeout_s=100)
        events = [await anext(stream)]
        await let_time_pass(monkeypatch, 200)
        await asyncio.to_thread(until_idle, service)
        assert service.stats().requests_cancelled == 1
        assert isinstance(error_of([*events, *await collect(stream)]), DeadlineExceeded)

    asyncio.run(check())
    service.close()


def test_a_slow_task_still_gets_what_was_done_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    service = serve(FakeEngine(n_slots=1))

    async def check() -> None:
        stream = service.stream(request(), timeout_s=100)
        first = await anext(stream)
        await asyncio.to_thread(until_idle, service)
        await let_time_pass(monkeypatch, 200)
        assert [type(event) for event in (first, *await collect(stream))] == [TextDelta] * 5 + [Finished]

    asyncio.run(check())
    service.close()


def test_a_slow_reader_still_gets_what_was_done_in_time() -> None:
    clock = SetClock()
    service = Service(FakeEngine(n_slots=1), None, SchedulerConfig(), "fake", clock=clock)
    stream = service.stream_blocking(request(), timeout_s=5)
    first = next(stream)
    until_idle(service)
    clock.now_s += 6
    assert [type(event) for event in (first, *stream)] == [TextDelta] * 5 + [Finished]
    service.close()


def test_a_request_that_waits_in_the_queue_runs_out_of_time_too() -> None:
    """K42."""
    gate = Gate()
    service = serve(FakeEngine(n_slots=1, before_step=gate))
    running = service.stream_blocking(request("running"))
    thread = threading.Thread(target=lambda: list(running))
    thread.start()
    assert gate.entered.wait(PATIENCE_S)
    assert isinstance(error_of(list(service.stream_blocking(request("queued"), timeout_s=0.01))), DeadlineExceeded)
    gate.is_open.set()
    thread.join()
    service.close()


def test_time_enough_changes_nothing(service: Service) -> None:
    assert isinstance(asyncio.run(collect(service.stream(request(), timeout_s=PATIENCE_S)))[-1], Finished)
    assert isinstance(list(service.stream_blocking(request(), timeout_s=PATIENCE_S))[-1], Finished)


@pytest.mark.parametrize(
    "timeout_s",
    [0.0, -1.0, float("nan"), float("inf"), "5", True, 1e10, 1e300, 10**400, 10**5000],
    ids=range(10),
)
def test_a_time_limit_is_a_number_above_zero_that_timers_can_wait(service: Service, timeout_s: float) -> None:
    with pytest.raises(BadRequest, match="timeout_s"):
        next(service.stream_blocking(request(), timeout_s=timeout_s))
    with pytest.raises(BadRequest, match="timeout_s"):
        asyncio.run(collect(service.stream(request(), timeout_s=timeout_s)))


# Closing.


def test_closing_fails_what_runs_and_refuses_more() -> None:
    """K15: promptly, in the middle of a step."""
    gate = Gate()
    engine = FakeEngine(before_step=gate)
    service = serve(engine)

    async def check() -> list[Event]:
        running = asyncio.ensure_future(collect(service.stream(request())))
        await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
        await asyncio.to_thread(service.close)
        return await running

    assert isinstance(error_of(asyncio.run(check())), EngineDown)
    assert engine.is_shut_down
    assert service.failure is not None
    service.close()
    with pytest.raises(EngineDown):
        next(service.stream_blocking(request()))


def test_a_service_that_never_served_closes() -> None:
    engine = FakeEngine()
    service = serve(engine)
    service.close()
    service.close()
    assert engine.is_shut_down


def test_a_closed_service_frees_its_engine_without_a_garbage_collection() -> None:
    """The weights of one model must go before the next comes."""
    engine = FakeEngine()
    gone = weakref.ref(engine)
    service = serve(engine)
    list(service.stream_blocking(request()))
    gc.collect()
    gc.disable()
    try:
        service.close()
        del engine, service
        assert gone() is None
    finally:
        gc.enable()


def test_a_forgotten_service_is_closed_when_it_is_collected() -> None:
    engine = FakeEngine()
    service = serve(engine)
    list(service.stream_blocking(request()))
    gone = weakref.ref(service)
    del service
    gc.collect()
    assert gone() is None
    assert engine.is_shut_down


def test_a_program_that_forgets_to_close_ends() -> None:
    """In the middle of an endless request too."""
    program = """
from llamaserve.config import SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.request import GenerationRequest
from llamaserve.service import Service

class Engine(FakeEngine):
    def shutdown(self):
        super().shutdown()
        print("shut down")

service = Service(Engine(n_ctx=10_000_000), None, SchedulerConfig(), "fake")
stream = service.stream_blocking(GenerationRequest("r", (1,)))
next(stream)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "shut down\n", "")


def test_a_service_says_what_it_serves(service: Service) -> None:
    assert service.model_name == "fake"
    assert service.info.architecture == "fake"
    assert service.vocab.n_tokens == service.info.n_vocab
    assert service.template is None
    assert service.failure is None
    assert service.stats().n_slots == service.info.n_slots
