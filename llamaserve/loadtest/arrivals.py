"""When the requests of an open loop are due. Pure."""

from __future__ import annotations

import random


def poisson(rate: float, n_arrivals: int, seed: int) -> list[float]:
    """Seconds after the start, the first at 0: independent gaps with a mean of ``1 / rate``, the same for one seed."""
    gaps = random.Random(f"arrivals {seed}")
    at = 0.0
    arrivals = []
    for _ in range(n_arrivals):
        arrivals.append(at)
        at += gaps.expovariate(rate)
    return arrivals
