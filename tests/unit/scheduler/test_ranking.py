"""Ranks that change, against a list that is sorted each time."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from llamaserve.scheduler.ranking import Ranking

KEYS = st.integers(0, 9)
CHANGES = st.lists(
    st.one_of(st.tuples(st.just("set"), KEYS, st.integers(0, 5)), st.tuples(st.just("discard"), KEYS, st.just(0))),
    max_size=200,
)


@given(CHANGES)
def test_the_lowest_comes_first_and_of_equals_that_set_first(changes: list[tuple[str, int, int]]) -> None:
    ranking: Ranking[int] = Ranking()
    model: dict[int, tuple[int, int]] = {}
    for n, (change, key, rank) in enumerate(changes):
        if change == "discard":
            ranking.discard(key)
            model.pop(key, None)
        else:
            ranking.set(key, rank)
            if key not in model or model[key][0] != rank:
                model[key] = (rank, n)
        in_order = sorted(model, key=model.__getitem__)
        assert list(ranking.in_order()) == in_order
        assert ranking.first() == ((model[in_order[0]][0], in_order[0]) if model else None)
        assert len(ranking) == len(model)
        assert (key in ranking) is (key in model)


def test_old_entries_are_swept() -> None:
    ranking: Ranking[int] = Ranking()
    for key in range(10):
        ranking.set(key, 0.0)
    for rank in range(10_000):
        ranking.set(5, 1.0 + rank)
        ranking.set(6, 1.0 / (rank + 1))
    assert len(ranking._heap) <= 40
    assert list(islice(ranking.in_order(), 2)) == [0, 1]
