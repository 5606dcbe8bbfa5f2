"""Who gives way when the KV cache is full, and who may come in beside those that run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_GROWTH = 32
"""Tokens each running request shall have room for before another comes in; fewer in small contexts."""


class Runner(NamedTuple):
    """A request that has a slot."""

    seq_id: int
    admitted_order: int
    """Larger is newer."""


def choose_victim(runners: Sequence[Runner]) -> int | None:
    """The sequence that gives its place up: the newest, so that the oldest always goes on to its end and frees what it
    has (S12, S13). None when one runs alone: nobody else holds its room."""
    if len(runners) < 2:
        return None
    return max(runners, key=lambda runner: runner.admitted_order).seq_id


def n_missing(*, n_cells: int, n_free: int, n_ctx: int, n_running: int) -> int:
    """Cells that a request which needs ``n_cells`` is short of beside those that run; 0 or less when it fits.

    With nobody else there always; else only with room for all to grow, or it would soon have to go again.
    """
    if n_running == 0:
        return 0
    growth = min(MOST_GROWTH, n_ctx // 16)
    return n_cells + growth * (n_running + 1) - n_free
