"""A full KV cache: who gives way, what is kept of it, and how it comes back. Nobody loses a text that fits alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.cache.prompt import Prompt, token_array
from llamaserve.config import SchedulerConfig
from llamaserve.engine.fake import FakeEngine, FakeSuspended
from llamaserve.engine.port import RowError, SuspendedSequence
from llamaserve.errors import Cancelled, ContextFull, EngineDown, EngineError
from llamaserve.request import GenerationRequest, SamplingParams, Timings
from llamaserve.scheduler.kv_pressure import MOST_GROWTH, Runner, choose_victim, n_missing
from llamaserve.scheduler.opening import prompt_of
from llamaserve.scheduler.preemption import Preempted, PreemptedRequests
from llamaserve.scheduler.slot import Work
from tests.unit.scheduler.harness import Harness, alone

COPIES = SchedulerConfig(preempt_ram=1024)
COMPUTES_AGAIN = SchedulerConfig(preempt_ram=0)
BOTH_WAYS = pytest.mark.parametrize("config", [COPIES, COMPUTES_AGAIN], ids=["copies", "computes again"])


# The rules.


def test_the_newest_gives_way_whatever_its_slot() -> None:
    """S13: the oldest goes on to its end, so there is an end."""
    assert choose_victim([Runner(0, 4), Runner(1, 9), Runner(2, 5)]) == 1
    assert choose_victim([Runner(0, 9), Runner(1, 4)]) == 0


def test_one_that_runs_alone_gives_way_to_nobody() -> None:
    """S12."""
    assert choose_victim([Runner(3, 1)]) is None
    assert choose_victim([]) is None


@given(st.permutations(range(6)), st.integers(2, 6))
def test_the_oldest_never_gives_way(orders: list[int], n_running: int) -> None:
    """S13."""
    runners = [Runner(seq_id, order) for seq_id, order in enumerate(orders[:n_running])]
    victim = choose_victim(runners)
    assert victim is not None
    assert victim != min(runners, key=lambda runner: runner.admitted_order).seq_id


@pytest.mark.parametrize(
    ("n_cells", "n_free", "n_ctx", "n_running", "expected"),
    [
        (100, 164, 4096, 1, True),
        (100, 163, 4096, 1, False),
        (100, 196, 4096, 2, True),
        (100, 195, 4096, 2, False),
        (10, 18, 64, 1, True),
        (10, 17, 64, 1, False),
        (10, 10, 8, 1, True),
        (100, 0, 4096, 0, True),
    ],
)
def test_one_comes_back_when_all_have_room_to_grow(
    n_cells: int, n_free: int, n_ctx: int, n_running: int, expected: bool
) -> None:
    """32 cells each, a sixteenth of a small context; where nobody runs there is nothing to wait for."""
    assert MOST_GROWTH == 32
    assert (n_missing(n_cells=n_cells, n_free=n_free, n_ctx=n_ctx, n_running=n_running) <= 0) is expected


def preempted(name: str, order: int, n_bytes: int = 0) -> Preempted:
    """A request that waits."""
    request = GenerationRequest(name, (1,))
    work = Work(request, prompt_of(request), submitted_at=0.0, admitted_at=0.0, admitted_order=order, n_ctx_seq=256)
    return Preempted(work, None, n_bytes)


def test_who_was_admitted_first_comes_back_first() -> None:
    """Whoever gave way first."""
    waiting = PreemptedRequests(0)
    assert waiting.first() is None
    for name, order in (("c", 5), ("a", 1), ("b", 3)):
        waiting.add(preempted(name, order))
    assert (list(waiting), len(waiting)) == (["a", "b", "c"], 3)
    first = waiting.first()
    assert first is not None
    assert first.work.request.request_id == "a"
    assert waiting.pop("a") is first
    assert waiting.pop("a") is None
    assert list(waiting) == ["b", "c"]
    waiting.clear()
    assert (len(waiting), waiting.first()) == (0, None)


def test_copies_share_one_amount_of_memory() -> None:
    waiting = PreemptedRequests(100)
    waiting.add(preempted("a", 1, 60))
    waiting.add(preempted("b", 2))
    assert waiting.n_bytes_left == 40
    waiting.add(preempted("c", 3, 40))
    assert waiting.n_bytes_left == 0
    waiting.pop("a")
    assert waiting.n_bytes_left == 60
    waiting.clear()
    assert waiting.n_bytes_left == 100


# Everybody gets what each gets alone.

LOAD = [(b"a" * 20, 30), (b"b" * 12, 25), (b"c" * 30, 20), (b"d" * 5, 50), (b"e" * 17, 40), (b"f" * 3, 9)]


@BOTH_WAYS
@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("mixed_step", [True, False])
@pytest.mark.parametrize("prefill_chunk", [0, 5])
def test_requests_that_do_not_fit_together_all_get_their_texts(
    config: SchedulerConfig, lookahead: bool, mixed_step: bool, prefill_chunk: int
) -> None:
    """S11, S12, S13: four slots, cells for the largest alone and little more."""
    config = SchedulerConfig(
        preempt_ram=config.preempt_ram, lookahead=lookahead, mixed_step=mixed_step, prefill_chunk=prefill_chunk
    )
    harness = Harness(FakeEngine(n_slots=4, n_ctx=64), config)
    ids = [harness.submit(prompt, max_tokens=max_tokens) for prompt, max_tokens in LOAD]
    harness.run()
    for request_id, (prompt, max_tokens) in zip(ids, LOAD, strict=True):
        end = harness.finished(request_id)
        assert harness.tokens(request_id) == alone(prompt, max_tokens, n_ctx=64)[1]
        assert (end.prompt_tokens, end.completion_tokens) == (len(prompt), max_tokens)
    stats = harness.scheduler.stats()
    assert stats.preemptions > 0
    assert (stats.recomputed_tokens > 0) == (config.preempt_ram == 0)
    assert (stats.requests_done, stats.requests_failed, stats.used_cells) == (len(LOAD), 0, 0)
    assert stats.generated_tokens == sum(max_tokens for _, max_tokens in LOAD)


@BOTH_WAYS
def test_the_oldest_request_never_waits_for_another(config: SchedulerConfig) -> None:
    """S13: it gets a token in every tick but those in which it finds no cell; then the newest has gone."""
    harness = Harness(FakeEngine(n_slots=4, n_ctx=64), config)
    ids = [harness.submit(prompt, max_tokens=max_tokens) for prompt, max_tokens in LOAD[:4]]
    while not harness.terminals(ids[0]):
        n_tokens = len(harness.tokens(ids[0]))
        n_preemptions = harness.scheduler.stats().preemptions
        harness.tick()
        gave_way = harness.scheduler.stats().preemptions - n_preemptions
        assert len(harness.tokens(ids[0])) + gave_way > n_tokens
        assert ids[0] not in harness.scheduler._admitter.preempted
    assert harness.scheduler.stats().preemptions > 0


@BOTH_WAYS
def test_a_stop_string_may_begin_before_and_end_after(config: SchedulerConfig) -> None:
    """K151: text held back for it waits with its request and is given out by neither way of coming back."""
    text, _ = alone(b"b", 12)
    stop = text[3:6]
    harness = Harness(config=config)
    harness.submit(b"a", max_tokens=30)
    stops = harness.submit(b"b", max_tokens=12, stop=(stop,))
    harness.tick(4)  # its first character is held back
    harness.engine.fail_row(0, RowError.CONTEXT_FULL)
    harness.tick()
    assert harness.scheduler.stats().preemptions == 1
    harness.run()
    assert (harness.text(stops), harness.finished(stops).stop_sequence) == (text[:3], stop)


# What comes back, and with what.


def test_a_text_with_a_copy_of_its_cells_goes_on_at_once() -> None:
    """S11: nothing of it is computed again."""
    harness = Harness(config=COPIES)
    older = harness.submit(b"older", max_tokens=20)
    newer = harness.submit(b"newer", max_tokens=20)
    harness.tick(4)
    harness.engine.fail_row(0, RowError.CONTEXT_FULL)
    harness.tick()
    stats = harness.scheduler.stats()
    assert (stats.preempted_requests, stats.active_slots, stats.used_cells) == (1, 1, len(b"older") + 3)
    n_tokens = len(harness.tokens(newer))
    harness.tick()
    assert harness.scheduler.stats().preempted_requests == 0
    assert len(harness.tokens(newer)) == n_tokens + 1
    harness.run()
    stats = harness.scheduler.stats()
    assert (stats.preemptions, stats.recomputed_tokens, stats.prompt_tokens) == (1, 0, 10)
    assert [harness.tokens(older), harness.tokens(newer)] == [alone(b"older", 20)[1], alone(b"newer", 20)[1]]


def test_a_text_without_a_copy_computes_prompt_and_text_again() -> None:
    """S11: in pieces like a prompt, the token drawn last excepted, and drawing nothing; counted by itself."""
    harness = Harness(config=SchedulerConfig(preempt_ram=0, prefill_chunk=4))
    older = harness.submit(b"old", max_tokens=30)
    newer = harness.submit(b"newer", max_tokens=20)
    harness.tick(6)
    harness.engine.fail_row(0, RowError.CONTEXT_FULL)
    harness.tick()
    n_computed = len(b"newer") + len(harness.tokens(newer)) - 1
    drawn = harness.tokens(newer)
    n_plans = len(harness.engine.plans)
    harness.tick(4)
    pieces = [piece for plan in harness.engine.plans[n_plans:] for piece in plan.pieces]
    fed = [token for piece in pieces for token in piece.tokens]
    assert fed == [*b"newer", *drawn[:-1]][:n_computed]
    assert [len(piece.tokens) for piece in pieces] == [4, 4, n_computed - 8]
    assert not any(piece.is_last for piece in pieces)
    harness.run()
    stats = harness.scheduler.stats()
    assert (stats.recomputed_tokens, stats.prompt_tokens) == (n_computed, len(b"old") + len(b"newer"))
    assert [harness.tokens(older), harness.tokens(newer)] == [alone(b"old", 30)[1], alone(b"newer", 20)[1]]


def test_a_text_may_have_to_go_again_while_it_is_computed_again() -> None:
    """S11: it begins from its start once more."""
    harness = Harness(config=SchedulerConfig(preempt_ram=0, prefill_chunk=4))
    older = harness.submit(b"old", max_tokens=40)
    newer = harness.submit(b"n" * 10, max_tokens=20)
    harness.tick(8)
    n_tokens = len(harness.tokens(newer))
    for n_preemptions in (1, 2, 3):
        harness.engine.fail_row(0, RowError.CONTEXT_FULL)
        harness.tick()
        assert harness.scheduler.stats().preemptions == n_preemptions
        harness.tick(2)
        assert harness.scheduler.stats().prefilling_slots == 1
    assert n_tokens <= len(harness.tokens(newer)) <= n_tokens + 1  # maybe one in the step that found no room
    harness.run()
    assert [harness.tokens(older), harness.tokens(newer)] == [alone(b"old", 40)[1], alone(b"n" * 10, 20)[1]]


@BOTH_WAYS
def test_a_prompt_in_the_middle_begins_again(config: SchedulerConfig) -> None:
    """S12: nothing was drawn, so nothing is kept; it is opened with its own parameters again."""
    config = SchedulerConfig(preempt_ram=config.preempt_ram, prefill_chunk=4)
    harness = Harness(config=config)
    older = harness.submit(b"old", max_tokens=30)
    harness.tick()
    newer = harness.submit(b"0123456789", max_tokens=5, sampling=SamplingParams(seed=7))
    harness.tick(3)
    assert harness.scheduler.stats().prefilling_slots == 1
    harness.engine.fail_row(1, RowError.CONTEXT_FULL)
    harness.tick()
    assert harness.scheduler.stats().preempted_requests == 1
    harness.run()
    assert [spec.sampling.seed for spec in harness.engine.opened] == [None, 7, 7]
    assert [harness.tokens(older), harness.tokens(newer)] == [alone(b"old", 30)[1], alone(b"0123456789", 5)[1]]
    assert harness.scheduler.stats().recomputed_tokens == 0


class HeavyEngine(FakeEngine):
    """A cell takes 48 KiB of the memory for copies, so that 21 of them fill a mebibyte."""

    def suspend(self, seq_id: int, max_bytes: int) -> FakeSuspended:
        suspended = super().suspend(seq_id, max_bytes // (48 * 2**10))
        suspended.n_bytes *= 48 * 2**10
        return suspended


def test_copies_beyond_the_limit_are_not_made() -> None:
    """Three that give way: the first copy leaves no room for the second, the third is small."""
    harness = Harness(HeavyEngine(n_ctx=53), SchedulerConfig(preempt_ram=1))
    prompts = [b"o" * 24, b"a", b"b" * 8, b"c" * 8]
    ids = [harness.submit(prompt, max_tokens=12) for prompt in prompts]
    harness.tick(5)
    copied = []
    for _ in range(3):
        harness.engine.fail_row(0, RowError.CONTEXT_FULL)
        harness.tick()
        waiting = harness.scheduler._admitter.preempted._by_id
        copied.append([request_id for request_id, entry in waiting.items() if entry.n_bytes])
    assert harness.scheduler.stats().preempted_requests == 3
    assert copied == [[ids[3]], [ids[3]], [ids[1], ids[3]]]
    harness.run()
    assert [harness.tokens(request_id) for request_id in ids] == [alone(prompt, 12)[1] for prompt in prompts]
    assert harness.scheduler.stats().recomputed_tokens > 0


def test_who_came_back_may_give_its_memory_to_others() -> None:
    """The limit is for copies that exist: one that was used is gone."""
    harness = Harness(HeavyEngine(), SchedulerConfig(preempt_ram=1))
    ids = [harness.submit(b"a" * 4, max_tokens=9), harness.submit(b"b" * 4, max_tokens=9)]
    for _ in range(4):
        harness.tick()
        harness.engine.fail_row(0, RowError.CONTEXT_FULL)
        harness.tick()
    harness.run()
    stats = harness.scheduler.stats()
    assert (stats.preemptions, stats.recomputed_tokens) == (4, 0)
    assert [harness.tokens(request_id) for request_id in ids] == [alone(b"a" * 4, 9)[1], alone(b"b" * 4, 9)[1]]


# Waiting.


def crowded(config: SchedulerConfig = COPIES, **sizes: int) -> tuple[Harness, str, str]:
    """An older request that runs with the room of a newer one, which waits for its end."""
    harness = Harness(FakeEngine(n_slots=2, n_ctx=48, **sizes), config)  # type: ignore[arg-type]  # sizes are ints
    older = harness.submit(b"o" * 20, max_tokens=20)
    newer = harness.submit(b"n" * 10, max_tokens=25)
    while not harness.scheduler.stats().preempted_requests:
        harness.tick()
    return harness, older, newer


def test_one_that_waits_for_room_does_not_slow_the_others_down() -> None:
    """K106, L4: they get a token each tick and run ahead, though a slot is idle."""
    harness, older, newer = crowded()
    harness.tick()
    n_tokens, n_ahead = len(harness.tokens(older)), harness.scheduler.stats().lookahead_steps
    harness.tick(5)
    stats = harness.scheduler.stats()
    assert (len(harness.tokens(older)), stats.lookahead_steps) == (n_tokens + 5, n_ahead + 5)
    assert (stats.preempted_requests, stats.idle_slots, stats.queue_depth) == (1, 1, 0)
    harness.run()
    assert harness.tokens(newer) == alone(b"n" * 10, 25)[1]


def test_a_new_request_waits_behind_one_that_made_room() -> None:
    """First come, first served: however small it is."""
    harness, older, newer = crowded()
    small = harness.submit(b"s", max_tokens=1)
    harness.run()
    ends = [name for batch in harness.batches for name, event in batch if event in harness.terminals(name)]
    assert ends == [older, small, newer]
    n_before_small = next(n for n, batch in enumerate(harness.batches) if batch[-1][0] == small)
    came_back = next(n for n, batch in enumerate(harness.batches) if newer in dict(batch) and older not in dict(batch))
    assert came_back <= n_before_small


def test_time_spent_waiting_for_room_is_time_of_the_text() -> None:
    """S1: queue and prompt were before."""
    harness = Harness()
    harness.submit(b"older", max_tokens=20)
    newer = harness.submit(b"newer", max_tokens=3)
    harness.clock.now_s += 1.0
    harness.tick()
    harness.clock.now_s += 2.0
    harness.engine.fail_row(0, RowError.CONTEXT_FULL)
    harness.tick()
    harness.clock.now_s += 4.0
    harness.run()
    assert harness.finished(newer).timings == Timings(queue_s=1.0, prefill_s=0.0, decode_s=6.0)


@BOTH_WAYS
def test_one_that_is_cancelled_while_it_waits_does_not_come_back(config: SchedulerConfig) -> None:
    """S53, S51: one terminal event, at once; its memory is free for others."""
    harness, older, newer = crowded(config)
    n_opened = len(harness.engine.opened)
    assert harness.scheduler.cancel(newer)
    harness.tick()
    assert isinstance(harness.error(newer), Cancelled)
    stats = harness.scheduler.stats()
    assert (stats.preempted_requests, stats.requests_cancelled) == (0, 1)
    assert harness.scheduler._admitter.preempted.n_bytes_left == config.preempt_ram * 2**20
    harness.run()
    assert harness.tokens(older) == alone(b"o" * 20, 20)[1]
    assert len(harness.engine.opened) == n_opened


def test_one_whose_row_found_no_room_may_be_cancelled_in_that_step() -> None:
    """K15: whichever comes first, it ends once and the others go on."""
    harness = Harness()
    older = harness.submit(b"older", max_tokens=10)
    newer = harness.submit(b"newer", max_tokens=10)
    harness.tick(2)
    harness.engine.fail_row(1, RowError.CONTEXT_FULL)
    harness.engine.before_step = lambda plan, flag: harness.scheduler.cancel(newer) and None
    harness.tick()
    harness.engine.before_step = None
    harness.run()
    assert isinstance(harness.error(newer), Cancelled)
    assert harness.tokens(older) == alone(b"older", 10)[1]


@pytest.mark.parametrize("way", ["stop", "fail_all", "lose_context"])
def test_one_that_waits_for_room_is_answered_when_everything_ends(way: str) -> None:
    """K15, E11."""
    harness, older, newer = crowded()
    if way == "stop":
        harness.scheduler.stop(EngineDown("closing"))
    elif way == "fail_all":
        harness.scheduler.fail_all(EngineDown("closing"))
    else:
        harness.engine.lose_context("closing")
    harness.run()
    assert isinstance(harness.error(newer), EngineDown)
    assert "closing" in str(harness.error(newer))
    assert harness.terminals(older)
    assert harness.scheduler.stats().preempted_requests == 0


# What goes wrong.


class FullEngine(FakeEngine):
    """Has no room for cells that come back, so many times."""

    n_refusals = 0

    def resume(self, seq_id: int, suspended: SuspendedSequence) -> bool:
        if self.n_refusals:
            self.n_refusals -= 1
            return False
        return super().resume(seq_id, suspended)


def test_one_that_finds_no_room_after_all_waits_while_others_run() -> None:
    """S12: free cells need not be where they are needed; it tries again."""
    engine = FullEngine()
    harness = Harness(engine)
    older = harness.submit(b"older", max_tokens=20)
    newer = harness.submit(b"newer", max_tokens=20)
    harness.tick(2)
    engine.fail_row(0, RowError.CONTEXT_FULL)
    engine.n_refusals = 3
    harness.tick()
    n_tokens = len(harness.tokens(newer))
    harness.tick(3)
    assert (len(harness.tokens(newer)), harness.scheduler.stats().preempted_requests) == (n_tokens, 1)
    harness.tick()
    assert (len(harness.tokens(newer)), harness.scheduler.stats().preempted_requests) == (n_tokens + 1, 0)
    harness.run()
    assert [harness.tokens(older), harness.tokens(newer)] == [alone(b"older", 20)[1], alone(b"newer", 20)[1]]


def test_one_that_finds_no_room_even_alone_fails_with_its_size() -> None:
    """S12: and who waits behind it is served."""
    engine = FullEngine()
    harness = Harness(engine)
    older = harness.submit(b"older", max_tokens=5)
    newer = harness.submit(b"newer", max_tokens=20)
    harness.tick(2)
    engine.fail_row(0, RowError.CONTEXT_FULL)
    engine.n_refusals = 100
    harness.tick()
    behind = harness.submit(b"behind")
    harness.run()
    assert isinstance(harness.error(newer), ContextFull)
    assert "7 KV cells, even alone" in str(harness.error(newer))
    assert harness.tokens(older) == alone(b"older", 5)[1]
    assert harness.tokens(behind) == alone(b"behind")[1]


def test_one_that_cannot_be_suspended_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    """S66: its room is free all the same."""

    class StiffEngine(FakeEngine):
        def suspend(self, seq_id: int, max_bytes: int) -> FakeSuspended:
            raise EngineError("no copy to be had")

    harness = Harness(StiffEngine())
    older = harness.submit(b"older", max_tokens=10)
    newer = harness.submit(b"newer", max_tokens=10)
    harness.tick(2)
    harness.engine.fail_row(0, RowError.CONTEXT_FULL)
    harness.run()
    assert str(harness.error(newer)) == "no copy to be had"
    assert "sequence 1 could not give its place up" in caplog.text
    assert harness.tokens(older) == alone(b"older", 10)[1]
    assert harness.scheduler.stats().preemptions == 0


def test_a_prompt_that_cannot_be_opened_again_fails_alone() -> None:
    """S66."""

    class PickyEngine(FakeEngine):
        def open(self, spec):  # type: ignore[no-untyped-def]  # as FakeEngine.open
            if len(self.opened) == 2:
                raise EngineError("not twice")
            super().open(spec)

    harness = Harness(PickyEngine(), SchedulerConfig(prefill_chunk=4))
    older = harness.submit(b"old", max_tokens=30)
    harness.tick()
    newer = harness.submit(b"0123456789", max_tokens=5)
    harness.tick(3)
    harness.engine.fail_row(1, RowError.CONTEXT_FULL)
    harness.run()
    assert str(harness.error(newer)) == "not twice"
    assert harness.tokens(older) == alone(b"old", 30)[1]


def test_a_context_lost_while_somebody_waits_for_room_answers_everybody() -> None:
    """E11, K15: found out when it comes back."""

    class LostEngine(FakeEngine):
        def resume(self, seq_id: int, suspended: SuspendedSequence) -> bool:
            raise EngineDown("lost")

    harness = Harness(LostEngine())
    ids: Sequence[str] = [harness.submit(b"older", max_tokens=10), harness.submit(b"newer", max_tokens=10)]
    harness.tick(2)
    harness.engine.fail_row(0, RowError.CONTEXT_FULL)
    harness.run()
    assert [str(harness.error(request_id)) for request_id in ids] == ["lost"] * 2
    assert str(harness.scheduler.failure) == "lost"


def test_no_more_rows_give_way_when_an_end_in_the_same_step_leaves_room() -> None:
    """S13: one finds no cell in the step in which another is done."""
    harness = Harness()
    ends = harness.submit(b"ends", max_tokens=3)
    goes_on = harness.submit(b"goes on", max_tokens=10)
    harness.tick(2)
    harness.engine.fail_row(1, RowError.CONTEXT_FULL)
    harness.tick()
    assert harness.finished(ends)
    assert harness.scheduler.stats().preemptions == 0
    harness.run()
    assert harness.tokens(goes_on) == alone(b"goes on", 10)[1]


# Coming in.


def test_a_new_request_comes_in_when_its_prompt_and_some_growth_fit_beside_the_others() -> None:
    """What running prompts still need counts as taken: 4 cells of growth each, and one too few."""
    for n_prompt, n_running in ((12, 2), (13, 1)):
        harness = Harness(FakeEngine(n_slots=2, n_ctx=64, n_ctx_seq=64), SchedulerConfig(prefill_chunk=4))
        harness.submit(b"a" * 44, max_tokens=5)
        late = harness.submit(b"b" * n_prompt, max_tokens=5)
        harness.tick()
        assert harness.scheduler.stats().active_slots == n_running
        harness.run()
        assert harness.tokens(late) == alone(b"b" * n_prompt, 5)[1]
        assert harness.scheduler.stats().preemptions == 0


def test_a_smaller_request_may_begin_while_a_larger_one_waits_for_room() -> None:
    harness = Harness(FakeEngine(n_slots=2, n_ctx=64, n_ctx_seq=64))
    harness.submit(b"a" * 40, max_tokens=20)
    large, small = harness.submit(b"b" * 40, max_tokens=2), harness.submit(b"c" * 4, max_tokens=2)
    harness.tick(3)
    harness.finished(small)
    assert not harness.events[large]
    harness.run()
    harness.finished(large)


def test_cells_that_a_running_request_shares_are_not_needed_twice() -> None:
    """A long prefix that two have in common: the second comes in although it would not fit alone."""
    harness = Harness(FakeEngine(n_slots=2, n_ctx=64, n_ctx_seq=64))
    harness.submit(b"a" * 40 + b"x", max_tokens=9, cache_prompt=True)
    harness.tick()
    harness.submit(b"a" * 40 + b"y", max_tokens=9, cache_prompt=True)
    harness.tick(2)  # a step was under way
    assert harness.scheduler.stats().active_slots == 2
    stranger = Harness(FakeEngine(n_slots=2, n_ctx=64, n_ctx_seq=64))
    stranger.submit(b"a" * 40 + b"x", max_tokens=9, cache_prompt=True)
    stranger.tick()
    stranger.submit(b"a" * 40 + b"y", max_tokens=9, cache_prompt=True, cache_salt="other")
    stranger.tick(2)
    assert stranger.scheduler.stats().active_slots == 1


def test_slots_with_cells_of_their_own_are_always_filled() -> None:
    harness = Harness(FakeEngine(n_slots=2, n_ctx=64, n_ctx_seq=32))
    for _ in range(2):
        harness.submit(b"a" * 28, max_tokens=4)
    harness.tick()
    assert harness.scheduler.stats().active_slots == 2


# Who may come in.


def test_those_that_run_are_looked_at_once_however_many_wait() -> None:
    class Counting(FakeEngine):
        n_asked = 0

        def used_cells(self) -> int:
            self.n_asked += 1
            return super().used_cells()

    engine = Counting(n_slots=4, n_ctx=400)
    harness = Harness(engine)
    first = harness.submit(b"f" * 200, max_tokens=60)
    harness.tick(2)
    others = [harness.submit(bytes([33 + index]) * 190, max_tokens=2) for index in range(30)]
    harness.tick()
    engine.n_asked = 0
    harness.tick()
    assert harness.scheduler.stats().queue_depth == 30
    assert engine.n_asked <= 6
    harness.run()
    assert all(harness.finished(request_id) for request_id in [first, *others])


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=8),
    st.lists(st.integers(0, 1), min_size=1, max_size=8),
    st.integers(0, 9),
    st.booleans(),
    st.sampled_from(["", "salt"]),
)
def test_a_prompt_shares_what_another_begins_with(
    tokens: list[int], others: list[int], n_tokens: int, is_cached: bool, scope: str
) -> None:
    prompt = Prompt(token_array(tokens))
    other = Prompt(token_array(others), scope=scope, is_cached=is_cached)
    expected = is_cached and not scope and n_tokens < len(tokens) and tokens[:n_tokens] == others[:n_tokens]
    assert prompt.shares(other, n_tokens) is expected
