"""Keys in the order of ranks that change. Belongs to one thread."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)

_SMALL = 16  # entries below which a sweep is not worth it


class Ranking(Generic[KeyT]):
    """The lowest rank comes first, of equal ones that set first.

    A binary heap. A rank that changes leaves its old entry there; old entries are skipped, and swept when they are more
    than half. So a change costs O(log n) amortised, and walking the first k in order O(k log k).
    """

    def __init__(self) -> None:
        self._entries: dict[KeyT, tuple[float, int, KeyT]] = {}
        self._heap: list[tuple[float, int, KeyT]] = []
        self._n_set = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._entries

    def set(self, key: KeyT, rank: float) -> None:
        """Put a key in, or move it; one whose rank is the same stays where it is."""
        before = self._entries.get(key)
        if before is not None and before[0] == rank:
            return
        self._n_set += 1
        entry = self._entries[key] = (rank, self._n_set, key)
        heapq.heappush(self._heap, entry)
        if before is not None:
            self._outdate(before)

    def discard(self, key: KeyT) -> None:
        """Take a key out, if it is there."""
        before = self._entries.pop(key, None)
        if before is not None:
            self._outdate(before)

    def first(self) -> tuple[float, KeyT] | None:
        """The lowest rank, and whose it is; None when empty."""
        if not self._heap:
            return None
        rank, _, key = self._heap[0]
        return rank, key

    def in_order(self) -> Iterator[KeyT]:
        """All keys, lazily. Not to be continued after a change."""
        heap, entries = self._heap, self._entries
        frontier = [(heap[0], 0)] if heap else []
        while frontier:
            entry, index = heapq.heappop(frontier)
            if entries.get(entry[2]) is entry:
                yield entry[2]
            for child in range(2 * index + 1, min(2 * index + 3, len(heap))):
                heapq.heappush(frontier, (heap[child], child))

    def _outdate(self, entry: tuple[float, int, KeyT]) -> None:
        """An entry of the heap counts no more. Keep the heap small and its first entry valid."""
        heap, entries = self._heap, self._entries
        if len(heap) > 2 * len(entries) + _SMALL:
            heap[:] = entries.values()
            heapq.heapify(heap)
        elif heap[0] is entry:
            while heap and entries.get(heap[0][2]) is not heap[0]:
                heapq.heappop(heap)
