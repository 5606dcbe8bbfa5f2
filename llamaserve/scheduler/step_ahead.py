"""The step that runs ahead of its turn, and taking it back. Scheduler thread only."""

from __future__ import annotations

import logging

from llamaserve.cache.prefix_memory import PrefixMemory
from llamaserve.engine.port import Engine
from llamaserve.scheduler.stats import Counters, Discard

_logger = logging.getLogger(__name__)


class StepAhead:
    """Knows which sequences did not survive it."""

    def __init__(self, engine: Engine, prefixes: PrefixMemory, counters: Counters) -> None:
        self._engine = engine
        self._prefixes = prefixes
        self._counters = counters
        self.broken: set[int] = set()
        """Sequences that could not go back to where they were; their requests fail with their next row."""

    @property
    def is_there(self) -> bool:
        """Whether a step runs ahead."""
        return bool(self._engine.ahead_rows)

    def take_back(self, why: Discard) -> None:
        """Have it not have been, before its rows change. What another call broke by taking it back is known from here
        on, too."""
        if self._engine.ahead_rows:
            self._counters.lookahead_discards[why] += 1
        broken = self._engine.unwind()
        if broken:
            _logger.error("the sequences %s could not go back to where they were", list(broken))
            self.broken.update(broken)
            for seq_id in broken:
                self._prefixes.lose(seq_id)
