"""What idle slots hold, and the ways to have one hold the beginning of a prompt.

The tokens noted of an idle slot are exactly those the engine has under its id. After everything that changes them the
engine is asked how many there are; a slot with another number is emptied: its prompt is computed rather than continued
from tokens nobody knows (K30, K41).

Scheduler thread only, but for ``tokens``.
"""

from __future__ import annotations

import enum
import logging
from array import array
from collections.abc import Callable
from typing import NamedTuple

from llamaserve.cache.checkpoints import Checkpoints
from llamaserve.cache.prefix_memory import PrefixCounters
from llamaserve.cache.prompt import TOKEN_TYPE, Prompt
from llamaserve.cache.saved_prefix import MIN_KEEP, MIN_TOKENS
from llamaserve.cache.tiers import TierHit, Tiers
from llamaserve.engine.port import Engine, MemoryKind
from llamaserve.errors import EngineDown

MOST_TO_COPY = 512 << 20
"""Most bytes copied of a slot while others are in use: about 80 ms, at the 7 GB/s of the default model on two cores."""

_NO_TOKENS: array[int] = array(TOKEN_TYPE)

_logger = logging.getLogger(__name__)


class _Kind(enum.IntEnum):
    """Where a prefix may come from; of equally long ones the cheapest is taken."""

    OWN = 0
    CHECKPOINT = 1
    COPY = 2


class _Source(NamedTuple):
    n_tokens: int
    kind: _Kind
    hit: TierHit | None = None


class SlotCells:
    """The tokens of idle slots by sequence id, and their checkpoints; what gets lost is offered to the tiers first.

    A copy is always of the whole sequence, as such memory gives out no part of one; it is made between two steps, while
    those that run wait. So it is made where at least MIN_KEEP of it would be lost, and while others run it is at most
    MOST_TO_COPY. ``make_room(seq_id, n_cells)`` has room for so many cells in a slot once that is emptied, at the cost
    of other idle slots; where it says there is none, all of them are as they were.
    """

    def __init__(
        self,
        engine: Engine,
        tiers: Tiers,
        counters: PrefixCounters,
        *,
        checkpoint_bytes: int,
        make_room: Callable[[int, int], bool],
    ) -> None:
        info = engine.info
        self.can_trim = info.memory is MemoryKind.KV
        """Whether a sequence can be cut anywhere."""
        self._is_all_or_nothing = info.memory in (MemoryKind.RECURRENT, MemoryKind.HYBRID)
        self._engine = engine
        self._tiers = tiers
        self._counters = counters
        self._make_room = make_room
        self._tokens = [_NO_TOKENS] * info.n_slots
        self._scopes = [""] * info.n_slots
        self._lent: set[int] = set()
        """Slots in use."""
        self._checkpoints = Checkpoints(checkpoint_bytes)

    def tokens(self, seq_id: int) -> array[int]:
        """What an idle slot holds. Any thread."""
        return self._tokens[seq_id]

    def scope(self, seq_id: int) -> str:
        """Whose tokens these are."""
        return self._scopes[seq_id]

    def n_usable(self, seq_id: int, n_common: int) -> int:
        """Of the tokens in common with a prompt, those a slot can probably keep while it forgets the rest: whether a
        sliding window reaches back far enough only shows when it is tried."""
        if not self._is_all_or_nothing or n_common == len(self._tokens[seq_id]):
            return n_common
        return self._checkpoints.longest(seq_id, n_common)

    # To hold the beginning of a prompt.

    def reuse(self, seq_id: int, prompt: Prompt, n_common: int) -> int:
        """Have a slot, which has ``n_common`` tokens of a prompt, hold the longest prefix of it there is: of its own
        tokens, back to a checkpoint, or from a copy. Its length; 0 = nothing. Raises EngineDown."""
        n_checkpoint = self._checkpoints.longest(seq_id, n_common)
        sources = [_Source(n_common, _Kind.OWN), _Source(n_checkpoint, _Kind.CHECKPOINT)]
        is_sure = self.can_trim or n_common == len(self._tokens[seq_id])
        n_sure = n_common if is_sure else n_checkpoint
        hit = self._tiers.best(prompt.scope, prompt.tokens, n_sure, prompt.n_reusable)
        if hit is not None:
            sources.append(_Source(hit.n_tokens, _Kind.COPY, hit))
        for source in sorted(sources, key=lambda source: (-source.n_tokens, source.kind)):
            if source.n_tokens > 0 and self._take(seq_id, source):
                return source.n_tokens
        self.empty(seq_id)
        return 0

    def _take(self, seq_id: int, source: _Source) -> bool:
        if source.hit is not None:
            return self._restore(seq_id, source.hit)
        n_tokens = source.n_tokens
        if n_tokens > len(self._tokens[seq_id]):  # a source that failed has emptied it
            return False
        works = self._cut(seq_id, n_tokens) if source.kind is _Kind.OWN else self._go_back(seq_id, n_tokens)
        if works:
            self._counters.tokens_from_cells += n_tokens
        return works

    def _cut(self, seq_id: int, n_tokens: int) -> bool:
        if n_tokens == len(self._tokens[seq_id]):
            return self._settle(seq_id, n_tokens, works=True)
        self._offer(seq_id, n_tokens)
        works = self._ask("cut", seq_id, lambda: self._engine.trim(seq_id, n_tokens))
        return self._settle(seq_id, n_tokens, works=works is True)

    def _go_back(self, seq_id: int, end: int) -> bool:
        self._offer(seq_id, end)
        checkpoint = self._checkpoints.use(seq_id, end)
        works = self._ask("put back", seq_id, lambda: self._engine.go_back(seq_id, checkpoint))
        if self._settle(seq_id, end, works=works is True):
            return True
        self.forget(seq_id)  # its cells may be of two states now
        return False

    def _restore(self, seq_id: int, hit: TierHit) -> bool:
        """Have a slot hold the beginning of a copy instead of what it holds. Without room for it nothing is lost."""
        saved = hit.saved
        if not self._make_room(seq_id, len(saved.tokens)):
            return False
        self.empty(seq_id)
        works = self._ask("restored", seq_id, lambda: self._engine.restore(seq_id, saved.state))
        if works is False and self._engine.length(seq_id) == 0:
            return False  # less room than the books say; it may do another time
        self._tokens[seq_id], self._scopes[seq_id] = saved.tokens, saved.scope
        if not self._settle(seq_id, len(saved.tokens), works=works is True) or not self._cut(seq_id, hit.n_tokens):
            self.forget(seq_id)
            self._tiers.discard(hit)
            return False
        self._tiers.took(hit)
        self._counters.restores += 1
        if hit.is_from_disk:
            self._counters.tokens_from_disk += hit.n_tokens
        else:
            self._counters.tokens_from_ram += hit.n_tokens
        return True

    def _ask(self, what: str, seq_id: int, call: Callable[[], bool]) -> bool | None:
        """The engine's answer; None when it failed."""
        try:
            return call()
        except EngineDown:
            raise
        except Exception:
            _logger.exception("sequence %d could not be %s", seq_id, what)
            return None

    def _settle(self, seq_id: int, n_tokens: int, *, works: bool) -> bool:
        """Note that a slot holds its first ``n_tokens`` now, if it does. Otherwise it holds the same as before, or
        nothing."""
        n_in_memory = self._engine.length(seq_id)
        if works and n_in_memory == n_tokens:
            if n_tokens < len(self._tokens[seq_id]):
                self._tokens[seq_id] = self._tokens[seq_id][:n_tokens]
            self._checkpoints.cut(seq_id, n_tokens)
            return True
        if n_in_memory != len(self._tokens[seq_id]):
            if n_in_memory:
                _logger.error("sequence %d holds %d tokens, not %d: emptied", seq_id, n_in_memory, n_tokens)
            self.forget(seq_id)
        return False

    # To lose what it holds.

    def _offer(self, seq_id: int, n_kept: int) -> None:
        """Have the tiers copy what a slot holds, if enough of it is about to get lost."""
        tokens = self._tokens[seq_id]
        if len(tokens) - n_kept >= max(MIN_TOKENS, MIN_KEEP * len(tokens)):
            most_bytes = MOST_TO_COPY if self._lent - {seq_id} else None
            self._tiers.offer(self._scopes[seq_id], tokens, 0, seq_id, most_bytes)

    def empty(self, seq_id: int) -> None:
        """Have a slot hold nothing, for another's sake. Raises EngineDown."""
        if self._tokens[seq_id]:
            self._offer(seq_id, 0)
            self._count_eviction(seq_id)
        self.forget(seq_id)

    def purged(self, seq_id: int) -> None:
        """The engine has emptied a slot."""
        if self._tokens[seq_id]:
            self._count_eviction(seq_id)
        self.lost(seq_id)

    def forget(self, seq_id: int) -> None:
        """Have a slot that is not open hold nothing. Raises EngineDown."""
        self.lost(seq_id)
        if self._engine.length(seq_id):
            self._ask("emptied", seq_id, lambda: self._engine.trim(seq_id, 0))

    def lost(self, seq_id: int) -> None:
        """The engine holds nothing of it any more."""
        self._tokens[seq_id] = _NO_TOKENS
        self._checkpoints.cut(seq_id, 0)

    def _count_eviction(self, seq_id: int) -> None:
        self._counters.evictions += 1
        self._counters.evicted_tokens += len(self._tokens[seq_id])

    # While a request has it, and when that leaves.

    def lend(self, seq_id: int) -> None:
        """A request goes on from what the slot holds: it is not idle, its checkpoints stay."""
        self._tokens[seq_id] = _NO_TOKENS
        self._lent.add(seq_id)

    def give_back(self, seq_id: int) -> None:
        """The request has left, or was suspended."""
        self._lent.discard(seq_id)

    def make_checkpoint(self, seq_id: int) -> None:
        """Keep a checkpoint of a sequence in use at its present length, if that works."""
        try:
            state = self._engine.checkpoint(seq_id, self._checkpoints.max_bytes)
        except Exception:
            _logger.exception("no checkpoint of sequence %d could be made", seq_id)
            return
        if state is not None:
            self._checkpoints.add(seq_id, state)

    def keep(self, seq_id: int, scope: str, tokens: array[int]) -> bool:
        """The sequence was closed and should hold these tokens; whether it does (K108, K147). Raises EngineDown."""
        n_in_memory = self._engine.length(seq_id)
        if n_in_memory != len(tokens):
            if n_in_memory:  # one that broke holds nothing
                _logger.error("sequence %d holds %d tokens, not %d: emptied", seq_id, n_in_memory, len(tokens))
            self.forget(seq_id)
            return False
        self._tokens[seq_id], self._scopes[seq_id] = tokens, scope
        return True
