"""The cells of parked sequences, and the index of who holds which: both change together, or neither does.

Scheduler thread only. Raises EngineDown; any other failure of the engine costs what was to be kept, and is logged.
"""

from __future__ import annotations

import logging

from llamaserve.cache.prefix_index import PrefixIndex
from llamaserve.engine.port import Engine
from llamaserve.errors import EngineDown, EngineError

_logger = logging.getLogger(__name__)


class ParkedCells:
    """Ids above the slots, some of them with cells."""

    def __init__(self, engine: Engine, index: PrefixIndex) -> None:
        self.engine = engine
        self.index = index
        self._n_slots = engine.info.n_slots
        self.free_ids = list(range(engine.n_ids - 1, self._n_slots - 1, -1))
        """Ids that hold nothing."""

    def is_parked(self, holder: int) -> bool:
        """Whether an id is a parked sequence's, not a slot's."""
        return holder >= self._n_slots

    @property
    def n_parked(self) -> int:
        """Ids that hold something, or are lost."""
        return self.engine.n_ids - self._n_slots - len(self.free_ids)

    def adopt(self, seq_id: int, source: int, n_tokens: int) -> bool:
        """Have ``seq_id`` hold the first ``n_tokens`` of ``source`` too; False where the engine refuses."""
        try:
            self.engine.adopt(seq_id, source, n_tokens)
        except EngineDown:
            raise
        except EngineError as error:  # a sliding window that is gone, for instance
            _logger.info("sequence %d does not adopt %d tokens of %d: %s", seq_id, n_tokens, source, error)
            return False
        return True

    def cut(self, holder: int, n_tokens: int) -> None:
        """Have a parked sequence hold its first ``n_tokens`` only; nothing where others have them or that fails."""
        if self.index.shared_length(holder) < n_tokens and self._trim(holder, n_tokens):
            self.index.trim(holder, n_tokens)
        else:
            self.forget(holder)

    def forget(self, holder: int) -> None:
        """Free a parked sequence's cells and its id."""
        if holder in self.index:
            self.index.remove(holder)
        self.give_back(holder)

    def give_back(self, holder: int) -> None:
        """An id that is not in the index is not wanted any more, whatever it holds."""
        if self._trim(holder, 0):
            self.free_ids.append(holder)
        else:  # what is parked there next would go on from cells that nobody knows
            _logger.error("sequence id %d is lost: it cannot be emptied", holder)

    def _trim(self, seq_id: int, n_tokens: int) -> bool:
        try:
            return self.engine.trim(seq_id, n_tokens)
        except EngineDown:
            raise
        except EngineError as error:
            _logger.warning("sequence %d cannot be cut to %d tokens: %s", seq_id, n_tokens, error)
            return False
