"""Ratios are of neighbours in time."""

from __future__ import annotations

import pytest

from bench.harness.ratio import Ratio, paired


def test_a_ratio_compares_the_figures_of_one_round() -> None:
    """The medians of both arms alone would give 20 / 10."""
    assert paired([10.0, 20.0, 90.0], [10.0, 10.0, 30.0]) == Ratio(median=2, low=1, high=3, rounds=3)


def test_a_ratio_is_shown_with_its_spread() -> None:
    assert str(paired([9.0, 11.0], [10.0, 10.0])) == "1.00 (0.90..1.10)"


@pytest.mark.parametrize(("ours", "peers"), [([1.0], []), ([1.0, 2.0], [1.0]), ([], [])])
def test_rounds_that_have_no_partner_are_refused(ours: list[float], peers: list[float]) -> None:
    with pytest.raises(ValueError, match=f"{len(ours)} and {len(peers)} rounds"):
        paired(ours, peers)


def test_a_peer_that_did_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="is 0"):
        paired([1.0], [0.0])
