"""Fair shares: what accounts get, what they owe, and when they are forgotten."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.scheduler.expected_output import FIRST_GUESS, ExpectedOutput
from llamaserve.scheduler.fair_share import FairShare


def shares(max_idle: int = 100) -> FairShare[str]:
    return FairShare(max_idle=max_idle)


def serve(share: FairShare[str], n_admissions: int, n_tokens: int = 100) -> list[str]:
    """Who is next; all wait on."""
    served = []
    for _ in range(n_admissions):
        key = next(share.in_order())
        share.join(key)
        share.admit(key, n_tokens)
        share.settle(key, n_tokens, estimate=n_tokens)
        served.append(key)
    return served


def test_equal_accounts_take_turns() -> None:
    share = shares()
    share.join("a")
    share.join("b")
    assert serve(share, 6) == ["a", "b", "a", "b", "a", "b"]


def test_who_was_away_has_no_credit_and_waits_for_nobody() -> None:
    share = shares()
    share.join("a")
    serve(share, 1000)
    share.join("b")
    assert serve(share, 5) in (["a", "b", "a", "b", "a"], ["b", "a", "b", "a", "b"])


def test_nor_has_who_only_ran_meanwhile() -> None:
    """A request that runs for an hour gives its account no credit for those it did not send."""
    share = shares()
    share.join("b")
    share.admit("b", 100)
    share.join("a")
    serve(share, 1000)
    share.join("b")
    assert serve(share, 5) in (["a", "b", "a", "b", "a"], ["b", "a", "b", "a", "b"], ["a", "a", "b", "a", "b"])


def test_nor_has_who_comes_when_nobody_waits() -> None:
    share = shares()
    share.join("c")
    for _ in range(1000):
        share.join("a")
        share.quit("c")
        share.admit("a", 100)
        share.settle("a", 100, estimate=100)
        share.join("c")
    share.quit("c")
    share.join("b")
    share.join("a")
    assert serve(share, 5) == ["b", "a", "b", "a", "b"]


def test_debt_outlasts_a_pause() -> None:
    """Going away for a moment does not help."""
    share = shares()
    share.join("a")
    share.join("b")
    share.admit("a", 1000)
    share.settle("a", 1000, estimate=1000)
    share.join("a")
    assert serve(share, 11) == [*"b" * 10, "a"]


def test_an_estimate_that_was_too_high_is_given_back() -> None:
    share = shares()
    for key in "ab":
        share.join(key)
        share.join(key)
    share.admit("a", 1000)
    share.settle("a", 100, estimate=1000)
    share.admit("b", 200)
    share.settle("b", 200, estimate=200)
    assert list(share.in_order()) == ["a", "b"]


def test_an_estimate_can_be_corrected_on_the_way() -> None:
    share = shares()
    for key in "ab":
        share.join(key)
        share.join(key)
    share.admit("a", 1000)
    share.admit("b", 500)
    assert list(share.in_order()) == ["b", "a"]
    share.correct("a", -900)
    assert list(share.in_order()) == ["a", "b"]
    share.settle("a", 700, estimate=100)
    assert list(share.in_order()) == ["b", "a"]


def test_what_others_get_back_does_not_delay_a_newcomer() -> None:
    """They were charged far too much when the newcomer came."""
    share = shares()
    for _ in range(100):
        share.join("a")
    for _ in range(4):
        share.admit("a", 1000)
    share.join("b")
    share.settle("a", 1, estimate=1000)
    share.settle("a", 1, estimate=1000)
    assert next(share.in_order()) == "b"


def test_an_account_is_forgotten_when_the_others_have_caught_up() -> None:
    share = shares()
    share.join("a")
    share.join("b")
    share.join("b")
    share.admit("a", 250)
    assert not share.is_idle("a")
    share.settle("a", 250, estimate=250)
    assert share.is_idle("a")
    assert "a" in share
    serve(share, 2)
    assert "a" in share
    serve(share, 1)
    assert "a" not in share
    assert share.is_idle("a")


def test_one_that_never_ran_is_forgotten_at_once() -> None:
    share = shares()
    share.join("a")
    share.quit("a")
    assert len(share) == 0


def test_accounts_without_requests_are_bounded() -> None:
    """A million keys used once: those with the least debt go first."""
    share = shares(max_idle=50)
    for n in range(1000):
        share.join(f"k{n}")
        share.admit(f"k{n}", n + 1)
        share.settle(f"k{n}", n + 1, estimate=n + 1)
    assert len(share) == 50
    assert "k999" in share
    assert "k0" not in share


@given(
    seed=st.integers(0, 2**32),
    weights=st.lists(st.sampled_from([0.25, 1.0, 3.0]), min_size=2, max_size=5),
    n_slots=st.integers(1, 4),
)
def test_those_who_always_wait_get_by_weight(seed: int, weights: list[float], n_slots: int) -> None:
    """Whatever their requests cost and however wrong the estimates are: the difference does not grow with time."""
    draw = random.Random(seed)
    share = shares()
    keys = [str(n) for n in range(len(weights))]
    weight_of = dict(zip(keys, weights, strict=True))
    largest = {key: draw.choice([1, 50, 1000]) for key in keys}
    for key in keys:
        share.join(key, weight_of[key])
    got = dict.fromkeys(keys, 0.0)
    running: deque[tuple[str, int, int]] = deque()
    for _ in range(500):
        while len(running) < n_slots:
            key = next(share.in_order())
            cost, estimate = draw.randint(1, largest[key]), draw.randint(0, 2 * largest[key])
            share.join(key, weight_of[key])
            share.admit(key, estimate)
            running.append((key, cost, estimate))
        running.rotate(draw.randrange(n_slots))
        key, cost, estimate = running.popleft()
        share.settle(key, cost, estimate=estimate)
        got[key] += cost / weight_of[key]
    # Of each: the requests that run at a time and one, at the most they cost or were taken for.
    slack = {key: (n_slots + 1) * 2 * largest[key] / weight_of[key] for key in keys}
    for a in keys:
        for b in keys:
            assert got[a] - got[b] <= slack[a] + slack[b]


def test_expected_output_follows_what_requests_draw() -> None:
    output = ExpectedOutput()
    assert output.tokens(None) == FIRST_GUESS
    assert output.tokens(10) == 10
    for _ in range(200):
        output.observe(40)
    assert output.tokens(None) == pytest.approx(40, abs=0.1)
    output.observe(4000)
    assert 40 < output.tokens(None) < 400
