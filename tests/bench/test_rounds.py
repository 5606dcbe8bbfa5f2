"""Arms take turns, and an arm that did not engage has no result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.harness.arms import LLAMA_SERVER, LLAMASERVE, Arm
from bench.harness.rounds import NotEngaged, alternate, alternate_later


def test_arms_take_turns_within_each_round() -> None:
    turns: list[tuple[str, int]] = []

    def run_one(arm: Arm, round_number: int) -> int:
        turns.append((arm.name, round_number))
        return len(turns)

    results = alternate((LLAMASERVE, LLAMA_SERVER), 2, run_one)
    assert turns == [("llamaserve", 0), ("llama-server", 0), ("llamaserve", 1), ("llama-server", 1)]
    assert results == {"llamaserve": [1, 3], "llama-server": [2, 4]}


def test_an_arm_that_does_not_engage_loses_its_results_and_its_turns() -> None:
    turns: list[tuple[str, int]] = []

    def run_one(arm: Arm, round_number: int) -> int:
        turns.append((arm.name, round_number))
        if arm is LLAMASERVE and round_number == 1:
            raise NotEngaged("no prefix was shared")
        return round_number

    not_engaged: list[str] = []
    results = alternate((LLAMASERVE, LLAMA_SERVER), 3, run_one, not_engaged)
    assert results == {"llama-server": [0, 1, 2]}
    assert not_engaged == ["llamaserve: no prefix was shared"]
    assert ("llamaserve", 2) not in turns


def test_without_a_list_an_arm_that_does_not_engage_ends_the_run() -> None:
    def run_one(_arm: Arm, _round_number: int) -> None:
        raise NotEngaged("nothing was reused")

    with pytest.raises(NotEngaged, match="nothing was reused"):
        alternate((LLAMASERVE,), 1, run_one)


def test_other_errors_end_the_run() -> None:
    def run_one(_arm: Arm, _round_number: int) -> None:
        raise RuntimeError("the server died")

    with pytest.raises(RuntimeError, match="the server died"):
        alternate((LLAMASERVE,), 1, run_one, [])


def test_two_arms_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        alternate((LLAMASERVE, replace(LLAMASERVE, flags=("-t", "1"))), 1, lambda _arm, _round_number: None)


def test_an_arm_that_takes_minutes_runs_in_the_first_round_only() -> None:
    slow = replace(LLAMA_SERVER, name="slow")
    turns: list[tuple[str, int]] = []

    def run_one(arm: Arm, round_number: int) -> int:
        turns.append((arm.name, round_number))
        return round_number

    results = alternate_later((LLAMASERVE, slow), (LLAMASERVE,), 3, run_one)
    assert turns == [("llamaserve", 0), ("slow", 0), ("llamaserve", 1), ("llamaserve", 2)]
    assert results == {"llamaserve": [0, 1, 2], "slow": [0]}


@pytest.mark.parametrize("failing_round", [0, 1])
def test_an_arm_that_does_not_engage_in_any_round_has_no_result(failing_round: int) -> None:
    def run_one(arm: Arm, round_number: int) -> int:
        if arm is LLAMASERVE and round_number == failing_round:
            raise NotEngaged("why")
        return round_number

    not_engaged: list[str] = []
    results = alternate_later((LLAMASERVE, LLAMA_SERVER), (LLAMASERVE, LLAMA_SERVER), 2, run_one, not_engaged)
    assert results == {"llama-server": [0, 1]}
    assert not_engaged == ["llamaserve: why"]
