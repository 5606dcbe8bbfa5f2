"""The scheduler under random submissions, cancels and failures, in random order."""

from __future__ import annotations

import functools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule

from llamaserve.config import SchedulerConfig
from llamaserve.engine.fake import EOS, FakeEngine, letters
from llamaserve.engine.port import RowError
from llamaserve.errors import Cancelled, ContextFull, DecodeFailed, EngineDown, QueueFull
from llamaserve.request import Failed, Finished
from tests.unit.scheduler.harness import Harness

N_CTX = 64

PROMPTS = st.binary(min_size=1, max_size=40).map(tuple)
STOPS = st.lists(st.text("abcdefgh", min_size=1, max_size=2), max_size=2).map(tuple)


def sometimes_ends(history: tuple[int, ...]) -> int:
    """Letters, and an EOS for one history in twenty."""
    return EOS if sum(history) % 20 == 0 else letters(history)


def engine_of(n_slots: int, n_batch: int) -> FakeEngine:
    """An engine whose cells can run out."""
    return FakeEngine(n_slots=n_slots, n_batch=n_batch, n_ctx=N_CTX, continuation=sometimes_ends)


@functools.cache
def alone(prompt: tuple[int, ...], max_tokens: int | None, stop: tuple[str, ...]) -> tuple[str, list[int], Finished]:
    """What the request gives when nothing else runs and nothing fails."""
    harness = Harness(engine_of(1, N_CTX))
    request_id = harness.submit(prompt, max_tokens=max_tokens, stop=stop)
    harness.run()
    return harness.text(request_id), harness.tokens(request_id), harness.finished(request_id)


class SchedulerMachine(RuleBasedStateMachine):
    """Invariants hold after every tick; in the end everybody was answered once, and rightly."""

    requests: Bundle[str] = Bundle("requests")

    @initialize(
        n_slots=st.integers(1, 4),
        n_spare=st.integers(0, 20),
        max_queue=st.integers(0, 3),
        prefill_chunk=st.integers(0, 9),
        mixed_step=st.booleans(),
    )
    def build(self, n_slots: int, n_spare: int, max_queue: int, prefill_chunk: int, mixed_step: bool) -> None:
        config = SchedulerConfig(max_queue=max_queue, prefill_chunk=prefill_chunk, mixed_step=mixed_step)
        self.harness = Harness(engine_of(n_slots, n_slots + n_spare), config)
        self.n_slots = n_slots
        self.max_queue = max_queue
        self.taken: dict[str, tuple[tuple[int, ...], int | None, tuple[str, ...]]] = {}
        self.was_cancelled: set[str] = set()

    @rule(target=requests, prompt=PROMPTS, max_tokens=st.none() | st.integers(1, 12), stop=STOPS)
    def submit(self, prompt: tuple[int, ...], max_tokens: int | None, stop: tuple[str, ...]) -> str:
        try:
            request_id = self.harness.submit(prompt, max_tokens=max_tokens, stop=stop)
        except QueueFull:
            wanted = self.taken.keys() - self.was_cancelled
            n_wanted = sum(not self.harness.terminals(request_id) for request_id in wanted)
            assert n_wanted >= self.n_slots + self.max_queue
            return "refused"
        except EngineDown:
            assert self.harness.scheduler.failure is not None
            return "refused"
        self.taken[request_id] = (prompt, max_tokens, stop)
        return request_id

    @rule(request_id=requests)
    def cancel(self, request_id: str) -> None:
        is_live = request_id in self.taken and not self.harness.terminals(request_id)
        assert self.harness.scheduler.cancel(request_id) == is_live
        if is_live:
            self.was_cancelled.add(request_id)

    @rule(request_id=requests)
    def cancel_while_the_step_runs(self, request_id: str) -> None:
        self.harness.engine.before_step = lambda plan, flag: self.cancel(request_id)
        self.harness.tick()
        self.harness.engine.before_step = None

    @rule(seq_id=st.integers(0, 3), error=st.sampled_from([RowError.DECODE, RowError.CONTEXT_FULL]))
    def fail_a_row(self, seq_id: int, error: RowError) -> None:
        self.harness.engine.fail_row(seq_id, error)

    @rule(times=st.integers(1, 3))
    def fail_a_step(self, times: int) -> None:
        self.harness.engine.fail_step(RuntimeError("scripted"), times=times)

    @rule(times=st.integers(1, 9))
    def tick(self, times: int) -> None:
        self.harness.tick(times)

    def teardown(self) -> None:
        """K15, K50, E9, E20."""
        if not hasattr(self, "harness"):
            return
        self.harness.run()
        stats = self.harness.scheduler.stats()
        assert (stats.active_slots, stats.queue_depth, stats.used_cells) == (0, 0, 0)
        assert stats.requests_done + stats.requests_cancelled + stats.requests_failed == len(self.taken)
        for request_id, request in self.taken.items():
            self.check_answer(request_id, *alone(*request))

    def check_answer(self, request_id: str, text: str, tokens: list[int], end: Finished) -> None:
        """One terminal event; the whole text, or on an error a beginning of it."""
        events = self.harness.events[request_id]
        assert len(self.harness.terminals(request_id)) == 1
        last = events[-1]
        if isinstance(last, Finished):
            assert self.harness.text(request_id) == text
            assert self.harness.tokens(request_id) == tokens
            assert (last.reason, last.stop_sequence) == (end.reason, end.stop_sequence)
        else:
            assert isinstance(last, Failed)
            assert isinstance(last.error, Cancelled | ContextFull | DecodeFailed | EngineDown)
            assert isinstance(last.error, Cancelled) <= (request_id in self.was_cancelled)
            assert text.startswith(self.harness.text(request_id))
            n_tokens = len(self.harness.tokens(request_id))
            assert self.harness.tokens(request_id) == tokens[:n_tokens]


TestSchedulerUnderRandomOrders = SchedulerMachine.TestCase
TestSchedulerUnderRandomOrders.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
