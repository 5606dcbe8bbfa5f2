"""The scheduler under random submissions, cancels and failures, in random order."""

from __future__ import annotations

import functools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, precondition, rule

from llamaserve.config import CacheConfig, SchedulerConfig
from llamaserve.engine.fake import EOS, FakeEngine, letters
from llamaserve.engine.port import RowError
from llamaserve.errors import (
    Cancelled,
    ContextFull,
    DeadlineExceeded,
    DecodeFailed,
    EngineDown,
    QueueFull,
    QueueTokensFull,
    RewindFailed,
)
from llamaserve.request import Failed, Finished, Lane
from tests.unit.scheduler.harness import Harness

N_CTX_SEQ = 48
"""Most tokens of one request; the context has room for one such, for a little more, or for all."""

FAILURES = ("", "row", "room", "abort", "step", "rewind", "rewind room", "row abort room")
"""What may fail in one run: not everything in each, or there would be no text to preempt or to run ahead of."""

FRESH_PROMPTS = st.binary(min_size=1, max_size=40).map(tuple)
KNOWN_PROMPTS = st.builds(
    lambda start, n_start, end: tuple(start[:n_start] + end),
    st.sampled_from([bytes(range(1, 41)), bytes(range(1, 20)) + bytes(range(100, 121))]),
    st.integers(0, 40),
    st.binary(max_size=4),
).filter(bool)
"""Prompts that have beginnings in common."""

PROMPTS = FRESH_PROMPTS | KNOWN_PROMPTS.filter(lambda prompt: len(prompt) <= 40)
MEMORIES = {"shared": (True, True), "slots": (False, True), "recurrent": (False, False)}
"""Whether cells can be shared, and trimmed."""
STOPS = st.lists(st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=2), max_size=4).map(tuple)


def sometimes_ends(history: tuple[int, ...]) -> int:
    """Letters, and an EOS for one history in twenty."""
    return EOS if sum(history) % 20 == 0 else letters(history)


def engine_of(n_slots: int, n_batch: int, n_ctx: int, *, can_rewind: bool = True, memory: str = "shared") -> FakeEngine:
    """An engine whose cells can run out."""
    return FakeEngine(
        n_slots=n_slots,
        n_batch=n_batch,
        n_ctx=n_ctx,
        n_ctx_seq=N_CTX_SEQ,
        continuation=sometimes_ends,
        can_rewind=can_rewind,
        can_share=MEMORIES[memory][0],
        can_trim=MEMORIES[memory][1],
        bytes_per_cell=8192,  # 128 cells in the smallest RAM tier
    )


@functools.cache
def alone(prompt: tuple[int, ...], max_tokens: int | None, stop: tuple[str, ...]) -> tuple[str, list[int], Finished]:
    """What the request gives when nothing else runs, nothing fails and nothing runs ahead."""
    harness = Harness(engine_of(1, N_CTX_SEQ, N_CTX_SEQ), SchedulerConfig(lookahead=False))
    request_id = harness.submit(prompt, max_tokens=max_tokens, stop=stop)
    harness.run()
    return harness.text(request_id), harness.tokens(request_id), harness.finished(request_id)


class SchedulerMachine(RuleBasedStateMachine):
    """Invariants hold after every tick; in the end everybody was answered once, and rightly."""

    requests: Bundle[str] = Bundle("requests")
    failing = ""

    @initialize(
        n_slots=st.integers(1, 4),
        n_spare=st.integers(0, 20),
        n_ctx=st.sampled_from([N_CTX_SEQ, 64, 4 * N_CTX_SEQ]),
        max_queue=st.integers(0, 3),
        max_queue_tokens=st.sampled_from([0, 0, 60]),
        queue_aging=st.booleans(),
        prefill_chunk=st.integers(0, 9),
        mixed_step=st.booleans(),
        target_itl=st.sampled_from([None, 0, 1]),
        max_batch_prefill=st.sampled_from([1, 4]),
        max_batch_prefill_tokens=st.sampled_from([None, 0, 30]),
        prefill_grant_interval=st.sampled_from([None, 0, 2]),
        lookahead=st.sampled_from([True, True, False]),
        preempt_ram=st.sampled_from([0, 1024]),
        failing=st.sampled_from(FAILURES),
        memory=st.sampled_from(["shared", "shared", *MEMORIES]),
        cache_ram=st.integers(0, 1),
    )
    def build(
        self,
        *,
        n_slots: int,
        n_spare: int,
        n_ctx: int,
        max_queue: int,
        max_queue_tokens: int,
        queue_aging: bool,
        prefill_chunk: int,
        mixed_step: bool,
        target_itl: float | None,
        max_batch_prefill: int,
        max_batch_prefill_tokens: int | None,
        prefill_grant_interval: int | None,
        lookahead: bool,
        preempt_ram: int,
        failing: str,
        memory: str,
        cache_ram: int,
    ) -> None:
        can_rewind = memory != "recurrent"
        self.failing = failing
        self.config = SchedulerConfig(
            max_queue=max_queue,
            max_queue_tokens=max_queue_tokens,
            queue_aging=queue_aging,
            prefill_chunk=prefill_chunk,
            mixed_step=mixed_step,
            target_itl=target_itl,
            max_batch_prefill=max_batch_prefill,
            max_batch_prefill_tokens=max_batch_prefill_tokens,
            prefill_grant_interval=prefill_grant_interval,
            lookahead=lookahead,
            preempt_ram=preempt_ram,
        )
        engine = engine_of(n_slots, n_slots + n_spare, n_ctx, can_rewind=can_rewind, memory=memory)
        self.harness = Harness(engine, self.config, CacheConfig(cache_ram=cache_ram, cache_cells=20))
        self.n_slots = n_slots
        self.taken: dict[str, tuple[tuple[int, ...], int | None, tuple[str, ...]]] = {}
        self.was_cancelled: set[str] = set()
        self.has_deadline: set[str] = set()
        self.may_happen: set[type[Exception]] = {Cancelled, DeadlineExceeded}

    @rule(
        target=requests,
        prompt=PROMPTS,
        max_tokens=st.none() | st.integers(1, 20),
        stop=STOPS,
        cache_prompt=st.sampled_from([True, True, False]),
        cache_salt=st.sampled_from(["", "", "salt"]),
        session=st.sampled_from([None, None, "a", "b"]),
        priority=st.sampled_from(Lane),
        owner=st.sampled_from(["", "a", "b"]),
        timeout_s=st.sampled_from([None, None, 1.0, 3.0]),
    )
    def submit(
        self,
        prompt: tuple[int, ...],
        max_tokens: int | None,
        stop: tuple[str, ...],
        *,
        cache_prompt: bool = True,
        cache_salt: str = "",
        session: str | None = None,
        priority: Lane = Lane.NORMAL,
        owner: str = "",
        timeout_s: float | None = None,
    ) -> str:
        try:
            request_id = self.harness.submit(
                prompt,
                max_tokens=max_tokens,
                stop=stop,
                cache_prompt=cache_prompt,
                cache_salt=cache_salt,
                session=session,
                priority=priority,
                owner=owner,
                timeout_s=timeout_s,
            )
        except QueueTokensFull:
            assert self.config.max_queue_tokens
            return "refused"
        except QueueFull:
            wanted = self.taken.keys() - self.was_cancelled
            n_wanted = sum(not self.harness.terminals(request_id) for request_id in wanted)
            assert n_wanted >= self.n_slots + self.config.max_queue
            return "refused"
        except EngineDown:
            assert self.harness.scheduler.failure is not None
            return "refused"
        self.taken[request_id] = (prompt, max_tokens, stop)
        if timeout_s is not None:
            self.has_deadline.add(request_id)
        return request_id

    @rule(n_requests=st.integers(2, 4), n_prompt=st.integers(1, 30), max_tokens=st.integers(10, 20))
    def submit_a_crowd(self, n_requests: int, n_prompt: int, max_tokens: int) -> None:
        """Texts of some length at the same time: what makes room scarce and steps steady."""
        for n in range(n_requests):
            self.submit(prompt=(n + 1,) * n_prompt, max_tokens=max_tokens, stop=("e", "zz")[n % 2 :])
        self.harness.tick(5)

    @rule(request_id=requests)
    def cancel(self, request_id: str) -> None:
        is_live = request_id in self.taken and not self.harness.terminals(request_id)
        assert self.harness.scheduler.cancel(request_id) == is_live
        if is_live:
            self.was_cancelled.add(request_id)

    @rule(request_id=requests)
    def cancel_while_the_step_runs(self, request_id: str) -> None:
        """What the engine raises fails a step, so what is expected of the cancel is checked after it."""
        was_live: list[bool] = []
        is_live = request_id in self.taken and not self.harness.terminals(request_id)
        self.harness.engine.before_step = lambda plan, flag: was_live.append(self.harness.scheduler.cancel(request_id))
        self.harness.tick()
        self.harness.engine.before_step = None
        if any(was_live):
            assert is_live
            self.was_cancelled.add(request_id)
        elif was_live and is_live:
            assert self.harness.terminals(request_id), "it ended before the step"

    @rule(method=st.sampled_from(["fail_adopts", "fail_saves", "fail_restores"]), count=st.integers(1, 2))
    def fail_to_copy(self, method: str, count: int) -> None:
        """Costs a hit, and nothing that anybody sees."""
        getattr(self.harness.engine, method)(count)

    @precondition(lambda self: "row" in self.failing.split())
    @rule(seq_id=st.integers(0, 3))
    def fail_a_row(self, seq_id: int) -> None:
        self.may_happen |= {DecodeFailed, EngineDown}
        self.harness.engine.fail_row(seq_id, RowError.DECODE)

    @precondition(lambda self: "room" in self.failing.split())
    @rule(seq_id=st.integers(0, 3))
    def leave_a_row_without_room(self, seq_id: int) -> None:
        self.may_happen.add(ContextFull)
        self.harness.engine.fail_row(seq_id, RowError.CONTEXT_FULL)

    @precondition(lambda self: "abort" in self.failing.split())
    @rule(seq_id=st.integers(0, 3))
    def stop_a_row_nobody_asked_to(self, seq_id: int) -> None:
        if not self.harness.engine.can_rewind:
            self.may_happen |= {DecodeFailed, EngineDown}
        self.harness.engine.fail_row(seq_id, RowError.ABORTED)

    @precondition(lambda self: "step" in self.failing.split())
    @rule(times=st.integers(1, 3))
    def fail_a_step(self, times: int) -> None:
        self.may_happen |= {DecodeFailed, EngineDown}
        self.harness.engine.fail_step(RuntimeError("scripted"), times=times)

    @precondition(lambda self: "rewind" in self.failing.split())
    @rule(count=st.integers(1, 3))
    def fail_to_go_back(self, count: int) -> None:
        self.may_happen |= {RewindFailed, EngineDown}
        self.harness.engine.fail_rewinds(count)

    @rule(times=st.integers(1, 9))
    def tick(self, times: int) -> None:
        self.harness.tick(times)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.harness.clock.now_s += seconds

    def teardown(self) -> None:
        """K15, K50, E9, E20, L22: and the numbers agree with what happened."""
        if not hasattr(self, "harness"):
            return
        self.harness.run()
        stats = self.harness.scheduler.stats()
        assert (stats.active_slots, stats.queue_depth, stats.preempted_requests) == (0, 0, 0)
        assert stats.used_cells == self.harness.engine.used_cells() <= self.harness.engine.info.n_ctx
        assert stats.requests_done + stats.requests_cancelled + stats.requests_failed == len(self.taken)
        for request_id, request in self.taken.items():
            self.check_answer(request_id, *alone(*request))
        self.check_lookahead()
        assert self.config.preempt_ram == 0 or stats.recomputed_tokens == 0
        assert stats.preemptions == 0 or self.n_slots > 1

    def check_lookahead(self) -> None:
        """L17, K144."""
        stats, engine = self.harness.scheduler.stats(), self.harness.engine
        assert stats.lookahead_steps <= min(stats.decode_steps, sum(engine.ran_ahead))
        if not (self.config.lookahead and engine.can_rewind):
            assert not any(engine.ran_ahead)
            assert not any(stats.lookahead_discards.values())

    def check_answer(self, request_id: str, text: str, tokens: list[int], end: Finished) -> None:
        """One terminal event; the whole text, or on an error, of which there was a cause, a beginning of it."""
        events = self.harness.events[request_id]
        assert len(self.harness.terminals(request_id)) == 1
        last = events[-1]
        if isinstance(last, Finished):
            assert self.harness.text(request_id) == text
            assert self.harness.tokens(request_id) == tokens
            assert (last.reason, last.stop_sequence) == (end.reason, end.stop_sequence)
            assert (last.prompt_tokens, last.completion_tokens) == (end.prompt_tokens, end.completion_tokens)
        else:
            assert isinstance(last, Failed)
            assert type(last.error) in self.may_happen
            assert isinstance(last.error, Cancelled) <= (request_id in self.was_cancelled)
            assert isinstance(last.error, DeadlineExceeded) <= (request_id in self.has_deadline)
            assert text.startswith(self.harness.text(request_id))
            n_tokens = len(self.harness.tokens(request_id))
            assert self.harness.tokens(request_id) == tokens[:n_tokens]


TestSchedulerUnderRandomOrders = SchedulerMachine.TestCase
TestSchedulerUnderRandomOrders.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
