"""The step that is computed before the one before it was acted on: when there is one, and that nobody sees it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from llamaserve.config import FORCE_SYNC_VARIABLE, SchedulerConfig
from llamaserve.engine.fake import EOS, Continuation, FakeEngine, FakeRow, letters, scripted
from llamaserve.engine.port import StepFlag, StepPlan, Ticket
from llamaserve.errors import Cancelled, DecodeFailed, EngineDown, RewindFailed
from llamaserve.request import FinishReason, GenerationRequest, SamplingParams
from llamaserve.scheduler.lookahead import may_run_ahead
from llamaserve.scheduler.opening import prompt_of
from llamaserve.scheduler.slot import Work
from llamaserve.scheduler.stats import Discard
from tests.unit.scheduler.harness import Harness, alone

NO_DISCARDS = dict.fromkeys(Discard, 0)


class AskedEngine(FakeEngine):
    """Remembers for every plan whether the scheduler allowed the next step to run ahead."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)  # type: ignore[arg-type]  # every size is an int
        self.asked: list[bool] = []

    def submit(self, plan: StepPlan, flag: StepFlag | None = None, *, ahead: bool = False) -> Ticket:
        self.asked.append(ahead)
        return super().submit(plan, flag, ahead=ahead)


def until(harness: Harness, is_reached: Callable[[], bool], most_ticks: int = 200) -> None:
    """Tick until something holds between two ticks."""
    for _ in range(most_ticks):
        if is_reached():
            return
        harness.tick()
    raise AssertionError(f"not reached after {most_ticks} ticks")


def work(*, n_prompt: int = 4, n_generated: int = 1, max_tokens: int | None = 10, n_ctx_seq: int = 100) -> Work:
    """A request somewhere in its text."""
    request = GenerationRequest("r", (1,) * n_prompt, max_tokens)
    some = Work(request, prompt_of(request), submitted_at=0.0, admitted_at=0.0, admitted_order=1, n_ctx_seq=n_ctx_seq)
    some.generated = [1] * n_generated
    return some


# The rules.


@pytest.mark.parametrize(
    ("n_generated", "max_tokens", "n_ctx_seq", "expected"),
    [
        (8, 10, 100, False),
        (9, 10, 100, True),
        (0, 1, 100, True),
        (50, None, 100, False),
        (4, None, 10, False),
        (5, None, 10, True),
    ],
)
def test_an_end_by_length_is_foreseen_a_token_before(
    n_generated: int, max_tokens: int | None, n_ctx_seq: int, expected: bool
) -> None:
    """L5: of max_tokens and of the context, with a prompt of 4 tokens."""
    works = [work(n_generated=n_generated, max_tokens=max_tokens, n_ctx_seq=n_ctx_seq)]
    assert may_run_ahead(works, n_running=1, n_unfinished_prompts=0, can_admit=False) is not expected


def test_the_next_step_is_known_while_everybody_goes_on() -> None:
    """L4, L3: each condition alone makes it unknown."""

    def decision(
        n_generated: int = 1, n_running: int = 2, n_unfinished_prompts: int = 0, can_admit: bool = False
    ) -> bool:
        return may_run_ahead(
            [work(), work(n_generated=n_generated)],
            n_running=n_running,
            n_unfinished_prompts=n_unfinished_prompts,
            can_admit=can_admit,
        )

    assert decision()
    assert not decision(n_generated=9)
    assert not decision(n_running=3)
    assert not decision(n_unfinished_prompts=1)
    assert not decision(can_admit=True)


# When it engages.


@pytest.mark.parametrize("n_streams", [1, 2, 4])
def test_steady_streams_are_computed_ahead_from_the_first_token_to_the_last(n_streams: int) -> None:
    """L2, L17: of N steps all but the first."""
    harness = Harness(FakeEngine(n_slots=4))
    ids = [harness.submit(b"p%d" % n, max_tokens=30) for n in range(n_streams)]
    harness.run()
    stats = harness.scheduler.stats()
    assert harness.engine.ran_ahead == [False] + [True] * 29
    assert (stats.lookahead_steps, stats.decode_steps) == (29, 29)
    assert stats.lookahead_discards == NO_DISCARDS
    for n, request_id in enumerate(ids):
        assert harness.tokens(request_id) == alone(b"p%d" % n, 30)[1]


def test_streams_of_every_length_are_computed_ahead_between_their_ends() -> None:
    """L6, L17: each end, foreseen, costs one step."""
    harness = Harness(FakeEngine(n_slots=4))
    for max_tokens in (10, 20, 30, 40):
        harness.submit(max_tokens=max_tokens)
    harness.run()
    assert [index for index, ran_ahead in enumerate(harness.engine.ran_ahead) if not ran_ahead] == [0, 10, 20, 30]
    assert harness.scheduler.stats().lookahead_discards == NO_DISCARDS


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(logit_bias={EOS: -math.inf, 65: 2.0}),
        SamplingParams(repeat_penalty=1.3, frequency_penalty=0.5),
        SamplingParams(temperature=0.0),
        SamplingParams(seed=4, ignore_eos=True),
    ],
)
def test_no_sampling_parameter_keeps_a_stream_from_running_ahead(sampling: SamplingParams) -> None:
    """L10, L11, K121."""
    harness = Harness()
    harness.submit(sampling=sampling, max_tokens=20)
    harness.submit(max_tokens=20)
    harness.run()
    assert harness.scheduler.stats().lookahead_steps == 19


def test_a_step_that_runs_ahead_holds_nothing_that_was_not_given_out() -> None:
    """L1: between two ticks, cells and tokens are those of the steps acted on."""
    harness = Harness()
    request_id = harness.submit(b"hello", max_tokens=20)
    for n_ticks in range(1, 20):
        harness.tick()
        assert list(harness.engine.ahead_rows) == [0]
        assert harness.scheduler.stats().used_cells == len(b"hello") + n_ticks - 1
        assert len(harness.tokens(request_id)) == n_ticks


def test_a_request_that_waits_for_a_slot_does_not_stop_it() -> None:
    """L4: it could not begin anyway."""
    harness = Harness(FakeEngine(n_slots=1))
    harness.submit(max_tokens=20)
    harness.submit(max_tokens=20)
    harness.run()
    assert harness.engine.ran_ahead == ([False] + [True] * 19) * 2


def test_a_request_that_can_begin_joins_after_the_step_under_way() -> None:
    """L4, L8, L9: the step computed early is used, not taken back; the one after it holds both."""
    harness = Harness(FakeEngine(n_slots=2))
    stream = harness.submit(b"stream", max_tokens=20)
    harness.tick(5)
    joins = harness.submit(b"joins", max_tokens=30)
    harness.tick()
    plan = harness.engine.plans[-1]
    assert (list(plan.decode), list(plan.pieces), harness.engine.ran_ahead[-1]) == ([0], [], True)
    assert harness.scheduler.stats().queue_depth == 1
    assert not harness.engine.ahead_rows
    harness.tick()
    plan = harness.engine.plans[-1]
    assert (list(plan.decode), [piece.seq_id for piece in plan.pieces]) == ([0], [1])
    assert list(harness.engine.ahead_rows) == [0, 1]
    assert len(harness.tokens(stream)) == 7
    harness.run()
    assert harness.tokens(stream) == alone(b"stream", 20)[1]
    assert harness.tokens(joins) == alone(b"joins", 30)[1]
    assert harness.scheduler.stats().lookahead_discards == NO_DISCARDS


def test_a_step_with_pieces_counts_as_no_step_computed_ahead() -> None:
    """K144, L17: what is counted is disjoint."""
    harness = Harness(FakeEngine(n_slots=4), SchedulerConfig(prefill_chunk=4))
    for n in (3, 11, 9, 26):
        harness.submit(b"p" * n, max_tokens=12)
        harness.tick(3)
    harness.run()
    stats = harness.scheduler.stats()
    n_mixed = sum(bool(plan.pieces) for plan in harness.engine.plans)
    assert stats.decode_steps + n_mixed == stats.ticks
    assert 0 < stats.lookahead_steps <= stats.decode_steps
    assert stats.lookahead_steps == sum(harness.engine.ran_ahead)
    assert not any(
        ahead and plan.pieces for plan, ahead in zip(harness.engine.plans, harness.engine.ran_ahead, strict=True)
    )


# When it does not.


def test_nothing_runs_ahead_of_an_unfinished_prompt() -> None:
    """L4: alone in its steps, and beside a stream; the piece that ends it is followed at once."""
    harness = Harness(AskedEngine(), SchedulerConfig(prefill_chunk=4))
    harness.submit(b"0123456789", max_tokens=30)
    harness.tick(4)
    asked = harness.engine.asked  # type: ignore[attr-defined]  # it is an AskedEngine
    assert asked == [False, False, True, True]
    harness.submit(b"0123456789", max_tokens=30)
    harness.tick(5)
    assert asked[4:] == [False, False, False, True, True]


def test_nothing_runs_ahead_of_max_tokens() -> None:
    """L5, L14: the last token is followed by nothing."""
    for max_tokens in (1, 2, 9):
        engine = AskedEngine()
        harness = Harness(engine)
        harness.submit(max_tokens=max_tokens)
        harness.run()
        assert engine.asked == [True] * (max_tokens - 1) + [False]


def test_nothing_runs_ahead_of_the_end_of_the_context() -> None:
    """L5, L14."""
    engine = AskedEngine(n_ctx=20)
    harness = Harness(engine)
    harness.submit(b"p" * 6, max_tokens=None)
    harness.run()
    assert engine.asked == [True] * 13 + [False]


def test_without_mixed_steps_a_prompt_that_ends_beside_a_stream_is_not_followed_early() -> None:
    """L3: the next step has the stream's row too."""
    engine = AskedEngine()
    harness = Harness(engine, SchedulerConfig(mixed_step=False))
    harness.submit(max_tokens=10)
    harness.tick(3)
    harness.submit(max_tokens=10)
    harness.tick()
    assert not engine.ahead_rows, "the second could begin"
    harness.tick()
    assert ([piece.seq_id for piece in engine.plans[-1].pieces], engine.asked[-1]) == ([1], False)
    harness.tick()
    assert engine.asked[-1]


def test_memory_that_cannot_go_back_never_runs_ahead() -> None:
    """L12, K112: recurrent models; not even at the start."""
    sizes = {"can_rewind": False}
    engine = AskedEngine(**sizes)
    harness = Harness(engine)
    ids = [harness.submit(b"one", max_tokens=20), harness.submit(b"two", max_tokens=9, stop=("zz",))]
    harness.run()
    assert not any(engine.asked)
    assert harness.scheduler.stats().lookahead_steps == 0
    assert [harness.tokens(request_id) for request_id in ids] == [alone(b"one", 20)[1], alone(b"two", 9)[1]]


def test_the_option_turns_it_off() -> None:
    """L15."""
    engine = AskedEngine()
    harness = Harness(engine, SchedulerConfig(lookahead=False))
    harness.submit(max_tokens=20)
    harness.run()
    assert engine.asked == [False] * 20


@pytest.mark.parametrize("value", ["1", "true", "0", "false", ""])
def test_the_environment_turns_it_off_whatever_it_says(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L15: FORCE_SYNC is there or not."""
    monkeypatch.setenv(FORCE_SYNC_VARIABLE, value)
    engine = AskedEngine()
    harness = Harness(engine, SchedulerConfig(lookahead=True))
    harness.submit(max_tokens=20)
    harness.run()
    assert engine.asked == [False] * 20


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """L15: when the scheduler is made."""
    runs_ahead = Harness()
    monkeypatch.setenv(FORCE_SYNC_VARIABLE, "1")
    waits = Harness()
    for harness in (runs_ahead, waits):
        harness.submit(max_tokens=20)
        harness.tick(5)
    monkeypatch.delenv(FORCE_SYNC_VARIABLE)
    for harness in (runs_ahead, waits):
        harness.run()
    assert (sum(runs_ahead.engine.ran_ahead), sum(waits.engine.ran_ahead)) == (19, 0)


def test_a_step_that_could_not_be_computed_early_is_computed_in_its_turn() -> None:
    """L14, L20, K115: an engine without a cell or with a failure ahead drops the step; nobody notices."""

    class ReluctantEngine(FakeEngine):
        def collect(self, ticket: Ticket) -> list[FakeRow]:
            rows = super().collect(ticket)
            if len(self.plans) % 3 == 0:
                self._ahead_rows = ()
            return rows

    harness = Harness(ReluctantEngine())
    ids = [harness.submit(b"one", max_tokens=20), harness.submit(b"two", max_tokens=20)]
    harness.run()
    stats = harness.scheduler.stats()
    assert [harness.tokens(request_id) for request_id in ids] == [alone(b"one", 20)[1], alone(b"two", 20)[1]]
    assert (stats.lookahead_steps, stats.decode_steps) == (13, 19)
    assert stats.lookahead_discards == NO_DISCARDS


# What takes it back.


def test_ends_that_can_be_foreseen_discard_nothing() -> None:
    """L5, L14: the engine sees the end of generation, the scheduler the lengths."""
    replies = scripted({"a": "short", "b": "rather longer text", "c": "x" * 40})
    harness = Harness(FakeEngine(n_slots=4, continuation=replies))
    ids = [harness.submit(prompt, max_tokens=100) for prompt in (b"a", b"b")]
    ids += [harness.submit(b"c", max_tokens=max_tokens) for max_tokens in (12, 30)]
    harness.run()
    reasons = [harness.finished(request_id).reason for request_id in ids]
    assert reasons == [FinishReason.EOS] * 2 + [FinishReason.LENGTH] * 2
    stats = harness.scheduler.stats()
    assert stats.lookahead_discards == NO_DISCARDS
    assert stats.lookahead_steps >= stats.decode_steps - 4


def test_a_stop_string_discards_one_step() -> None:
    """L6, L8: nobody foresees it; the stream beside it gets the text it gets alone."""
    replies = scripted({"a": "say STOP and more", "b": "x" * 30})
    harness = Harness(FakeEngine(continuation=replies))
    stops = harness.submit(b"a", max_tokens=100, stop=("STOP",))
    other = harness.submit(b"b", max_tokens=25)
    harness.run()
    assert (harness.text(stops), harness.finished(stops).reason) == ("say ", FinishReason.STOP_SEQUENCE)
    assert harness.text(other) == "x" * 25
    assert harness.scheduler.stats().lookahead_discards == {**NO_DISCARDS, Discard.FINISH: 1}


def test_two_stop_strings_in_one_tick_discard_one_step() -> None:
    """L8: taking back twice is taking back once."""
    harness = Harness(FakeEngine(continuation=scripted({"a": "say STOP", "b": "x" * 30})))
    ids = [harness.submit(b"a", max_tokens=100, stop=("STOP",)) for _ in range(2)]
    other = harness.submit(b"b", max_tokens=25)
    harness.run()
    assert [harness.text(request_id) for request_id in ids] == ["say "] * 2
    assert harness.text(other) == "x" * 25
    assert harness.scheduler.stats().lookahead_discards == {**NO_DISCARDS, Discard.FINISH: 1}


def test_a_stop_string_with_the_last_token_discards_nothing() -> None:
    """E7, L5: the length was foreseen, so nothing ran ahead; the stop string is the reason all the same."""
    harness = Harness(FakeEngine(continuation=scripted({"a": "say STOP"})))
    request_id = harness.submit(b"a", max_tokens=8, stop=("STOP",))
    harness.run()
    assert harness.finished(request_id).reason is FinishReason.STOP_SEQUENCE
    assert harness.scheduler.stats().lookahead_discards == NO_DISCARDS


def is_ahead(harness: Harness) -> bool:
    """Whether a step runs ahead."""
    return bool(harness.engine.ahead_rows)


PHASES: dict[str, tuple[Callable[[Harness], bool], int]] = {
    "waiting": (lambda harness: harness.scheduler.stats().queue_depth == 1 and is_ahead(harness), 0),
    "prefilling": (lambda harness: harness.scheduler.stats().prefilling_slots == 1, 0),
    "generating": (lambda harness: harness.scheduler.stats().active_slots == 2 and is_ahead(harness), 1),
    "preempted": (lambda harness: harness.scheduler.stats().preempted_requests == 1 and is_ahead(harness), 0),
}
"""How a phase is recognised, and how many steps a cancel in it discards."""


@pytest.mark.parametrize("phase", PHASES)
def test_a_cancel_in_any_phase_frees_everything_and_touches_nobody_else(phase: str) -> None:
    """S51, S53, L21, K116."""
    is_reached, n_discards = PHASES[phase]
    n_slots = 1 if phase == "waiting" else 2
    harness = Harness(FakeEngine(n_slots=n_slots, n_ctx=48), SchedulerConfig(prefill_chunk=8))
    other = harness.submit(b"o" * 20, max_tokens=20)
    until(harness, lambda: is_ahead(harness))
    cancelled = harness.submit(b"c" * 10, max_tokens=25)
    until(harness, lambda: is_reached(harness))
    n_tokens = len(harness.tokens(cancelled))
    assert harness.scheduler.cancel(cancelled)
    harness.tick()
    assert isinstance(harness.error(cancelled), Cancelled)
    assert len(harness.tokens(cancelled)) == n_tokens
    stats = harness.scheduler.stats()
    assert (stats.active_slots, stats.queue_depth, stats.preempted_requests) == (1, 0, 0)
    assert (stats.requests_cancelled, stats.used_cells) == (1, 20 + len(harness.tokens(other)) - 1)
    assert stats.lookahead_discards == {**NO_DISCARDS, Discard.CANCEL: n_discards}
    after = harness.submit(b"a" * 4, max_tokens=9)
    harness.run()
    assert harness.tokens(other) == alone(b"o" * 20, 20)[1]
    assert harness.tokens(after) == alone(b"a" * 4, 9)[1]
    assert harness.scheduler.stats().used_cells == 0


def test_a_step_that_fails_takes_what_ran_ahead_of_it_with_it() -> None:
    """L8, K124: the rows are not believed, so neither is what was computed from them."""

    class ShuffledOnce(FakeEngine):
        def collect(self, ticket: Ticket) -> list[FakeRow]:
            rows = super().collect(ticket)
            return rows[::-1] if len(self.plans) == 3 else rows

    harness = Harness(ShuffledOnce())
    ids = [harness.submit(max_tokens=20), harness.submit(max_tokens=20)]
    harness.run()
    assert all(isinstance(harness.error(request_id), DecodeFailed) for request_id in ids)
    assert harness.scheduler.stats().lookahead_discards == {**NO_DISCARDS, Discard.FAILURE: 1}
    after = harness.submit(b"after")
    harness.run()
    assert harness.tokens(after) == alone(b"after")[1]


def test_a_step_computed_ahead_that_cannot_be_submitted_fails_like_any_other() -> None:
    """E11, L20: once, and the next request is served."""
    harness = Harness()
    ids = [harness.submit(max_tokens=20), harness.submit(max_tokens=20)]
    harness.tick(3)
    assert is_ahead(harness)
    harness.engine.fail_step(RuntimeError("boom"))
    harness.tick()
    assert all(isinstance(harness.error(request_id), DecodeFailed) for request_id in ids)
    assert harness.scheduler.stats().failed_steps == 1
    after = harness.submit(b"after")
    harness.run()
    assert harness.tokens(after) == alone(b"after")[1]


def test_a_stop_while_a_step_runs_ahead_answers_everybody() -> None:
    """L21, K15."""
    harness = Harness()
    ids = [harness.submit(max_tokens=20), harness.submit(max_tokens=20)]
    harness.tick(3)
    assert is_ahead(harness)
    harness.scheduler.stop(EngineDown("closing"))
    harness.tick()
    assert [str(harness.error(request_id)) for request_id in ids] == ["closing"] * 2
    assert (list(harness.engine.ahead_rows), harness.engine.used_cells()) == ([], 0)


# What cannot be taken back.


def stop_at(harness: Harness, request_id: str) -> None:
    """Let a request reach its stop string."""
    until(harness, lambda: bool(harness.terminals(request_id)))


def cancel(harness: Harness, request_id: str) -> None:
    """Cancel a request while a step runs ahead."""
    harness.tick(3)
    assert is_ahead(harness)
    harness.scheduler.cancel(request_id)
    harness.tick()


REPLIES = scripted({"a": "say STOP and more", "b": "other text that is long enough", "c": "third text, long as well"})


@pytest.mark.parametrize("end", [stop_at, cancel])
def test_a_sequence_that_cannot_go_back_has_failed_whatever_its_end_was(end: Callable[[Harness, str], None]) -> None:
    """L7, E15: it neither finished nor was cancelled; the others, who went back, go on."""
    harness = Harness(FakeEngine(continuation=REPLIES))
    broken = harness.submit(b"a", max_tokens=100, stop=("STOP",))
    others = [harness.submit(prompt, max_tokens=20) for prompt in (b"b", b"c")]
    harness.engine.fail_rewinds(1)
    end(harness, broken)
    assert isinstance(harness.error(broken), RewindFailed)
    assert "sequence 0" in str(harness.error(broken))
    harness.run()
    assert [harness.text(request_id) for request_id in others] == ["other text that is l", "third text, long as "]
    stats = harness.scheduler.stats()
    assert (stats.requests_failed, stats.requests_cancelled, stats.requests_done) == (1, 0, 2)


def test_another_sequence_that_cannot_go_back_fails_with_its_next_row() -> None:
    """L7: what it drew before was right and is given out; whoever went back goes on."""
    harness = Harness(FakeEngine(continuation=REPLIES))
    broken = harness.submit(b"b", max_tokens=30)
    stops = harness.submit(b"a", max_tokens=100, stop=("STOP",))
    fine = harness.submit(b"c", max_tokens=20)
    harness.engine.fail_rewinds(1)
    stop_at(harness, stops)
    assert (harness.text(stops), harness.finished(stops).reason) == ("say ", FinishReason.STOP_SEQUENCE)
    assert not harness.terminals(broken)
    harness.tick()
    assert isinstance(harness.error(broken), RewindFailed)
    assert harness.text(broken) == "other te"
    harness.run()
    assert harness.text(fine) == "third text, long as "


def test_a_sequence_that_a_call_in_between_broke_fails_for_that_reason() -> None:
    """E15: whatever asks the engine for something takes the step back without having been told to."""
    harness = Harness(FakeEngine(continuation=REPLIES))
    broken = harness.submit(b"b", max_tokens=30)
    fine = harness.submit(b"c", max_tokens=20)
    harness.tick(3)
    harness.engine.fail_rewinds(1)
    harness.engine.length(1)
    harness.scheduler.tick()
    assert isinstance(harness.error(broken), RewindFailed)
    harness.run()
    assert harness.text(fine) == "third text, long as "


def test_sequences_that_cannot_go_back_fail_also_when_they_end_in_the_same_tick() -> None:
    """E15: only the first of two ends takes the step back, and it tells of both."""
    harness = Harness(FakeEngine(continuation=REPLIES))
    ids = [harness.submit(b"a", max_tokens=100, stop=("STOP",)) for _ in range(3)]
    harness.engine.fail_rewinds(2)
    harness.run()
    assert [isinstance(harness.error(request_id), RewindFailed) for request_id in ids[:2]] == [True, True]
    assert harness.finished(ids[2]).reason is FinishReason.STOP_SEQUENCE


def test_a_sequence_that_could_not_go_back_is_forgotten_with_its_request() -> None:
    """L7: who gets its slot next is not blamed for it."""
    harness = Harness(FakeEngine(n_slots=2, continuation=REPLIES))
    ids = [harness.submit(b"a", max_tokens=100, stop=("STOP",)) for _ in range(2)]
    harness.engine.fail_rewinds(2)
    harness.run()
    assert all(isinstance(harness.error(request_id), RewindFailed) for request_id in ids)
    again = [harness.submit(b"a", max_tokens=100, stop=("STOP",)) for _ in range(2)]
    harness.run()
    assert [harness.text(request_id) for request_id in again] == ["say "] * 2
    assert all(harness.finished(request_id) for request_id in again)


# Nobody sees it.

Scenario = tuple[list[tuple[int, int]], tuple[int, int], int]
"""Prompt length and max_tokens of those who are there from the start, of one who comes late, and after which tick."""

SCENARIOS: list[Scenario] = [([(5, 24)], (3, 6), 10), ([(5, 24), (11, 18), (2, 21)], (13, 7), 9)]


def sometimes_ends(history: tuple[int, ...]) -> int:
    """Letters; a text whose prompt starts with an even byte ends after 19 or 20 tokens, prompt included."""
    ends = history[0] % 2 == 0 and len(history) == 19 + history[0] // 14
    return EOS if ends else letters(history)


def played(
    scenario: Scenario, continuation: Continuation, *, lookahead: bool, stops: list[tuple[str, ...]]
) -> tuple[Harness, list[str]]:
    """A scenario from its start to its end; the ids in order of submission."""
    initial, late, n_ticks = scenario
    engine = FakeEngine(n_slots=4, continuation=continuation)
    harness = Harness(engine, SchedulerConfig(lookahead=lookahead, prefill_chunk=8))
    ids = [
        harness.submit(nth_prompt(n, n_prompt), max_tokens=max_tokens, stop=stops[n])
        for n, (n_prompt, max_tokens) in enumerate(initial)
    ]
    harness.tick(n_ticks)
    ids.append(harness.submit(nth_prompt(len(ids), late[0]), max_tokens=late[1], stop=stops[len(ids)]))
    harness.run()
    return harness, ids


def nth_prompt(n: int, n_tokens: int) -> bytes:
    """The prompt of the n-th request."""
    return bytes((7 * n + 3 * place) % 200 for place in range(n_tokens))


def outcome(harness: Harness, request_id: str) -> tuple[str, list[int], FinishReason, str | None]:
    """What a client sees of a request."""
    end = harness.finished(request_id)
    return harness.text(request_id), harness.tokens(request_id), end.reason, end.stop_sequence


@pytest.mark.parametrize("continuation", [letters, sometimes_ends])
@pytest.mark.parametrize("has_stops", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=["one stream", "three streams"])
def test_texts_are_the_same_with_and_without_lookahead(
    scenario: Scenario, has_stops: bool, continuation: Continuation
) -> None:
    """L22: a late prompt, staggered ends, stop strings in the middle."""
    n_requests = len(scenario[0]) + 1
    no_stops: list[tuple[str, ...]] = [()] * n_requests
    harness, ids = played(scenario, continuation, lookahead=False, stops=no_stops)
    texts = [harness.text(request_id) for request_id in ids]
    # Two characters in the middle of every other text, and a string that never comes.
    stops = [
        (text[len(text) // 2 :][:2], "never") if n % 2 == 0 and len(text) > 3 else () for n, text in enumerate(texts)
    ]
    outcomes = []
    for lookahead in (False, True):
        harness, ids = played(scenario, continuation, lookahead=lookahead, stops=stops if has_stops else no_stops)
        outcomes.append([outcome(harness, request_id) for request_id in ids])
        stats = harness.scheduler.stats()
        assert (stats.lookahead_steps > 0) == lookahead
        assert (stats.lookahead_discards[Discard.FINISH] > 0) <= has_stops
    assert outcomes[0] == outcomes[1]
    reasons = {reason for _, _, reason, _ in outcomes[1]}
    assert (FinishReason.STOP_SEQUENCE in reasons) == has_stops
    assert continuation is letters or has_stops or FinishReason.EOS in reasons
