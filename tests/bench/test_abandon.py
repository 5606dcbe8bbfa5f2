"""The scenario ``abandon``: what its figures are made of."""

from __future__ import annotations

import pytest

from bench.abandon import PARTS, Abandoned, table
from bench.leaving_client import counted

ROUND = Abandoned(idle_ttft=0.1, itl=0.02, stream_waits=(0.2, 0.14, 0.16), counted_tokens=(1, 2, 5), prefill_wait=1.1)


def test_the_slot_is_free_when_the_next_request_waits_no_longer_than_on_an_idle_server() -> None:
    assert ROUND.stream_free == pytest.approx(0.06)
    assert ROUND.prefill_free == pytest.approx(1.0)


def test_wasted_tokens_are_those_for_which_there_was_time() -> None:
    assert ROUND.wasted_tokens == pytest.approx(3.0)


def test_a_wait_shorter_than_on_an_idle_server_is_noise_around_nothing() -> None:
    assert Abandoned(0.1, 0.02, (0.09,), (), 0.05).stream_free == 0.0
    assert Abandoned(0.1, 0.02, (0.09,), (), 0.05).prefill_free == 0.0


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ("# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total 412\n", 412),
        ("llamacpp:tokens_predicted_total 1.2e+06\n", 1_200_000),
        ('llamacpp:tokens_predicted_total{model="a"} 7\n', 7),
        ("llamacpp:tokens_predicted_seconds_total 3\n", None),
        ("", None),
    ],
)
def test_the_servers_count_is_read_from_its_metrics(metrics: str, expected: int | None) -> None:
    assert counted(metrics) == expected


def test_a_server_without_a_counter_is_said_not_to_tell() -> None:
    silent = Abandoned(0.1, 0.02, (0.2,), (), 1.1)
    text = table({"llamaserve": [silent], "peer": [ROUND]}).markdown()
    assert "| stream dropped, unread tokens by the server's own count | does not tell | 2 (1..5) |  |" in text


def test_long_prompts_are_dropped_at_different_parts_of_their_computation() -> None:
    assert len(set(PARTS)) == len(PARTS)
    assert all(0 < part < 0.6 for part in PARTS)


def test_without_llamaserves_own_figures_there_are_no_ratios() -> None:
    assert table({"peer": [ROUND]}).columns == ["", "peer"]
