"""How late the event loop is: what clients wait beside the model, when it is busy with others. Event loop only."""

from __future__ import annotations

import asyncio

from llamaserve.telemetry.histogram import Histogram, HistogramSnapshot

INTERVAL_S = 0.1
"""Between two looks: ten wake-ups a second are nothing beside those of one stream."""
BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopLag:
    """Sleeps for ``INTERVAL_S`` again and again, and keeps how much later it woke."""

    def __init__(self) -> None:
        self._histogram = Histogram(BOUNDS_S)

    async def run(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self._histogram.observe(loop.time() - due)

    def snapshot(self) -> HistogramSnapshot:
        """In seconds. Any thread."""
        return self._histogram.snapshot()
