"""What steps hold while prompts and texts share the engine: through the scheduler, with an engine that takes time."""

from __future__ import annotations

import pytest

from llamaserve.config import SchedulerConfig
from llamaserve.engine.fake import FakeEngine, FakeFlag
from llamaserve.engine.port import RowError, StepPlan, StepReport, StepTime, Ticket
from llamaserve.scheduler.prefill_settings import GRANT_INTERVAL_VARIABLE, WINDOW_BUDGET_VARIABLE
from tests.unit.scheduler.harness import Harness, alone

STEP_S = 0.001
TOKEN_S = 0.001


class TimedEngine(FakeEngine):
    """Says that a step takes a millisecond, and one for each token."""

    n_tokens = 0

    def submit(self, plan: StepPlan, flag: FakeFlag | None = None, *, ahead: bool = False) -> Ticket:
        """Counts the tokens."""
        self.n_tokens = n_tokens_of(plan)
        return super().submit(plan, flag, ahead=ahead)

    @property
    def report(self) -> StepReport:
        """With the time."""
        return super().report._replace(time=StepTime(0.0, STEP_S + TOKEN_S * self.n_tokens, 0.0))


def n_tokens_of(plan: StepPlan) -> int:
    return len(plan.decode) + sum(len(piece.tokens) for piece in plan.pieces)


def piece_sizes(harness: Harness, seq_id: int) -> list[int]:
    """Of a slot's prompts."""
    pieces = [piece for plan in harness.engine.plans for piece in plan.pieces]
    return [len(piece.tokens) for piece in pieces if piece.seq_id == seq_id]


def beside_a_stream(config: SchedulerConfig, n_prompt: int, **sizes: int) -> Harness:
    """A prompt that comes when another's text has run for some time; both go on to their ends."""
    harness = Harness(TimedEngine(n_slots=2, n_ctx=8192, n_ctx_seq=8192, **sizes), config)  # type: ignore[arg-type]  # sizes are ints
    harness.submit(b"s", max_tokens=2000)
    harness.tick(50)
    harness.submit(b"p" * n_prompt, max_tokens=1)
    harness.run()
    return harness


def test_steps_beside_a_stream_hold_four_times_its_own_time() -> None:
    """Without a number: 2 ms alone, so 8 ms and 6 prompt tokens; learned from the steps."""
    harness = beside_a_stream(SchedulerConfig(target_itl=None), 3000)
    times = [STEP_S + TOKEN_S * n_tokens_of(plan) for plan in harness.engine.plans if plan.decode and plan.pieces]
    late = times[5:-1]
    assert max(late) <= 4 * 0.002 + 1e-9
    assert sorted(late)[len(late) // 2] > 2 * 0.002


@pytest.mark.parametrize(("target_itl", "most"), [(0, 511), (100, 98)])
def test_a_target_says_how_large_pieces_are(target_itl: float, most: int) -> None:
    """100 ms are the row, 98 prompt tokens and the step itself; without a target a piece fills the batch."""
    sizes = piece_sizes(beside_a_stream(SchedulerConfig(target_itl=target_itl), 3000), 1)
    assert 0.9 * most <= sorted(sizes)[len(sizes) // 2] <= most


def test_a_failed_step_teaches_nothing() -> None:
    harness = Harness(TimedEngine(), SchedulerConfig(prefill_chunk=0))
    harness.submit(b"p" * 400, max_tokens=1)
    harness.engine.fail_row(0, RowError.ABORTED)
    harness.tick()
    assert harness.scheduler._model.largest_seen == 0
    harness.run()
    assert harness.scheduler._model.largest_seen == 400


def test_a_short_prompt_does_not_wait_for_a_long_ones_end() -> None:
    """K9: it has its turn in the next step, and the long one goes on behind it."""
    harness = Harness(FakeEngine(n_slots=2, n_ctx=4096), SchedulerConfig(prefill_chunk=64, max_batch_prefill_tokens=1))
    long = harness.submit(b"l" * 1000, max_tokens=3)
    harness.tick()
    short = harness.submit(b"short", max_tokens=1)
    harness.tick()
    harness.finished(short)
    harness.run()
    assert harness.tokens(long) == alone(b"l" * 1000, 3, n_ctx=4096)[1]


def test_a_long_prompt_goes_on_while_short_ones_keep_coming() -> None:
    """K102: after 16 turns of others it has one whatever comes."""
    harness = Harness(FakeEngine(n_slots=2, n_ctx=4096), SchedulerConfig(prefill_chunk=8, max_batch_prefill_tokens=1))
    long = harness.submit(b"l" * 80, max_tokens=1)
    for _ in range(10 * 20):
        harness.submit(b"short", max_tokens=1)
        harness.tick()
    harness.finished(long)


def test_short_prompts_are_computed_together_while_nothing_decodes() -> None:
    """T5: as many as --max-batch-prefill."""
    harness = Harness(FakeEngine(n_slots=6))
    for n in range(6):
        harness.submit(bytes([n]) * 20, max_tokens=4)
    harness.tick()
    assert [len(piece.tokens) for piece in harness.engine.plans[0].pieces] == [20] * 4


def test_the_window_is_bounded_by_flag_then_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: a text that is no number counts as not set."""
    for flag, text, n_together in ((None, "40", 2), (60, "40", 3), (None, "many", 4), (None, None, 4)):
        if text is None:
            monkeypatch.delenv(WINDOW_BUDGET_VARIABLE)
        else:
            monkeypatch.setenv(WINDOW_BUDGET_VARIABLE, text)
        harness = Harness(FakeEngine(n_slots=4), SchedulerConfig(max_batch_prefill_tokens=flag))
        for n in range(4):
            harness.submit(bytes([n]) * 20, max_tokens=4)
        harness.tick()
        assert len(harness.engine.plans[0].pieces) == n_together


@pytest.mark.parametrize(
    ("flag", "text", "interval"), [(None, None, 16), (None, "3", 3), (5, "3", 5), (None, "x", 16), (0, "3", None)]
)
def test_without_mixed_steps_a_prompt_in_pieces_has_one_after_each_interval(
    monkeypatch: pytest.MonkeyPatch, flag: int | None, text: str | None, interval: int | None
) -> None:
    """K105: 0 has it wait until nothing decodes."""
    if text is not None:
        monkeypatch.setenv(GRANT_INTERVAL_VARIABLE, text)
    config = SchedulerConfig(mixed_step=False, prefill_chunk=8, prefill_grant_interval=flag)
    harness = Harness(FakeEngine(n_slots=2), config)
    harness.submit(b"s", max_tokens=60)
    harness.tick(2)
    late = harness.submit(b"p" * 24, max_tokens=1)
    harness.run()
    kinds = ["p" if plan.pieces else "d" for plan in harness.engine.plans]
    first = kinds.index("p", 1)
    second = kinds.index("p", first + 1)
    assert not any(plan.decode and plan.pieces for plan in harness.engine.plans)
    assert second - first - 1 == (kinds[first:].count("d") if interval is None else interval)
    harness.finished(late)
