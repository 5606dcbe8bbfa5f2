"""Whether one more request may wait: limits in requests and in prompt tokens. Threads that submit and the scheduler's;
the caller holds the inbox's lock.

Only those count that wait behind the free slots: a burst on an idle server is not refused for the moment until the
scheduler has seen it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from llamaserve.errors import QueueFull, QueueTokensFull


class Comer(NamedTuple):
    """A request that wants to wait."""

    request_id: str
    n_tokens: int
    """Tokens that wait to be computed with it."""


class QueueLimits:
    """Counts requests from ``enter`` to ``leave``. 0 is without limit.

    Prompts longer than ``max_tokens`` may wait alone, or they could never be served.
    """

    def __init__(self, *, n_slots: int, max_requests: int = 0, max_tokens: int = 0) -> None:
        self._n_slots = n_slots
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._waiting: OrderedDict[str, int] = OrderedDict()
        self._n_tokens = 0
        self._begun: set[str] = set()

    @property
    def n_waiting(self) -> int:
        """Requests that have not begun."""
        return len(self._waiting)

    @property
    def n_tokens(self) -> int:
        """Of their prompts."""
        return self._n_tokens

    @property
    def n_begun(self) -> int:
        """Requests that have begun and not left."""
        return len(self._begun)

    @property
    def _n_free(self) -> int:
        """Slots that nobody has, but those that wait may be about to."""
        return max(0, self._n_slots - len(self._begun))

    def enter(self, comers: Sequence[Comer]) -> None:
        """Requests come in together, all or none. Raises QueueFull, or QueueTokensFull, when they may not."""
        n_free = self._n_free
        n_tokens = sum(comer.n_tokens for comer in comers)
        n_behind = len(self._waiting) - n_free
        if n_behind + len(comers) > 0:
            self._check(len(comers), n_tokens, n_free=n_free, n_behind=n_behind)
        self._waiting.update(comers)
        self._n_tokens += n_tokens

    def check_room(self) -> None:
        """Raises QueueFull when as many wait as may, so that no request can come in."""
        if self._max_requests and len(self._waiting) - self._n_free >= self._max_requests:
            raise QueueFull(self._max_requests)

    def begin(self, request_id: str) -> None:
        """It has a slot. Nothing happens if it has left already: a cancellation came first."""
        n_tokens = self._waiting.pop(request_id, None)
        if n_tokens is not None:
            self._n_tokens -= n_tokens
            self._begun.add(request_id)

    def leave(self, request_id: str) -> None:
        """It has ended or will not begin; its place is free at once (S53). More than once does no harm."""
        self._n_tokens -= self._waiting.pop(request_id, 0)
        self._begun.discard(request_id)

    def clear(self) -> None:
        """All have left."""
        self._waiting.clear()
        self._begun.clear()
        self._n_tokens = 0

    def _check(self, n_comers: int, n_tokens: int, *, n_free: int, n_behind: int) -> None:
        if self._max_requests and n_behind + n_comers > self._max_requests:
            raise QueueFull(self._max_requests)
        if self._max_tokens and n_behind > 0 and self._n_tokens + n_tokens > self._max_tokens:
            n_tokens_behind = self._n_tokens - sum(islice(self._waiting.values(), n_free))
            if n_tokens_behind + n_tokens > self._max_tokens:
                raise QueueTokensFull(n_tokens, n_tokens_behind, self._max_tokens)
