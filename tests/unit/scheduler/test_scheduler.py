"""The scheduler, tick by tick, on the fake engine."""

from __future__ import annotations

import re

import pytest

from llamaserve.cache.prefix_memory import PrefixCounters, PrefixGauges
from llamaserve.config import SchedulerConfig
from llamaserve.engine.fake import EOS, FakeEngine, FakeFlag, FakeRow, scripted
from llamaserve.engine.port import RowError, StepPlan, StepReport, StepTime, Ticket
from llamaserve.errors import (
    BadRequest,
    BadToken,
    Cancelled,
    ContextFull,
    DeadlineExceeded,
    DecodeFailed,
    EmptyPrompt,
    EngineDown,
    PromptTooLong,
    QueueFull,
    QueueTokensFull,
)
from llamaserve.request import Finished, FinishReason, Lane, Progress, SamplingParams, TextDelta, Timings
from llamaserve.scheduler.scheduler import MAX_CONSECUTIVE_FAILED_STEPS
from llamaserve.scheduler.stats import Discard, SchedulerStats
from tests.unit.scheduler.harness import Harness, alone

pytestmark = pytest.mark.filterwarnings("error")


def says(reply: str | bytes, **sizes: int) -> FakeEngine:
    """An engine that answers the prompt "p" with a reply and EOS."""
    return FakeEngine(continuation=scripted({"p": reply}), **sizes)  # type: ignore[arg-type]  # every size is an int


# Finish order and text.


def test_eos_ends_the_text_and_is_no_part_of_it() -> None:
    """E7: EOS is not pushed."""
    harness = Harness(says("abc"))
    request_id = harness.submit(b"p", max_tokens=100)
    harness.run()
    end = harness.finished(request_id)
    assert (harness.text(request_id), harness.tokens(request_id)) == ("abc", list(b"abc"))
    assert (end.reason, end.prompt_tokens, end.completion_tokens) == (FinishReason.EOS, 1, 3)


def test_an_eos_at_once_gives_an_empty_text() -> None:
    harness = Harness(says(""))
    request_id = harness.submit(b"p")
    harness.run()
    assert harness.events[request_id] == [harness.finished(request_id)]
    assert harness.finished(request_id).completion_tokens == 0


@pytest.mark.parametrize("max_tokens", [1, 4, 16])
def test_max_tokens_is_exact(max_tokens: int) -> None:
    """K48."""
    harness = Harness()
    request_id = harness.submit(max_tokens=max_tokens)
    harness.run()
    assert len(harness.tokens(request_id)) == max_tokens
    assert harness.finished(request_id).reason is FinishReason.LENGTH


def test_eos_in_the_place_after_max_tokens_is_a_length() -> None:
    """E7: the bound fires with the token that reaches it."""
    harness = Harness(says("abc"))
    request_id = harness.submit(b"p", max_tokens=3)
    harness.run()
    assert harness.finished(request_id).reason is FinishReason.LENGTH


def test_a_stop_string_wins_over_max_tokens_and_is_cut_off() -> None:
    """E7, K151: matched across tokens, with the token that also reaches max_tokens."""
    harness = Harness(says("hello END more"))
    request_id = harness.submit(b"p", max_tokens=9, stop=("END",))
    harness.run()
    end = harness.finished(request_id)
    assert (harness.text(request_id), end.reason, end.stop_sequence) == ("hello ", FinishReason.STOP_SEQUENCE, "END")
    assert end.completion_tokens == 9


def test_no_part_of_a_stop_string_is_given_out_early() -> None:
    """K151: text that may become a stop is held back, and given out when it does not."""
    harness = Harness(says("aEN?"))
    request_id = harness.submit(b"p", max_tokens=100, stop=("END",))
    harness.tick(3)
    assert harness.text(request_id) == "a"
    harness.run()
    assert harness.text(request_id) == "aEN?"


def test_held_back_text_is_given_out_at_the_end() -> None:
    """K151: before the end, on EOS and on max_tokens."""
    for max_tokens, reason in ((100, FinishReason.EOS), (3, FinishReason.LENGTH)):
        harness = Harness(says("aEN"))
        request_id = harness.submit(b"p", max_tokens=max_tokens, stop=("END",))
        harness.run()
        assert (harness.text(request_id), harness.finished(request_id).reason) == ("aEN", reason)
        assert harness.finished(request_id).stop_sequence is None


def test_a_character_is_never_split() -> None:
    """S61: each delta is whole characters; the tokens come one by one all the same."""
    harness = Harness(says("né🙂"))
    request_id = harness.submit(b"p", max_tokens=100)
    harness.run()
    deltas = [event for event in harness.events[request_id] if isinstance(event, TextDelta)]
    assert [delta.text for delta in deltas] == ["n", "", "é", "", "", "", "🙂"]
    assert all(len(delta.tokens) == 1 for delta in deltas)


def test_a_text_that_ends_inside_a_character_is_valid() -> None:
    """K14."""
    harness = Harness(says("ab🙂"))
    request_id = harness.submit(b"p", max_tokens=4)
    harness.run()
    assert harness.text(request_id) == "ab\ufffd"


def test_the_context_bounds_prompt_and_text_together() -> None:
    """E7: ContextExhausted, without an option for it."""
    harness = Harness(FakeEngine(n_ctx=20))
    request_id = harness.submit(b"p" * 6, max_tokens=None)
    harness.run()
    end = harness.finished(request_id)
    assert (end.reason, end.prompt_tokens, end.completion_tokens) == (FinishReason.CONTEXT_EXHAUSTED, 6, 14)
    assert end.reason.openai == "length"


def test_the_longest_prompt_gets_one_token() -> None:
    harness = Harness(FakeEngine(n_ctx=20))
    request_id = harness.submit(b"p" * 19, max_tokens=None)
    harness.run()
    assert harness.finished(request_id).completion_tokens == 1


def test_a_token_is_delivered_in_the_tick_that_drew_it() -> None:
    """S9."""
    harness = Harness()
    request_id = harness.submit()
    for n_ticks in range(1, 5):
        harness.tick()
        assert len(harness.tokens(request_id)) == n_ticks


def test_a_tick_delivers_once() -> None:
    """§3: one hand-off carries all events of a tick."""
    harness = Harness()
    for _ in range(4):
        harness.submit()
    harness.tick(3)
    assert [len(batch) for batch in harness.batches] == [4, 4, 4]


# Steps.


def test_decode_rows_and_prompt_pieces_share_a_step() -> None:
    """T14: decode rows first."""
    harness = Harness()
    harness.submit(b"one")
    harness.tick()
    harness.submit(b"two")
    harness.tick(2)  # the first of them was under way already
    plan = harness.engine.plans[-1]
    assert (list(plan.decode), [(piece.seq_id, bytes(piece.tokens)) for piece in plan.pieces]) == ([0], [(1, b"two")])


def test_one_native_call_serves_a_tick() -> None:
    """S5, S7: whatever the number of slots."""
    harness = Harness()
    for _ in range(4):
        harness.submit(max_tokens=10)
    harness.run()
    assert len(harness.engine.plans) == 10 == harness.scheduler.stats().ticks


def test_prompts_are_cut_into_chunks_and_computed_once() -> None:
    """S62: only the last piece draws."""
    harness = Harness(config=SchedulerConfig(prefill_chunk=4))
    request_id = harness.submit(b"0123456789", max_tokens=1)
    harness.run()
    pieces = [piece for plan in harness.engine.plans for piece in plan.pieces]
    assert b"".join(bytes(piece.tokens) for piece in pieces) == b"0123456789"
    assert [(len(piece.tokens), piece.is_last) for piece in pieces] == [(4, False), (4, False), (2, True)]
    assert harness.text(request_id) == alone(b"0123456789", 1)[0]


def test_a_chunk_of_zero_is_as_much_as_a_step_holds() -> None:
    harness = Harness(FakeEngine(n_batch=8), SchedulerConfig(prefill_chunk=0))
    harness.submit(b"0123456789", max_tokens=1)
    harness.run()
    assert [len(plan.pieces[0].tokens) for plan in harness.engine.plans] == [8, 2]


def test_no_step_is_larger_than_the_batch() -> None:
    """S16."""
    harness = Harness(FakeEngine(n_batch=16), SchedulerConfig(prefill_chunk=10))
    for n in (30, 5, 40, 17):
        harness.submit(b"p" * n, max_tokens=5)
    harness.run()
    sizes = [len(plan.decode) + sum(len(piece.tokens) for piece in plan.pieces) for plan in harness.engine.plans]
    assert max(sizes) == 16


def test_a_stream_never_waits_for_more_than_a_chunk_of_prompts() -> None:
    """A running request gets a token each tick, and the pieces beside it stay within one chunk together."""
    harness = Harness(FakeEngine(n_batch=100), SchedulerConfig(prefill_chunk=10))
    stream = harness.submit(max_tokens=100)
    harness.tick()
    for _ in range(3):
        harness.submit(b"p" * 50, max_tokens=1)
    for n_tokens in range(2, 15):
        harness.tick()
        assert len(harness.tokens(stream)) == n_tokens
        assert sum(len(piece.tokens) for piece in harness.engine.plans[-1].pieces) <= 10


def test_a_short_prompt_is_served_after_a_bounded_number_of_ticks() -> None:
    """K9: a long prompt before it and streams beside it delay it, by their chunks and the step that is under way."""
    harness = Harness(FakeEngine(n_ctx=4096, n_batch=100), SchedulerConfig(prefill_chunk=10))
    harness.submit(max_tokens=500)
    harness.tick()
    harness.submit(b"p" * 200, max_tokens=1)
    short = harness.submit(b"short", max_tokens=1)
    harness.tick(22)
    assert harness.terminals(short)


def test_without_mixed_steps_a_step_is_all_decode_rows_or_one_piece() -> None:
    """Parity profile: nothing beside a prompt piece changes its numbers, and both kinds take turns."""
    harness = Harness(config=SchedulerConfig(mixed_step=False, prefill_chunk=4))
    for n in (6, 9, 3, 11, 5):
        harness.submit(b"p" * n, max_tokens=6)
    harness.run()
    kinds = [(bool(plan.decode), len(plan.pieces)) for plan in harness.engine.plans]
    assert set(kinds) == {(True, 0), (False, 1)}
    both_waited = range(2, 8)
    assert len({kinds[n] for n in both_waited}) == 2


def test_without_mixed_steps_a_prompt_is_always_cut_the_same_way() -> None:
    """Parity profile: the pieces depend on the prompt alone."""
    cuts = []
    for n_others in (0, 3):
        harness = Harness(config=SchedulerConfig(mixed_step=False, prefill_chunk=4))
        for _ in range(n_others):
            harness.submit(b"other" * 3, max_tokens=9)
        harness.submit(b"0123456789", max_tokens=2)
        harness.run()
        cuts.append(
            [
                bytes(piece.tokens)
                for plan in harness.engine.plans
                for piece in plan.pieces
                if bytes(piece.tokens) in b"0123456789"
            ]
        )
    assert cuts[0] == cuts[1] == [b"0123", b"4567", b"89"]


@pytest.mark.parametrize("mixed_step", [True, False])
def test_a_batch_of_one_token_a_slot_serves_everybody(mixed_step: bool) -> None:
    """K105: the smallest batch there is; nobody waits for another to end."""
    harness = Harness(FakeEngine(n_slots=5, n_batch=5), SchedulerConfig(max_queue=0, mixed_step=mixed_step))
    ids = [harness.submit(b"prompt %d" % n, max_tokens=7) for n in range(9)]
    harness.run()
    for n, request_id in enumerate(ids):
        assert harness.tokens(request_id) == alone(b"prompt %d" % n, 7)[1]


def test_prompts_are_computed_in_the_order_of_admission_whatever_their_slots() -> None:
    """K9: the slot used longest ago comes first, so the order of slots is another."""
    harness = Harness(FakeEngine(n_slots=3, n_batch=10))
    harness.submit(b"x", max_tokens=1)
    harness.tick()
    for prompt in (b"aaaa", b"bbbb", b"cccc"):
        harness.submit(prompt, max_tokens=1)
    harness.tick()
    pieces = harness.engine.plans[-1].pieces
    assert [(piece.seq_id, bytes(piece.tokens)) for piece in pieces] == [(1, b"aaaa"), (2, b"bbbb"), (0, b"cc")]


def test_concurrent_requests_get_what_each_gets_alone() -> None:
    """E20, S6."""
    harness = Harness()
    prompts = [b"a", b"bcd" * 9, b"efghij", b"k" * 30, b"lmn"]
    ids = [harness.submit(prompt, max_tokens=12) for prompt in prompts]
    harness.run()
    assert [harness.tokens(request_id) for request_id in ids] == [alone(prompt, 12)[1] for prompt in prompts]


# Admission.


def test_requests_are_admitted_first_come_first_served() -> None:
    harness = Harness(FakeEngine(n_slots=1))
    ids = [harness.submit(max_tokens=2) for _ in range(4)]
    harness.run()
    ends = [request_id for batch in harness.batches for request_id, event in batch if not isinstance(event, TextDelta)]
    assert ends == ids


def test_a_full_queue_refuses_at_once() -> None:
    """S48, K23: before any tick; the slots' places and max_queue more are taken."""
    harness = Harness(FakeEngine(n_slots=2), SchedulerConfig(max_queue=3))
    ids = [harness.submit() for _ in range(5)]
    with pytest.raises(QueueFull, match="3 waiting"):
        harness.submit()
    harness.run()
    assert all(harness.finished(request_id) for request_id in ids)
    assert harness.scheduler.stats().queue_rejects == 1
    harness.submit()


def test_a_place_is_free_again_when_a_request_ends_or_is_cancelled() -> None:
    """S53: a cancelled one leaves the queue at once, before any tick."""
    harness = Harness(FakeEngine(n_slots=1), SchedulerConfig(max_queue=1))
    harness.submit(max_tokens=1)
    waiting = harness.submit()
    harness.tick()
    harness.submit()
    with pytest.raises(QueueFull):
        harness.submit()
    harness.scheduler.cancel(waiting)
    harness.submit()
    with pytest.raises(QueueFull):
        harness.submit()


@pytest.mark.parametrize(
    ("prompt", "error"),
    [((), EmptyPrompt), ((1,) * 1024, PromptTooLong), ((1, 258), BadToken), ((1, -1), BadToken)],
)
def test_a_bad_prompt_takes_no_place(prompt: tuple[int, ...], error: type[Exception]) -> None:
    """S67, K26: and the next request is served."""
    harness = Harness(FakeEngine(n_slots=1), SchedulerConfig(max_queue=1))
    for _ in range(5):
        with pytest.raises(error):
            harness.submit(prompt)
    good = harness.submit()
    harness.run()
    assert harness.finished(good)


def test_a_request_id_is_used_by_one_live_request() -> None:
    harness = Harness()
    harness.submit(request_id="same")
    with pytest.raises(BadRequest, match="'same' is in use"):
        harness.submit(request_id="same")
    harness.run()
    harness.submit(request_id="same")


def test_every_request_gets_a_fresh_sampler_with_its_own_parameters() -> None:
    """S39, S40, S6: opened with its parameters, closed at its end."""
    harness = Harness(FakeEngine(n_slots=1))
    ids = [harness.submit(sampling=SamplingParams(seed=seed), max_tokens=1) for seed in (1, 2)]
    harness.run()
    assert [spec.sampling.seed for spec in harness.engine.opened] == [1, 2]
    assert [spec.seq_id for spec in harness.engine.opened] == [0, 0]
    assert all(harness.finished(request_id) for request_id in ids)


def test_an_engine_that_cannot_open_fails_that_request_alone() -> None:
    """S66."""

    class PickyEngine(FakeEngine):
        def open(self, spec):  # type: ignore[no-untyped-def]  # as FakeEngine.open
            if spec.sampling.seed == 13:
                raise ValueError("unlucky")
            super().open(spec)

    harness = Harness(PickyEngine())
    bad = harness.submit(sampling=SamplingParams(seed=13))
    good = harness.submit()
    harness.run()
    assert isinstance(harness.error(bad), DecodeFailed)
    assert "ValueError: unlucky" in str(harness.error(bad))
    assert harness.finished(good)


# Cancellation.


def test_cancelling_a_running_request_frees_its_slot_within_a_tick() -> None:
    """S51, K20."""
    harness = Harness(FakeEngine(n_slots=1))
    first = harness.submit(max_tokens=2000)
    second = harness.submit(max_tokens=1)
    harness.tick(3)
    assert harness.scheduler.cancel(first)
    harness.tick()
    assert isinstance(harness.error(first), Cancelled)
    assert harness.finished(second)
    assert len(harness.tokens(first)) == 3  # S3
    assert harness.scheduler.stats().requests_cancelled == 1


def test_cancelling_a_prompt_that_is_being_computed_ends_it() -> None:
    harness = Harness(FakeEngine(n_slots=1), SchedulerConfig(prefill_chunk=4))
    request_id = harness.submit(b"p" * 100)
    harness.tick(2)
    harness.scheduler.cancel(request_id)
    harness.tick()
    assert isinstance(harness.error(request_id), Cancelled)
    assert harness.engine.used_cells() == 0
    assert len(harness.engine.plans) == 2


def test_a_request_cancelled_in_the_queue_never_starts() -> None:
    """S53, K15: and gets its one terminal event."""
    harness = Harness(FakeEngine(n_slots=1))
    running = harness.submit(max_tokens=3)
    queued = harness.submit()
    harness.tick()
    harness.scheduler.cancel(queued)
    harness.run()
    assert isinstance(harness.error(queued), Cancelled)
    assert harness.finished(running)
    assert len(harness.engine.opened) == 1


def test_a_request_cancelled_before_the_first_tick_never_starts() -> None:
    """S53."""
    harness = Harness()
    request_id = harness.submit()
    harness.scheduler.cancel(request_id)
    harness.run()
    assert isinstance(harness.error(request_id), Cancelled)
    assert harness.engine.plans == []


def test_cancelling_again_or_too_late_changes_nothing() -> None:
    """K50: one terminal event."""
    harness = Harness()
    request_id = harness.submit(max_tokens=1)
    harness.scheduler.cancel(request_id)
    assert harness.scheduler.cancel(request_id)
    harness.run()
    assert not harness.scheduler.cancel(request_id)
    assert not harness.scheduler.cancel("nobody")
    harness.run()
    assert len(harness.terminals(request_id)) == 1


def test_a_cancel_in_the_tick_of_the_end_gives_one_terminal_event() -> None:
    """K15."""
    engine = FakeEngine()
    harness = Harness(engine)
    request_id = harness.submit(max_tokens=1)
    other = harness.submit(max_tokens=3)

    def cancel(plan: StepPlan, flag: FakeFlag | None) -> None:
        harness.scheduler.cancel(request_id)

    engine.before_step = cancel
    harness.run()
    assert len(harness.terminals(request_id)) == 1
    assert harness.finished(other)


def test_a_step_is_stopped_when_all_its_requests_are_cancelled() -> None:
    """S56."""
    engine = FakeEngine()
    harness = Harness(engine)
    ids = [harness.submit(), harness.submit()]
    flags = []

    def cancel_both(plan: StepPlan, flag: FakeFlag | None) -> None:
        assert flag is not None
        harness.scheduler.cancel(ids[0])
        assert not flag.is_set, "one request still waits for this step"
        harness.scheduler.cancel(ids[1])
        flags.append(flag)

    engine.before_step = cancel_both
    harness.tick()
    assert flags[0].is_set
    assert all(isinstance(harness.error(request_id), Cancelled) for request_id in ids)
    assert harness.scheduler.stats().prompt_tokens == 0


def test_a_cancel_between_two_steps_touches_no_flag() -> None:
    """S56: a flag belongs to one step."""
    engine = FakeEngine()
    harness = Harness(engine)
    seen: list[FakeFlag | None] = []
    engine.before_step = lambda plan, flag: seen.append(flag)
    first = harness.submit()
    harness.tick()
    harness.scheduler.cancel(first)
    second = harness.submit(max_tokens=2)
    harness.run()
    assert harness.finished(second)
    assert len({id(flag) for flag in seen}) == len(seen)
    assert not any(flag is not None and flag.is_set for flag in seen)


def test_a_row_stopped_for_others_sake_runs_again() -> None:
    """S56, K12: the only prompt of a step is cancelled; the texts beside it lose the step and nothing of theirs."""
    engine = FakeEngine()
    harness = Harness(engine)
    texts = [harness.submit(b"one", max_tokens=10), harness.submit(b"two", max_tokens=10)]
    harness.tick(2)
    prompt = harness.submit(b"p" * 100)
    harness.tick()  # the step that was under way

    def cancel(plan: StepPlan, flag: FakeFlag | None) -> None:
        assert plan.pieces
        harness.scheduler.cancel(prompt)
        assert flag is not None
        assert flag.is_set

    engine.before_step = cancel
    harness.tick()
    engine.before_step = None
    assert isinstance(harness.error(prompt), Cancelled)
    assert [len(harness.tokens(request_id)) for request_id in texts] == [3, 3]
    harness.run()
    assert [harness.tokens(request_id) for request_id in texts] == [alone(b"one", 10)[1], alone(b"two", 10)[1]]
    assert harness.scheduler.stats().failed_steps == 0


@pytest.mark.parametrize("mixed_step", [True, False])
def test_clients_that_send_prompts_and_leave_keep_no_stream_from_its_tokens(mixed_step: bool) -> None:
    """K9: at least every second step has a token for it, and a prompt that stays is computed beside it."""
    engine = FakeEngine(n_slots=3, n_ctx=4096)
    harness = Harness(engine, SchedulerConfig(mixed_step=mixed_step, prefill_chunk=8))
    stream = harness.submit(b"stream", max_tokens=200)
    harness.tick(2)
    leaving: list[str] = []

    def leave(plan: StepPlan, flag: FakeFlag | None) -> None:
        if plan.pieces:
            harness.scheduler.cancel(leaving.pop())

    for _ in range(20):
        n_tokens = len(harness.tokens(stream))
        for _ in range(2):
            if not leaving:
                leaving.append(harness.submit(b"p" * 100))
            engine.before_step = leave
            harness.tick()
            engine.before_step = None
        assert len(harness.tokens(stream)) > n_tokens
    patient = harness.submit(b"patient", max_tokens=3)
    harness.run()
    assert harness.tokens(patient) == alone(b"patient", 3, n_ctx=4096)[1]
    assert harness.tokens(stream) == alone(b"stream", 200, n_ctx=4096)[1]


def test_a_row_that_cannot_run_again_does_not_lose_its_step_for_others_sake() -> None:
    """S56: memory that cannot go back; then only a step that nobody waits for is stopped."""
    engine = FakeEngine(can_rewind=False)
    harness = Harness(engine)
    text = harness.submit(b"one", max_tokens=10)
    harness.tick(2)
    prompt = harness.submit(b"p" * 100)

    def cancel(plan: StepPlan, flag: FakeFlag | None) -> None:
        assert plan.pieces
        harness.scheduler.cancel(prompt)
        assert flag is not None
        assert not flag.is_set

    engine.before_step = cancel
    harness.tick()
    engine.before_step = None
    harness.run()
    assert isinstance(harness.error(prompt), Cancelled)
    assert harness.tokens(text) == alone(b"one", 10)[1]


@pytest.mark.parametrize("n_ticks", [0, 2])
def test_a_row_that_was_stopped_though_nobody_asked_runs_again(n_ticks: int) -> None:
    """As a prompt piece and as a decode row."""
    harness = Harness()
    ids = [harness.submit(b"one", max_tokens=6), harness.submit(b"two", max_tokens=6)]
    harness.tick(n_ticks)
    harness.engine.fail_row(0, RowError.ABORTED)
    harness.run()
    assert [harness.tokens(request_id) for request_id in ids] == [alone(b"one", 6)[1], alone(b"two", 6)[1]]


def test_a_row_that_was_stopped_and_is_broken_fails_alone() -> None:
    """Memory that cannot go back, and an engine that stopped a row nobody cancelled."""
    harness = Harness(FakeEngine(can_rewind=False))
    bad, good = harness.submit(b"bad", max_tokens=6), harness.submit(b"good", max_tokens=6)
    harness.tick(2)
    harness.engine.fail_row(0, RowError.ABORTED)
    harness.run()
    assert isinstance(harness.error(bad), DecodeFailed)
    assert len(harness.tokens(bad)) == 2
    assert harness.tokens(good) == alone(b"good", 6)[1]


# Failures.


@pytest.mark.parametrize("n_ticks", [0, 2])
def test_a_row_that_fails_fails_alone(n_ticks: int) -> None:
    """E9, S66, K125: as a prompt piece and as a decode row; the other row's text is as alone."""
    harness = Harness()
    bad = harness.submit(b"bad", max_tokens=10)
    good = harness.submit(b"good", max_tokens=10)
    harness.tick(n_ticks)
    harness.engine.fail_row(0, RowError.DECODE)
    harness.run()
    assert isinstance(harness.error(bad), DecodeFailed)
    assert len(harness.tokens(bad)) == n_ticks
    assert harness.tokens(good) == alone(b"good", 10)[1]
    assert harness.scheduler.stats().requests_failed == 1


@pytest.mark.parametrize("n_ticks", [0, 2])
def test_a_row_without_room_fails_nobody_while_others_can_make_room(n_ticks: int) -> None:
    """S12, S13: as a prompt piece and as a decode row; both texts are as alone."""
    harness = Harness()
    ids = [harness.submit(b"one", max_tokens=10), harness.submit(b"two", max_tokens=10)]
    harness.tick(n_ticks)
    harness.engine.fail_row(0, RowError.CONTEXT_FULL)
    harness.run()
    assert [harness.tokens(request_id) for request_id in ids] == [alone(b"one", 10)[1], alone(b"two", 10)[1]]
    assert harness.scheduler.stats().preemptions == 1


@pytest.mark.parametrize("n_ticks", [0, 2])
def test_a_row_without_room_fails_when_it_has_the_cache_for_itself(n_ticks: int) -> None:
    """S12: and the next request is served."""
    harness = Harness()
    request_id = harness.submit(max_tokens=10)
    harness.tick(n_ticks)
    harness.engine.fail_row(0, RowError.CONTEXT_FULL)
    harness.run()
    assert isinstance(harness.error(request_id), ContextFull)
    assert len(harness.tokens(request_id)) == n_ticks
    assert harness.scheduler.stats().preemptions == 0
    after = harness.submit()
    harness.run()
    assert harness.finished(after)


def test_a_request_alone_in_a_full_cache_fails_with_its_numbers() -> None:
    """S12: a sequence may be longer than the cache is large; then nobody else could make room."""
    harness = Harness(FakeEngine(n_ctx=40, n_ctx_seq=100, n_slots=2))
    request_id = harness.submit(b"p" * 20, max_tokens=None)
    harness.run()
    message = str(harness.error(request_id))
    assert isinstance(harness.error(request_id), ContextFull)
    assert re.search(r"40 cells.*20 of 20 prompt tokens and 21 generated", message), message
    assert harness.tokens(request_id) == alone(b"p" * 20, 21)[1]


def test_a_prompt_alone_in_a_full_cache_fails_with_its_numbers() -> None:
    """S12."""
    harness = Harness(FakeEngine(n_ctx=40, n_ctx_seq=100), SchedulerConfig(prefill_chunk=16))
    request_id = harness.submit(b"p" * 60)
    harness.run()
    assert re.search(r"40 cells.*32 of 60 prompt tokens and 0 generated", str(harness.error(request_id)))


def test_a_full_cache_fails_nobody_who_fits_alone() -> None:
    """S12, S13: both lacked a cell in the same step; the older goes on, the newer comes back."""
    harness = Harness(FakeEngine(n_ctx=40, n_slots=2))
    older = harness.submit(b"p" * 20, max_tokens=None)
    newer = harness.submit(b"q" * 4, max_tokens=30)
    harness.run()
    assert harness.finished(older).reason is FinishReason.CONTEXT_EXHAUSTED
    assert harness.tokens(older) == alone(b"p" * 20, 20)[1]
    assert harness.finished(newer).reason is FinishReason.LENGTH
    assert harness.tokens(newer) == alone(b"q" * 4, 30)[1]


def test_a_prompt_that_finds_no_cells_waits_and_the_running_request_goes_on() -> None:
    """S12, S13."""
    harness = Harness(FakeEngine(n_ctx=40, n_slots=2), SchedulerConfig(prefill_chunk=8))
    running = harness.submit(b"q" * 20, max_tokens=15)
    harness.tick(2)
    late = harness.submit(b"p" * 30)
    harness.run()
    assert harness.tokens(running) == alone(b"q" * 20, 15)[1]
    assert harness.tokens(late) == alone(b"p" * 30)[1]
    assert harness.scheduler.stats().preemptions == 0


def test_a_prompt_that_others_outgrow_gives_its_place_up_and_begins_again() -> None:
    """S12, S13."""
    harness = Harness(FakeEngine(n_ctx=40, n_slots=2), SchedulerConfig(prefill_chunk=1))
    running = harness.submit(b"q" * 4, max_tokens=30)
    harness.tick(5)
    late = harness.submit(b"p" * 24)
    harness.run()
    assert harness.tokens(running) == alone(b"q" * 4, 30)[1]
    assert harness.tokens(late) == alone(b"p" * 24)[1]
    assert harness.scheduler.stats().preemptions == 1


@pytest.mark.parametrize("n_requests", [1, 3])
def test_a_step_that_raises_fails_its_requests_and_no_more(n_requests: int) -> None:
    """K122, S64: also at a batch of one; the server serves the next request."""
    harness = Harness()
    ids = [harness.submit() for _ in range(n_requests)]
    harness.tick(2)
    harness.engine.fail_step(RuntimeError("no memory"))
    harness.tick()
    for request_id in ids:
        assert isinstance(harness.error(request_id), DecodeFailed)
        assert "RuntimeError: no memory" in str(harness.error(request_id))
    assert harness.engine.used_cells() == 0
    after = harness.submit()
    harness.run()
    assert harness.finished(after)


def test_a_request_outside_the_failing_step_goes_on() -> None:
    """K122: without mixed steps, the decoding one is not part of the prompt's step."""
    harness = Harness(config=SchedulerConfig(mixed_step=False))
    running = harness.submit(b"run", max_tokens=10)
    harness.tick(2)
    broken = harness.submit(b"broken")
    harness.tick()  # the step that was under way
    harness.engine.fail_step(RuntimeError("boom"))
    harness.run()
    assert isinstance(harness.error(broken), DecodeFailed)
    assert harness.tokens(running) == alone(b"run", 10)[1]


@pytest.mark.parametrize("answer", ["short", "long", "shuffled"])
def test_rows_that_cannot_be_told_apart_all_fail(answer: str) -> None:
    """K124, E10."""

    class SloppyEngine(FakeEngine):
        def collect(self, ticket: Ticket) -> list[FakeRow]:
            rows = super().collect(ticket)
            return {"short": rows[:-1], "long": [*rows, rows[0]], "shuffled": rows[::-1]}[answer]

    harness = Harness(SloppyEngine())
    ids = [harness.submit(), harness.submit()]
    harness.run()
    assert all(isinstance(harness.error(request_id), DecodeFailed) for request_id in ids)


def test_a_row_without_a_token_fails() -> None:
    class MuteEngine(FakeEngine):
        def collect(self, ticket: Ticket) -> list[FakeRow]:
            return [FakeRow(row.seq_id) for row in super().collect(ticket)]

    harness = Harness(MuteEngine())
    request_id = harness.submit()
    harness.run()
    assert "drew no token" in str(harness.error(request_id))


def test_a_failed_step_counts_once_however_many_rows_it_had() -> None:
    """K123, E11: 8 rows in one failing step are one failure."""
    harness = Harness(FakeEngine(n_slots=8), SchedulerConfig(max_batch_prefill=8))
    ids = [harness.submit() for _ in range(8)]
    harness.engine.fail_step(RuntimeError("once"))
    harness.run()
    assert all(isinstance(harness.error(request_id), DecodeFailed) for request_id in ids)
    after = harness.submit()
    harness.run()
    assert harness.finished(after)


def fail_steps(harness: Harness, times: int) -> None:
    """Let a number of steps fail, one request each."""
    for _ in range(times):
        harness.submit()
        harness.engine.fail_step(RuntimeError("again"))
        harness.tick()


def test_eight_failed_steps_in_a_row_answer_everything_and_refuse_more() -> None:
    """E11."""
    harness = Harness(FakeEngine(n_slots=1))
    fail_steps(harness, MAX_CONSECUTIVE_FAILED_STEPS - 1)
    harness.engine.fail_step(RuntimeError("the last"))
    last = harness.submit()
    queued = harness.submit()
    harness.tick()
    assert isinstance(harness.error(last), DecodeFailed)
    assert isinstance(harness.error(queued), EngineDown)
    assert "8 failed steps in a row" in str(harness.error(queued))
    assert "the last" in str(harness.error(queued))
    assert harness.scheduler.failure is not None
    with pytest.raises(EngineDown, match="8 failed steps"):
        harness.submit()


def test_a_success_forgives_the_failures_before_it() -> None:
    """E11, K123."""
    harness = Harness(FakeEngine(n_slots=1))
    for _ in range(3):
        fail_steps(harness, MAX_CONSECUTIVE_FAILED_STEPS - 1)
        good = harness.submit(max_tokens=1)
        harness.run()
        assert harness.finished(good)


def test_failing_rows_count_as_a_failed_step_when_no_row_worked() -> None:
    """E11."""
    harness = Harness(FakeEngine(n_slots=2))
    for _ in range(MAX_CONSECUTIVE_FAILED_STEPS):
        for seq_id in (0, 1):
            harness.engine.fail_row(seq_id, RowError.DECODE)
            harness.submit()
        harness.tick()
    assert harness.scheduler.failure is not None


def test_full_caches_and_lone_bad_rows_are_no_failed_steps() -> None:
    """E11: pressure is not a failure, nor is one request's row beside others that work."""
    harness = Harness(FakeEngine(n_slots=1))
    for _ in range(2 * MAX_CONSECUTIVE_FAILED_STEPS):
        harness.engine.fail_row(0, RowError.CONTEXT_FULL)
        full = harness.submit()
        harness.tick()
        assert isinstance(harness.error(full), ContextFull)
    assert (harness.scheduler.failure, harness.scheduler.stats().failed_steps) == (None, 0)
    harness = Harness(FakeEngine(n_slots=2))
    harness.submit(max_tokens=500)
    harness.tick()
    for _ in range(2 * MAX_CONSECUTIVE_FAILED_STEPS):
        bad = harness.submit()
        harness.engine.fail_row(1, RowError.DECODE)
        harness.tick(2)  # the first of them was under way
        assert isinstance(harness.error(bad), DecodeFailed)
    assert (harness.scheduler.failure, harness.scheduler.stats().failed_steps) == (None, 0)


def test_a_stop_answers_everything_and_refuses_more() -> None:
    """K15: running, queued and just submitted requests get one terminal event each."""
    harness = Harness(FakeEngine(n_slots=1))
    ids = [harness.submit(), harness.submit()]
    harness.tick()
    ids.append(harness.submit())
    harness.scheduler.stop(EngineDown("closing"))
    with pytest.raises(EngineDown, match="closing"):
        harness.submit()
    harness.tick()
    assert harness.scheduler.is_stopped
    assert [str(harness.error(request_id)) for request_id in ids] == ["closing"] * 3


def test_a_stop_interrupts_the_running_step() -> None:
    engine = FakeEngine()
    harness = Harness(engine)
    request_id = harness.submit()
    engine.before_step = lambda plan, flag: harness.scheduler.stop(EngineDown("closing"))
    harness.tick()
    assert str(harness.error(request_id)) == "closing"
    assert harness.scheduler.stats().prompt_tokens == 0


def test_fail_all_answers_requests_in_any_state() -> None:
    harness = Harness(FakeEngine(n_slots=1))
    ids = [harness.submit(), harness.submit()]
    harness.tick()
    ids.append(harness.submit())
    harness.scheduler.fail_all(EngineDown("bug"))
    assert [str(harness.error(request_id)) for request_id in ids] == ["bug"] * 3
    harness.tick()
    assert all(len(harness.terminals(request_id)) == 1 for request_id in ids)


def test_a_lost_context_answers_everybody_and_refuses_more() -> None:
    """E11, K15: found out by the next request's open; who waits behind it does not wait for ever."""
    harness = Harness(FakeEngine(n_slots=1))
    harness.engine.lose_context("llama.cpp failed and its context is lost: bad_alloc")
    ids = [harness.submit() for _ in range(3)]
    harness.run()
    assert isinstance(harness.error(ids[0]), DecodeFailed)
    for request_id in ids[1:]:
        assert isinstance(harness.error(request_id), EngineDown)
    assert "its context is lost: bad_alloc" in str(harness.scheduler.failure)
    with pytest.raises(EngineDown, match="bad_alloc"):
        harness.submit()


def test_a_context_lost_before_a_step_is_submitted_answers_everybody() -> None:
    """E11, K15: without mixed steps the one whose step did not run learns of it in the next tick."""
    harness = Harness(config=SchedulerConfig(mixed_step=False))
    running = harness.submit(b"run", max_tokens=10)
    harness.tick(2)
    harness.engine.lose_context("lost")
    prompt = harness.submit(b"prompt")
    harness.run()
    errors = [harness.error(request_id) for request_id in (running, prompt)]
    assert {type(error) for error in errors} == {DecodeFailed, EngineDown}
    assert str(harness.scheduler.failure) == "lost"


def test_a_shut_down_answers_everybody_even_if_a_sequence_cannot_be_closed(caplog: pytest.LogCaptureFixture) -> None:
    """K15: every other sequence is still closed."""

    class StuckEngine(FakeEngine):
        def close(self, seq_id: int) -> bool:
            if seq_id == 0:
                raise RuntimeError("stuck")
            return super().close(seq_id)

    harness = Harness(StuckEngine())
    ids = [harness.submit() for _ in range(3)]
    harness.tick()
    harness.scheduler.fail_all(EngineDown("bug"))
    assert [str(harness.error(request_id)) for request_id in ids] == ["bug"] * 3
    assert harness.engine.used_cells() == len(b"hello")
    assert "stuck" in caplog.text


def test_every_request_ended_by_a_stop_gets_an_error_of_its_own() -> None:
    """One object raised in several threads would mix their tracebacks."""
    engine = FakeEngine()
    harness = Harness(engine)
    ids = [harness.submit(), harness.submit()]
    closing = EngineDown("closing")
    engine.before_step = lambda plan, flag: harness.scheduler.stop(closing)
    harness.tick()
    errors = [closing, *(harness.error(request_id) for request_id in ids)]
    assert len({id(error) for error in errors}) == 3
    assert {str(error) for error in errors} == {"closing"}


# Numbers.


def test_timings_run_from_submission() -> None:
    """K15, S1: queue, prompt and text add up."""
    harness = Harness(FakeEngine(n_slots=1), SchedulerConfig(prefill_chunk=4))
    harness.submit(max_tokens=1)
    harness.tick(1)
    request_id = harness.submit(b"12345678", max_tokens=3)
    harness.clock.now_s += 2.0
    harness.tick()  # "hello" has a second piece
    for seconds in (4.0, 8.0, 16.0, 32.0):
        harness.clock.now_s += seconds
        harness.tick()
    timings = harness.finished(request_id).timings
    assert timings == Timings(queue_s=6.0, prefill_s=8.0, decode_s=48.0)
    assert timings.ttft_s == 14.0


def test_stats_say_what_is_going_on() -> None:
    harness = Harness(FakeEngine(n_slots=2), SchedulerConfig(prefill_chunk=4))
    harness.submit(b"abc", max_tokens=3)
    harness.tick()
    harness.submit(b"p" * 10, max_tokens=5)
    harness.submit(b"wait", max_tokens=5)
    harness.tick(2)  # the step that was under way, and one with both
    stats = harness.scheduler.stats()
    assert stats == SchedulerStats(
        active_slots=1,
        prefilling_slots=1,
        idle_slots=1,
        queue_depth=1,
        n_slots=2,
        n_batch=512,
        n_ctx=1024,
        used_cells=4,
        ticks=3,
        decode_tokens=2,
        prompt_tokens=7,
        generated_tokens=3,
        requests_done=1,
        requests_cancelled=0,
        requests_failed=0,
        queue_rejects=0,
        token_rejects=0,
        preempted_requests=0,
        preemptions=0,
        recomputed_tokens=0,
        decode_steps=1,
        lookahead_steps=1,
        lookahead_discards=dict.fromkeys(Discard, 0),
        kv_purges=0,
        batch_splits=0,
        failed_steps=0,
        prefix=PrefixCounters(),
        prefix_gauges=PrefixGauges(shares=True),
        build_s=0.0,
        decode_s=0.0,
        sample_s=0.0,
        gather_s=0.0,
        latencies=stats.latencies,  # tested below
    )


def test_what_a_step_reports_is_added_up() -> None:
    """K144: seconds, purges and halved batches of all steps; a step with prompt pieces is no decode step."""

    class ReportingEngine(FakeEngine):
        @property
        def report(self) -> StepReport:
            return super().report._replace(time=StepTime(0.5, 2.0, 0.25), purged=(7, 8), n_splits=3)

    harness = Harness(ReportingEngine())
    harness.submit(max_tokens=4)
    harness.run()
    stats = harness.scheduler.stats()
    assert (stats.ticks, stats.decode_steps) == (4, 3)
    assert (stats.build_s, stats.decode_s, stats.sample_s) == (2.0, 8.0, 1.0)
    assert (stats.kv_purges, stats.batch_splits) == (8, 12)


def test_numbers_read_once_do_not_change_later() -> None:
    """A snapshot: also the numbers kept by cause."""
    harness = Harness()
    request_id = harness.submit(max_tokens=100)
    harness.tick(2)
    before = harness.scheduler.stats()
    harness.scheduler.cancel(request_id)
    harness.tick()
    assert before.lookahead_discards[Discard.CANCEL] == 0
    assert harness.scheduler.stats().lookahead_discards[Discard.CANCEL] == 1


def test_steps_in_which_nothing_worked_are_counted() -> None:
    """K123: once each; a step that was stopped or found no room is none of them."""
    harness = Harness(FakeEngine(n_slots=2))
    harness.submit()
    harness.submit()
    harness.engine.fail_step(RuntimeError("once"))
    harness.tick()
    for seq_id, error in ((0, RowError.ABORTED), (1, RowError.ABORTED), (0, RowError.CONTEXT_FULL)):
        harness.engine.fail_row(seq_id, error)
    harness.submit()
    harness.submit()
    harness.run()
    stats = harness.scheduler.stats()
    assert (stats.failed_steps, stats.requests_failed, stats.requests_done) == (1, 2, 2)


def test_an_idle_scheduler_says_so_and_asks_the_engine_for_no_step() -> None:
    harness = Harness()
    assert not harness.scheduler.tick()
    assert harness.engine.plans == []
    assert harness.batches == []


def test_an_ended_text_stays_ended_when_eos_is_forbidden() -> None:
    """ignore_eos reaches the engine: the length alone ends the text."""
    harness = Harness(FakeEngine(continuation=lambda history: EOS))
    request_id = harness.submit(sampling=SamplingParams(ignore_eos=True), max_tokens=5)
    harness.run()
    assert harness.text(request_id) == "....."
    assert harness.finished(request_id).reason is FinishReason.LENGTH


def test_whoever_asks_is_told_how_far_the_prompt_is() -> None:
    """Once with the slot and after each piece, before the first text; cached tokens are told apart."""
    harness = Harness(FakeEngine(n_slots=1), SchedulerConfig(prefill_chunk=4))
    request_id = harness.submit(b"0123456789", max_tokens=2, return_progress=True, cache_prompt=True)
    silent = harness.submit(b"0123456789", max_tokens=2, cache_prompt=True)
    harness.run()
    again = harness.submit(b"0123456789abc", max_tokens=2, return_progress=True, cache_prompt=True)
    harness.run()
    assert harness.progress(request_id) == [Progress(10, 0, n) for n in (0, 4, 8, 10)]
    assert harness.progress(silent) == []
    assert harness.progress(again) == [Progress(13, 10, 0), Progress(13, 10, 3)]
    kinds = [type(event) for event in harness.events[request_id]]
    assert kinds == [Progress] * 4 + [TextDelta] * 2 + [Finished]


def test_a_prompt_that_came_back_for_its_text_is_not_shown_again() -> None:
    """Its tokens are computed again, but for a text that has begun."""
    harness = Harness(FakeEngine(n_slots=2, n_ctx=64, n_ctx_seq=64), SchedulerConfig(preempt_ram=0))
    harness.submit(b"a" * 20, max_tokens=40)
    second = harness.submit(b"b" * 20, max_tokens=15, return_progress=True)
    harness.run()
    assert harness.scheduler.stats().recomputed_tokens > 0
    assert harness.progress(second) == [Progress(20, 0, 0), Progress(20, 0, 20)]


def test_latencies_are_measured_at_steps() -> None:
    harness = Harness(FakeEngine(n_slots=1))
    first, second = harness.submit(b"ab", max_tokens=3), harness.submit(b"cd", max_tokens=1)
    for _ in range(4):
        harness.clock.now_s += 1.0
        harness.tick()
    assert harness.finished(first).timings.total_s == 3.0
    assert harness.finished(second).timings.total_s == 4.0
    latencies = harness.scheduler.stats().latencies
    assert (latencies.queue_wait.n_observed, latencies.queue_wait.total) == (2, 1.0 + 4.0)
    assert (latencies.first_token.n_observed, latencies.first_token.total) == (2, 1.0 + 4.0)
    assert (latencies.token_gap.n_observed, latencies.token_gap.total) == (2, 2.0)
    assert (latencies.request.n_observed, latencies.request.total) == (2, 3.0 + 4.0)
    assert latencies.step_parts["decode"].n_observed == 4


def test_requests_that_fail_are_in_no_histogram_of_whole_requests() -> None:
    harness = Harness(FakeEngine(n_slots=1))
    cancelled = harness.submit(max_tokens=100)
    harness.tick(3)
    harness.scheduler.cancel(cancelled)
    harness.run()
    latencies = harness.scheduler.stats().latencies
    assert (latencies.first_token.n_observed, latencies.request.n_observed) == (1, 0)


# Who is next.


def order_of_firsts(harness: Harness) -> list[str]:
    """Ids in the order of their first events."""
    return list(harness.events)


def test_a_flood_of_urgent_requests_leaves_a_normal_one_the_third_slot() -> None:
    """K103: granted at decision 3 exactly, whatever comes; without aging it starves."""
    for ages in (True, False):
        harness = Harness(FakeEngine(n_slots=1), SchedulerConfig(max_queue=0, queue_aging=ages))
        harness.submit(max_tokens=1)
        harness.tick()
        parked = harness.submit(max_tokens=1)
        for _ in range(8):
            harness.submit(max_tokens=1, priority=Lane.HIGH)
            harness.submit(max_tokens=1, priority=Lane.HIGH)
            harness.tick()
        order = order_of_firsts(harness)[1:]
        assert (order.index(parked) == 2) if ages else (parked not in order)


def test_a_second_users_single_request_does_not_wait_for_the_first_users_fifty() -> None:
    """No longer than a quarter of them: here it is among the next four that get a slot."""
    harness = Harness(FakeEngine(n_slots=4), SchedulerConfig(max_queue=0))
    crowd = [harness.submit(b"%d" % n, max_tokens=5, owner="first") for n in range(50)]
    harness.tick(2)
    single = harness.submit(b"single", max_tokens=5, owner="second")
    harness.run()
    order = order_of_firsts(harness)
    assert order.index(single) <= 4 + 4
    assert set(order) == {*crowd, single}


def test_a_request_that_waits_too_long_ends_and_frees_its_place() -> None:
    harness = Harness(FakeEngine(n_slots=1), SchedulerConfig(max_queue=1))
    running = harness.submit(max_tokens=20, timeout_s=5.0)
    harness.tick()
    late = harness.submit(timeout_s=5.0)
    with pytest.raises(QueueFull):
        harness.submit()
    harness.clock.now_s += 5.0
    harness.tick()
    assert str(harness.error(late)) == str(DeadlineExceeded(5.0))
    harness.submit()
    harness.run()
    assert harness.finished(running).completion_tokens == 20, "whoever has a slot is not the queue's to end"
    stats = harness.scheduler.stats()
    assert (stats.requests_cancelled, stats.requests_done, stats.queue_rejects) == (1, 2, 1)


def test_a_queue_full_of_tokens_refuses_and_says_so() -> None:
    harness = Harness(FakeEngine(n_slots=1), SchedulerConfig(max_queue=0, max_queue_tokens=20))
    harness.submit()
    harness.tick()
    harness.submit(b"p" * 15)
    with pytest.raises(QueueTokensFull, match="15 prompt tokens wait, 6 more would pass its limit of 20"):
        harness.submit(b"p" * 6)
    harness.submit(b"p" * 5)
    stats = harness.scheduler.stats()
    assert (stats.queue_rejects, stats.token_rejects) == (0, 1)


def test_who_is_refused_is_told_how_fast_the_queue_empties() -> None:
    """A place in 10 seconds; before anything was measured, in 5."""
    harness = Harness(FakeEngine(n_slots=1), SchedulerConfig(max_queue=10))
    for _ in range(11):
        harness.submit(max_tokens=1)
    with pytest.raises(QueueFull) as caught:
        harness.submit()
    assert caught.value.retry_after_s == 5
    for _ in range(60):
        harness.clock.now_s += 10.0
        harness.tick()
        harness.submit(max_tokens=1)
    with pytest.raises(QueueFull) as caught:
        harness.submit()
    assert 9 <= caught.value.retry_after_s <= 11


def test_a_session_whose_slot_is_idle_goes_first_a_bounded_number_of_times() -> None:
    """S32, K152."""
    harness = Harness(FakeEngine(n_slots=1), SchedulerConfig(max_queue=0))
    harness.submit(max_tokens=1, session="s")
    harness.submit(b"other", max_tokens=1)
    names = [harness.submit(b"turn", max_tokens=1, session="s") for _ in range(4)]
    harness.run()
    order = order_of_firsts(harness)
    assert order[1:3] == names[:2]
    assert order[3] == "r1"
