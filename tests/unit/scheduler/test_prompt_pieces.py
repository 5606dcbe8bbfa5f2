"""Which pieces a step has: windows, long prompts one after the other, and pieces beside streams (T5 to T7, T11)."""

from __future__ import annotations

import pytest

from llamaserve.scheduler.prefill_order import PromptState
from llamaserve.scheduler.prompt_pieces import PrefillLimits, choose_pieces
from llamaserve.scheduler.tick_policy import StepKind
from tests.unit.scheduler.prompt_line import PromptLine

LIMITS = PrefillLimits(n_batch=2048)
UNCAPPED = PrefillLimits(n_batch=2048, window_budget=0)


def line_of(limits: PrefillLimits, *lengths: int) -> PromptLine:
    line = PromptLine(limits)
    for seq_id, length in enumerate(lengths):
        line.add(seq_id, length)
    return line


def run(line: PromptLine, budget: int = 512) -> list[int]:
    """Prompt tokens computed by all until each prompt was done, in the order of the ends."""
    while line.left:
        line.step(budget)
    return list(line.done_at.values())


def test_four_prompts_of_520_tokens_are_one_window_of_two_calls() -> None:
    """K101, T3: n_batch bounds a call, not the window."""
    line = line_of(LIMITS, 520, 520, 520, 520)
    assert line.step() == [(0, 520), (1, 520), (2, 520), (3, 488)]
    assert line.step() == [(3, 32)]


def test_a_budget_of_2048_computes_them_as_three_and_one() -> None:
    """K101."""
    line = line_of(PrefillLimits(n_batch=2048, window_budget=2048), 520, 520, 520, 520)
    assert line.step() == [(0, 520), (1, 520), (2, 520)]
    assert line.step() == [(3, 512)]


def test_the_short_case_is_as_without_a_cap_and_even() -> None:
    """T11, the second table: first tokens within 2 % of each other, and no later than uncapped."""
    capped, uncapped = run(line_of(LIMITS, *[520] * 4)), run(line_of(UNCAPPED, *[520] * 4))
    assert capped == [2048, 2048, 2048, 2080]
    assert uncapped == [2080, 2080, 2080, 2080]


def test_long_prompts_answer_one_after_the_other_and_the_first_three_times_earlier_than_uncapped() -> None:
    """T11, the first table: 4 prompts of 9,800 tokens."""
    capped, uncapped = run(line_of(LIMITS, *[9800] * 4)), run(line_of(UNCAPPED, *[9800] * 4))
    assert capped[-1] == uncapped[-1] == 4 * 9800
    assert uncapped[0] == uncapped[-1]
    assert uncapped[0] / capped[0] > 3
    steps = [after - before for before, after in zip([0, *capped], capped, strict=False)]
    assert min(steps) > 0.7 * 9800


def test_a_long_prompt_alone_goes_by_the_chunk() -> None:
    """T7."""
    assert line_of(LIMITS, 9000).step() == [(0, 512)]
    assert line_of(PrefillLimits(n_batch=2048, prefill_chunk=0), 9000).step() == [(0, 2048)]
    assert line_of(PrefillLimits(n_batch=256), 9000).step() == [(0, 256)]


def test_a_long_head_and_a_short_one_both_end() -> None:
    """K102."""
    assert run(line_of(LIMITS, 9000, 100)) == [100, 9100]
    waited = line_of(LIMITS, 9000, 100, 100)
    waited.waited[0] = 16
    assert waited.step() == [(0, 512)]
    assert waited.step() == [(1, 100), (2, 100)]


def test_a_window_has_no_more_rows_than_it_may() -> None:
    limits = PrefillLimits(n_batch=2048, max_rows=2)
    assert line_of(limits, 100, 100, 100).step() == [(0, 100), (1, 100)]
    assert line_of(PrefillLimits(n_batch=2048, max_rows=1), 100, 600, 100).step() == [(0, 100)]


def test_a_piece_ends_at_a_boundary_in_a_window_too() -> None:
    """E22."""
    prompts = [PromptState(0, 100, 0, 0, 40), PromptState(1, 100, 0, 1, 100)]
    assert choose_pieces(prompts, LIMITS, kind=StepKind.MIXED, n_decoding=0, budget=0) == [(0, 40), (1, 100)]


def test_beside_streams_all_pieces_stay_within_the_budget() -> None:
    line = line_of(LIMITS, 520, 9000)
    line.n_decoding = 3
    assert line.step(budget=530) == [(0, 512), (1, 18)]
    assert line.step(budget=0) == [(0, 1)]
    crowded = PrefillLimits(n_batch=8)
    line = line_of(crowded, 520)
    line.n_decoding = 6
    assert line.step(budget=512) == [(0, 2)]


@pytest.mark.parametrize("n_decoding", [0, 3])
def test_where_steps_are_not_mixed_a_prompt_goes_alone(n_decoding: int) -> None:
    line = line_of(LIMITS, 9000, 100, 100)
    line.kind, line.n_decoding = StepKind.PROMPT, n_decoding
    assert line.step() == [(1, 100)]
    assert line.step() == [(2, 100)]
    assert line.step() == [(0, 512)]


def test_a_decode_step_has_no_piece_and_no_prompt_makes_none() -> None:
    prompts = [PromptState(0, 100, 0, 0, 100)]
    assert choose_pieces(prompts, LIMITS, kind=StepKind.DECODE, n_decoding=1, budget=512) == []
    for kind in StepKind:
        assert choose_pieces([], LIMITS, kind=kind, n_decoding=0, budget=512) == []


def test_an_uncapped_window_takes_no_more_calls_than_its_tokens_need() -> None:
    line = line_of(UNCAPPED, 1900, 2196)
    assert [sum(piece.n_tokens for piece in line.step()) for _ in range(2)] == [2048, 2048]
    assert not line.left
