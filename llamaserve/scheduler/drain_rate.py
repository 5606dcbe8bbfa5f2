"""When a refused client may try again: from how fast the queue has been draining. Pure: times are passed in.

Written by the scheduler thread; any thread may ask, as the state is one tuple that is replaced whole.
"""

from __future__ import annotations

import math
from typing import NamedTuple

DEFAULT_SECONDS = 5.0
"""Per place, before anything was measured."""
MEMORY_S = 60.0
"""What happened so long ago counts a third (1/e) of what happens now."""
SHORTEST_S = 1
LONGEST_S = 60

ClockSeconds = float


class _State(NamedTuple):
    n_left: float
    """Requests that left while others waited, decayed."""
    waited_s: float
    """Seconds in which somebody waited, decayed alike."""
    at: ClockSeconds | None
    n_waiting: int


class DrainRate:
    """Requests a second that leave the queue while somebody waits. An idle queue teaches nothing about it.

    Both the requests and the time are decayed, and their quotient is the rate: it does not matter whether they leave
    one by one or in bursts, and while nobody leaves the estimate gets longer.
    """

    def __init__(self, default_s: float = DEFAULT_SECONDS) -> None:
        self._state = _State(1.0, default_s, None, 0)

    def observe(self, now: ClockSeconds, *, n_left: int, n_waiting: int) -> None:
        """Since the last call ``n_left`` requests left the queue, for a slot or for good; ``n_waiting`` wait now."""
        before = self._at(now)
        n_left_waiting = min(n_left, before.n_waiting)  # whoever came and went in between did not wait
        self._state = _State(before.n_left + n_left_waiting, before.waited_s, now, n_waiting)

    def seconds_per_place(self, now: ClockSeconds) -> float:
        """Seconds from one place to the next, not clamped."""
        state = self._at(now)
        return state.waited_s / state.n_left

    def retry_after_s(self, now: ClockSeconds, n_places: float = 1.0) -> int:
        """Whole seconds until so many places are free, 1 to 60: for ``Retry-After``."""
        seconds = min(self.seconds_per_place(now) * n_places, LONGEST_S)
        return max(SHORTEST_S, math.ceil(seconds))

    def _at(self, now: ClockSeconds) -> _State:
        """The state as of now. The clock may have gone on between two threads; then no time has passed."""
        state = self._state
        if state.at is None or state.n_waiting == 0:
            return state
        decay = math.exp(-max(0.0, now - state.at) / MEMORY_S)
        return state._replace(
            # Never 0, however long nobody has left.
            n_left=max(state.n_left * decay, 1e-9),
            waited_s=state.waited_s * decay + MEMORY_S * (1 - decay),
        )
