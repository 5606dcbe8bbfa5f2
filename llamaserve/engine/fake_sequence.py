"""What the fake engine keeps of a sequence beside its cells."""

from __future__ import annotations

from llamaserve.engine.port import SequenceSpec


class FakeSequence:
    """An open sequence."""

    __slots__ = ("broken", "drawn", "n_drawn", "n_recompute", "spec")

    def __init__(self, spec: SequenceSpec) -> None:
        self.spec = spec
        self.drawn: int | None = None
        """The token drawn last; it has no cell yet."""
        self.n_drawn = 0
        self.n_recompute = 0
        """Tokens that one resumed without its cells had."""
        self.broken: str | None = None

    def is_recomputing(self, n_held: int) -> bool:
        """Whether it was resumed without its cells and, holding so many, has not got all of them back."""
        return n_held < self.n_recompute


class FakeSuspended:
    """A SuspendedSequence, with the tokens of its cells where it keeps them."""

    def __init__(self, sequence: FakeSequence, cells: tuple[int, ...] | None, bytes_per_cell: int) -> None:
        self.sequence: FakeSequence | None = sequence
        self.cells = cells
        self.n_bytes = 0 if cells is None else len(cells) * bytes_per_cell
