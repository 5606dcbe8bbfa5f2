"""Arms take turns, so that a ratio compares neighbours in time: other guests of the host slow a machine for minutes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar


class Named(Protocol):
    """What can take turns: an arm, or the limit."""

    @property
    def name(self) -> str:
        """What tables call it."""


class NotEngaged(Exception):
    """An arm ran without what its name promises (nothing came from its cache, say), so it has no figure; says why."""


N = TypeVar("N", bound=Named)
T = TypeVar("T")


def alternate(
    arms: Sequence[N], rounds: int, run_one: Callable[[N, int], T], not_engaged: list[str] | None = None
) -> dict[str, list[T]]:
    """Run every arm once a round, A B A B; the results by arm name, one a round, in order.

    ``run_one`` gets the arm and the round, from 0. When it raises NotEngaged, ``not_engaged`` gets "name: why", and the
    arm loses its results and its further turns; without a list the exception goes on. Progress goes to stderr. Raises
    ValueError for two arms of one name.
    """
    results: dict[str, list[T]] = {arm.name: [] for arm in arms}
    if len(results) != len(arms):
        raise ValueError(f"two arms have the same name: {', '.join(arm.name for arm in arms)}")
    for round_number in range(rounds):
        for arm in [arm for arm in arms if arm.name in results]:
            print(f"round {round_number + 1} of {rounds}: {arm.name} ...", end="", file=sys.stderr, flush=True)
            start = time.perf_counter()
            try:
                results[arm.name].append(run_one(arm, round_number))
            except NotEngaged as why:
                if not_engaged is None:
                    raise
                not_engaged.append(f"{arm.name}: {why}")
                del results[arm.name]
                print(" did not engage", end="", file=sys.stderr)
            print(f" {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    return results


def alternate_later(
    arms: Sequence[N],
    later: Sequence[N],
    rounds: int,
    run_one: Callable[[N, int], T],
    not_engaged: list[str] | None = None,
) -> dict[str, list[T]]:
    """As ``alternate``, but only ``later`` take part after the first round: an arm that takes minutes where the others
    take seconds has one result."""
    results = alternate(arms, 1, run_one, not_engaged)
    remaining = [arm for arm in later if arm.name in results]
    more = alternate(remaining, rounds - 1, lambda arm, round_number: run_one(arm, round_number + 1), not_engaged)
    for arm in remaining:
        if arm.name in more:
            results[arm.name] += more[arm.name]
        else:
            del results[arm.name]
    return results
