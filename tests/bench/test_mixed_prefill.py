"""The scenario ``mixed_prefill``: how long its prompts are on a machine."""

from __future__ import annotations

import pytest

from bench.mixed_prefill import LONG, SHORT, TOGETHER, Batch, LongCase, Speed, arms, table


def test_a_speed_goes_through_both_measured_prompts() -> None:
    speed = Speed.fitted((500, 5.5), (2000, 28.0))
    assert speed.seconds(500) == pytest.approx(5.5)
    assert speed.seconds(2000) == pytest.approx(28.0)
    assert speed.square > 0


def test_a_long_prompt_that_was_cheaper_by_the_token_is_noise() -> None:
    assert Speed.fitted((500, 5.0), (2000, 18.0)) == Speed(0.01, 0.0)


@pytest.mark.parametrize("speed", [Speed(0.01, 0.0), Speed(0.01, 1e-6)])
def test_the_longest_prompt_just_fits(speed: Speed) -> None:
    n_tokens = speed.longest(20.0)
    assert speed.seconds(n_tokens) <= 20.0 < speed.seconds(n_tokens + 1)


def test_a_fast_machine_gets_all_rounds_of_the_full_length() -> None:
    assert LongCase.fitting(Speed(1e-5, 0.0), 2, rounds=3, seconds=100.0) == LongCase(LONG, 3)


def test_a_slower_machine_gets_fewer_rounds() -> None:
    seconds_a_round = TOGETHER * 2 * 4 * 9800 * 1e-3
    assert LongCase.fitting(Speed(1e-3, 0.0), 2, rounds=3, seconds=2.5 * seconds_a_round) == LongCase(LONG, 2)


def test_a_slow_machine_gets_one_round_of_shorter_prompts_that_fit() -> None:
    case = LongCase.fitting(Speed(0.004, 0.0), 2, rounds=3, seconds=170.0)
    assert case.rounds == 1
    assert SHORT < case.n_tokens < LONG
    assert case.n_tokens % 100 == 0
    assert TOGETHER * 2 * 4 * 0.004 * case.n_tokens <= 170.0


def test_the_long_prompts_are_never_shorter_than_the_short_ones() -> None:
    assert LongCase.fitting(Speed(10.0, 0.0), 2, rounds=3, seconds=1.0) == LongCase(SHORT, 1)


def test_llama_server_is_told_a_context_that_holds_the_long_prompts() -> None:
    ours, uncapped, peer = arms("gemma3")
    assert ours.flags == ("--cache-ram", "0")
    assert uncapped.flags == (*ours.flags, "--max-batch-prefill-tokens", "0")
    assert peer.flags[-2:] == ("--override-kv", "gemma3.context_length=int:16384")


def test_the_table_compares_llamaserve_with_every_other_arm() -> None:
    batch = Batch(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, (1.0, 1.0, 1.0, 2.0))
    text = table("Title", {"llamaserve": [batch], "peer": [batch]}).markdown()
    assert "| TTFT, p95, ms | 2000 (2000..2000) | 2000 (2000..2000) | 1.00 (1.00..1.00) |" in text
    assert "| peak memory, MiB | 6 (6..6) | 6 (6..6) | 1.00 (1.00..1.00) |" in text
