"""Sweeps as flags write them, and when the requests of an open loop are due."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from llamaserve.errors import ConfigError
from llamaserve.loadtest.arrivals import poisson
from llamaserve.loadtest.load import ClosedLoad, OpenLoad, parse_concurrencies, parse_rates


def test_a_list_is_a_sweep_in_its_order() -> None:
    assert parse_concurrencies("4") == (ClosedLoad(4),)
    assert parse_concurrencies("8, 1,2") == (ClosedLoad(8), ClosedLoad(1), ClosedLoad(2))
    assert parse_rates("0.5,2") == (OpenLoad(0.5), OpenLoad(2))


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1,,2", "1,", "x", "10001", "9" * 5000, "1e3"])
def test_a_bad_concurrency_is_named_with_the_limits(text: str) -> None:
    with pytest.raises(ConfigError, match="from 1 to 10000"):
        parse_concurrencies(text)


@pytest.mark.parametrize("text", ["", "0", "-0.5", "nan", "inf", "1,,2", "x"])
def test_a_bad_rate_is_named_with_the_limit(text: str) -> None:
    with pytest.raises(ConfigError, match=r"from 0\.001 to 100000"):
        parse_rates(text)


def test_titles_name_the_load() -> None:
    assert (ClosedLoad(4).title, OpenLoad(0.5).title) == ("concurrency 4", "0.5 requests/s")
    assert (ClosedLoad(4).short_title, OpenLoad(0.5).short_title) == ("4 at once", "0.5/s")


def test_arrivals_are_the_same_for_one_seed_and_others_for_another() -> None:
    assert poisson(2.0, 50, seed=1) == poisson(2.0, 50, seed=1)
    assert poisson(2.0, 50, seed=1) != poisson(2.0, 50, seed=2)


def test_arrivals_do_not_depend_on_pythons_own_random_state() -> None:
    before = poisson(2.0, 5, seed=1)
    random.seed(99)
    assert poisson(2.0, 5, seed=1) == before


def test_arrivals_have_exponential_gaps_of_the_right_mean() -> None:
    """An exponential distribution's deviation is its mean; e^-1 of the gaps are longer than that."""
    rate, n = 4.0, 20_000
    arrivals = poisson(rate, n, seed=0)
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert arrivals[0] == 0
    assert arrivals == sorted(arrivals)
    assert mean == pytest.approx(1 / rate, rel=0.03)
    assert deviation == pytest.approx(1 / rate, rel=0.03)
    assert sum(gap > 1 / rate for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.015)


def test_twice_the_rate_is_half_the_time() -> None:
    slow, fast = poisson(1.0, 100, seed=3), poisson(2.0, 100, seed=3)
    assert fast == pytest.approx([at / 2 for at in slow])
