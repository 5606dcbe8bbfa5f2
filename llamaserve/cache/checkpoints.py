"""States that slots can go back to, where memory cannot forget just the end of a sequence.

A recurrent state has no past, and a sliding window keeps only the last tokens. So while a prompt is computed, copies
are made at places where a later prompt may part from it: the ends of messages. A copy belongs to the tokens before it:
it is dropped when the slot's tokens change there.
"""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.cache.prompt import Prompt
from llamaserve.engine.port import SavedState

MOST_PER_SLOT = 8
LEAST_APART = 32
"""Tokens between two checkpoints, and most that a prompt computes again when it is sent twice; as many as a copy must
have to be worth its place in the RAM tier."""


def checkpoint_positions(prompt: Prompt) -> tuple[int, ...]:
    """Where checkpoints of a prompt are made, ascending: a piece of it must end there.

    The end of its first message, where most conversations part, and of its last ones; and the position before its
    last token, unless a message ends shortly before it: that token is always computed, so the same prompt sent again
    goes on from there (K11).
    """
    n_useful = len(prompt.tokens) - 1
    chosen: list[int] = []
    for position in prompt.boundaries:
        if 0 < position <= n_useful and position - (chosen[-1] if chosen else 0) >= LEAST_APART:
            chosen.append(position)
    last = chosen[-1] if chosen else 0
    if n_useful - last >= LEAST_APART:
        chosen.append(n_useful)
    return (*chosen[:1], *chosen[1:][1 - MOST_PER_SLOT :])


class Checkpoints:
    """The checkpoints of all slots: at most 8 of a slot, and ``max_bytes`` of all together; those made or used longest
    ago are dropped first. Scheduler thread only.

    Raises ValueError when ``max_bytes`` is negative.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes is {max_bytes}: it must be at least 0")
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self._states: dict[tuple[int, int], SavedState] = {}
        """By slot and end; used longest ago first."""

    def ends(self, seq_id: int) -> Sequence[int]:
        """Where a slot can go back to, ascending."""
        return sorted(end for owner, end in self._states if owner == seq_id)

    def add(self, seq_id: int, state: SavedState) -> None:
        """Keep one, and drop others to stay within the limits; one that is larger than all may be is not kept."""
        self._drop(seq_id, state.end)
        if state.n_bytes > self.max_bytes:
            return
        own = [end for owner, end in self._states if owner == seq_id]
        if len(own) >= MOST_PER_SLOT:
            self._drop(seq_id, own[0])
        while self.n_bytes + state.n_bytes > self.max_bytes:
            self._drop(*next(iter(self._states)))
        self._states[seq_id, state.end] = state
        self.n_bytes += state.n_bytes

    def longest(self, seq_id: int, limit: int) -> int:
        """End of a slot's longest checkpoint of at most ``limit`` tokens; 0 = there is none."""
        return max((end for owner, end in self._states if owner == seq_id and end <= limit), default=0)

    def use(self, seq_id: int, end: int) -> SavedState:
        """The checkpoint that ends there. Raises KeyError when there is none."""
        state = self._states.pop((seq_id, end))
        self._states[seq_id, end] = state
        return state

    def cut(self, seq_id: int, n_tokens: int) -> None:
        """Drop those of a slot that only its first ``n_tokens`` are left of."""
        for end in self.ends(seq_id):
            if end > n_tokens:
                self._drop(seq_id, end)

    def _drop(self, seq_id: int, end: int) -> None:
        state = self._states.pop((seq_id, end), None)
        if state is not None:
            self.n_bytes -= state.n_bytes
