"""Who gives way when the KV cache is full. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class FullRow(NamedTuple):
    """A row the engine found no cell for."""

    seq_id: int
    n_cells: int
    """Cells its sequence holds."""
    admitted_order: int
    """Larger is newer."""


def choose_victim(rows: Sequence[FullRow]) -> int:
    """The sequence that ends so that the others can go on: the one that holds most (S12, S13), the newest of equals.

    One for each full step: its cells may be all the others need, and they lost nothing by waiting a tick.
    ``rows`` is not empty.
    """
    return max(rows, key=lambda row: (row.n_cells, row.admitted_order)).seq_id
