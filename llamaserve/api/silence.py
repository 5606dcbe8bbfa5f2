"""Notices that nothing was said for a while. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class SilenceTimer:
    """Calls a function whenever ``interval_s`` seconds have passed without a ``note``; an interval of 0 is never.

    One timer of the loop, which is set again only when it goes off: a note costs a look at the clock.
    """

    __slots__ = ("_heard_at", "_interval_s", "_loop", "_on_silence", "_timer")

    def __init__(self, interval_s: float, on_silence: Callable[[], None]) -> None:
        """Starts now, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._interval_s = interval_s
        self._on_silence = on_silence
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(interval_s, self._look) if interval_s else None

    def note(self) -> None:
        """Something was said."""
        self._heard_at = self._loop.time()

    def close(self) -> None:
        """Call nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        left_s = self._heard_at + self._interval_s - self._loop.time()
        if left_s <= 0:
            self._on_silence()
            self.note()
            left_s = self._interval_s
        self._timer = self._loop.call_later(left_s, self._look)
