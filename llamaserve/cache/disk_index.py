"""What a disk tier knows of the files in its folder. Not synchronised."""

from __future__ import annotations

from array import array
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from llamaserve.cache.disk_file import FileMeta
from llamaserve.cache.saved_index import Found, SavedIndex
from llamaserve.cache.saved_prefix import token_bytes

INDEX_BYTES = 128 << 20
"""RAM the tokens of all files may take, with ENTRY_BYTES a file."""

ENTRY_BYTES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class DiskEntry:
    """A file."""

    name: str
    scope: str
    """The hash of it, in hex."""
    tokens: array[int] = field(repr=False)
    start: int
    n_bytes: int
    """Of the whole file."""


class DiskIndex:
    """Files, those used longest ago first; at most ``max_bytes`` on disk and INDEX_BYTES in RAM, once evicted."""

    def __init__(self, max_bytes: int, *, can_trim: bool) -> None:
        self._max_bytes = max_bytes
        self._saved: SavedIndex[DiskEntry] = SavedIndex(can_trim=can_trim)
        self._by_name: dict[str, DiskEntry] = {}
        self._ignored: set[str] = set()
        self._index_bytes = 0

    def __len__(self) -> int:
        return len(self._saved)

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return self._saved.n_bytes

    def would_keep(self, meta: FileMeta) -> bool:
        """Whether such a file would bring something, and fit."""
        return meta.n_file_bytes <= self._max_bytes and not self._saved.is_covered(
            meta.scope_hash.hex(), meta.tokens, meta.start
        )

    def goes_on(self, scope_hash: bytes, tokens: array[int], start: int) -> bool:
        """As ``SavedIndex.goes_on``."""
        return self._saved.goes_on(scope_hash.hex(), tokens, start)

    def best(
        self, scope_hash: bytes, tokens: array[int], n_have: int, limit: int, least_gain: int | None
    ) -> Found[DiskEntry] | None:
        """As ``SavedIndex.best``; the file counts as used."""
        found = self._saved.best(scope_hash.hex(), tokens, n_have, limit, least_gain)
        if found is not None:
            self._saved.touch(found.copy)
        return found

    def add(self, name: str, meta: FileMeta) -> None:
        """Know a file, as the one used last."""
        self.forget(name)
        self._ignored.discard(name)
        entry = DiskEntry(name, meta.scope_hash.hex(), meta.tokens, meta.start, meta.n_file_bytes)
        self._by_name[name] = entry
        self._saved.add(entry)
        self._index_bytes += _index_bytes(entry.tokens)

    def forget(self, name: str) -> None:
        """Know a file no more."""
        entry = self._by_name.pop(name, None)
        if entry is not None:
            self._saved.discard(entry)
            self._index_bytes -= _index_bytes(entry.tokens)

    def ignore(self, name: str) -> None:
        """Look at a file no more: it stays where it is, and is of no use."""
        self.forget(name)
        self._ignored.add(name)

    def unknown(self, names: AbstractSet[str]) -> AbstractSet[str]:
        """Of all names there are, those to be looked at; what is not there is forgotten."""
        for gone in self._by_name.keys() - names:
            self.forget(gone)
        self._ignored &= names
        return names - self._by_name.keys() - self._ignored

    def replace(self, meta: FileMeta) -> list[str]:
        """Files that such a file stands in for, forgotten."""
        names = [entry.name for entry in self._saved.covered_by(meta.scope_hash.hex(), meta.tokens, meta.start)]
        for name in names:
            self.forget(name)
        return names

    def evict(self, new: FileMeta | None = None) -> list[str]:
        """Files, forgotten, without which the budgets hold, also with a new one."""
        n_bytes = 0 if new is None else new.n_file_bytes
        index_bytes = 0 if new is None else _index_bytes(new.tokens)
        names = []
        while self.n_bytes + n_bytes > self._max_bytes or self._index_bytes + index_bytes > INDEX_BYTES:
            oldest = self._saved.oldest()
            if oldest is None:
                break
            self.forget(oldest.name)
            names.append(oldest.name)
        return names

    def clear(self) -> None:
        """Forget all."""
        self._saved.clear()
        self._by_name.clear()
        self._ignored.clear()
        self._index_bytes = 0


def _index_bytes(tokens: array[int]) -> int:
    return ENTRY_BYTES + token_bytes(tokens)
