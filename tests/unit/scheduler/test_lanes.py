"""Lanes: their names, and whose turn it is."""

from __future__ import annotations

from itertools import combinations

import pytest

from llamaserve.errors import BadRequest
from llamaserve.request import Lane
from llamaserve.scheduler.lane_aging import LANE_BOUNDS, lane_order, skips_after
from llamaserve.scheduler.lanes import LANES, parse_field, parse_header

HIGH, NORMAL, LOW = LANES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("urgent", NORMAL),
        ("", NORMAL),
        (" HIGH ", HIGH),
        (None, NORMAL),
        ("high", HIGH),
        ("\tLow\r", LOW),
        ("Normal", NORMAL),
        ("high, low", NORMAL),
        ("1", NORMAL),
    ],
)
def test_a_header_that_names_no_lane_means_normal(text: str | None, expected: Lane) -> None:
    """K142, G19."""
    assert parse_header(text) is expected


@pytest.mark.parametrize(("value", "expected"), [(None, NORMAL), ("high", HIGH), ("normal", NORMAL), ("low", LOW)])
def test_a_field_names_a_lane(value: object, expected: Lane) -> None:
    assert parse_field(value) is expected


@pytest.mark.parametrize("value", ["urgent", "", " high", "HIGH", 1, 0, True, ["high"], {"high": 1}, [10**5000]])
def test_a_field_that_names_none_is_refused_with_value_and_choice(value: object) -> None:
    with pytest.raises(BadRequest, match=r"priority is .*: it must be one of high, normal, low") as caught:
        parse_field(value)
    assert caught.value.param == "priority"


def test_a_lane_is_capped_by_a_less_urgent_one_only() -> None:
    """G19."""
    assert [lane.at_most(NORMAL) for lane in LANES] == [NORMAL, NORMAL, LOW]
    assert [lane.at_most(HIGH) for lane in LANES] == [HIGH, NORMAL, LOW]


def admitted_lanes(waiting: list[Lane], n_admissions: int, *, ages: bool = True) -> list[Lane]:
    """Who is admitted while these lanes never get empty."""
    skips: dict[Lane, int] = {}
    lanes = []
    for _ in range(n_admissions):
        lane = lane_order(skips, waiting, ages=ages)[0]
        skips = skips_after(skips, lane, waiting)
        lanes.append(lane)
    return lanes


def test_under_a_flood_of_high_normal_is_admitted_at_decision_3_exactly() -> None:
    """K103."""
    assert admitted_lanes([HIGH, NORMAL], 6) == [HIGH, HIGH, NORMAL] * 2


def test_low_ages_too_and_without_aging_it_starves() -> None:
    """K104."""
    assert admitted_lanes([HIGH, LOW], 7) == [HIGH] * 6 + [LOW]
    assert admitted_lanes([HIGH, NORMAL, LOW], 8) == [HIGH, HIGH, NORMAL] * 2 + [LOW, HIGH]
    assert set(admitted_lanes(list(LANES), 1000, ages=False)) == {HIGH}


def test_a_lane_that_waited_begins_to_age_again_when_it_is_empty() -> None:
    skips = skips_after({}, HIGH, [HIGH, NORMAL])
    skips = skips_after(skips, HIGH, [HIGH])
    assert skips_after(skips, HIGH, [HIGH, NORMAL]) == {NORMAL: 1}


def test_the_other_lanes_follow_for_the_case_that_nobody_can_begin() -> None:
    assert lane_order({NORMAL: 2, LOW: 6}, LANES) == [NORMAL, LOW, HIGH]
    assert lane_order({NORMAL: 1, LOW: 6}, LANES) == [LOW, HIGH, NORMAL]
    assert lane_order({}, [LOW]) == [LOW]
    assert lane_order({}, []) == []


@pytest.mark.parametrize("lane", LANES)
def test_no_lane_starves_whatever_comes(lane: Lane) -> None:
    """K103, K104, exhaustive: an adversary decides before each admission in which other lanes somebody waits. From
    every state that can be reached the lane is admitted within its bound, and the bound is reached."""
    others = [other for other in LANES if other is not lane]
    crowds = [
        [one for one in LANES if one is lane or one in more] for n in range(3) for more in combinations(others, n)
    ]
    everything = [[one for one in LANES if one in some] for n in range(4) for some in combinations(LANES, n)]
    # Every state from which somebody can begin to wait in the lane.
    todo: list[dict[Lane, int]] = [{}]
    seen = set()
    starts = []
    while todo:
        skips = todo.pop()
        key = tuple(skips.get(one, 0) for one in LANES)
        if key in seen:
            continue
        seen.add(key)
        starts.append(skips)
        todo += [skips_after(skips, lane_order(skips, waiting)[0], waiting) for waiting in everything if waiting]
    longest = 0
    runs = [(skips | {lane: 0}, 0) for skips in starts] + [(skips, 0) for skips in starts]
    while runs:
        skips, n_admissions = runs.pop()
        n_admissions += 1
        longest = max(longest, n_admissions)
        assert n_admissions <= LANE_BOUNDS[lane]
        for waiting in crowds:
            admitted = lane_order(skips, waiting)[0]
            if admitted is not lane:
                runs.append((skips_after(skips, admitted, waiting), n_admissions))
    assert longest == LANE_BOUNDS[lane]
