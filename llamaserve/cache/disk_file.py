"""One saved prefix in a file: how it is laid out, and what is checked when it is read. Any thread.

    magic, version, fingerprint, hash of the scope, start, number of tokens, number of state bytes
    checksum of these and of the tokens
    tokens (int32)
    state
    checksum of everything before

Numbers of the header are little-endian; tokens and state are in the order of the machine, which the fingerprint knows.
The first checksum lets the tokens be trusted before the state is read. It guards against accidents, not against someone
who may write to the folder.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from io import RawIOBase

from llamaserve.cache.prompt import TOKEN_TYPE

MAGIC = b"LSPREFIX"
VERSION = 1
DIGEST_BYTES = 32
"""Bytes of a fingerprint, of a scope's hash and of a checksum."""

MAX_TOKENS = 1 << 24
"""More than any context has; a header that says more is not believed."""

BLOCK_BYTES = 4 << 20
"""Bytes written or read at once; between two blocks a closing tier stops."""

_HEADER = struct.Struct(f"<8sI{DIGEST_BYTES}s{DIGEST_BYTES}sQQQ")
TOKENS_AT = _HEADER.size + DIGEST_BYTES
"""Position of the tokens in the file."""


class CorruptFile(Exception):
    """The file is not what was written."""


class ForeignFile(Exception):
    """A sound file of another model or layout."""


class Stopped(Exception):
    """The tier is closing."""


@dataclass(frozen=True, slots=True)
class FileMeta:
    """What a file says of itself."""

    scope_hash: bytes
    start: int
    """First position of the state."""
    tokens: array[int]
    """All tokens from position 0."""
    n_state_bytes: int

    @property
    def n_file_bytes(self) -> int:
        """Bytes the whole file takes."""
        return TOKENS_AT + len(self.tokens) * self.tokens.itemsize + self.n_state_bytes + DIGEST_BYTES


def never() -> bool:
    """Do not stop."""
    return False


def write_prefix(
    fd: int, fingerprint: bytes, meta: FileMeta, state: memoryview, should_stop: Callable[[], bool] = never
) -> None:
    """Write a whole file. Raises OSError, Stopped."""
    fields = (MAGIC, VERSION, fingerprint, meta.scope_hash, meta.start, len(meta.tokens), meta.n_state_bytes)
    header = _HEADER.pack(*fields)
    tokens = memoryview(meta.tokens).cast("B")
    digest = _digest()
    for part in (header, _checksum(header, tokens), tokens, state.cast("B")):
        for block in _blocks(memoryview(part)):
            if should_stop():
                raise Stopped
            digest.update(block)
            _write_all(fd, block)
    _write_all(fd, memoryview(digest.digest()))


def read_meta(file: RawIOBase, fingerprint: bytes, n_file_bytes: int) -> FileMeta:
    """The header and the tokens of a file of this size, checked; the state comes next. Never reads or allocates more
    than the file has. Raises CorruptFile, ForeignFile, OSError."""
    header = _read(file, _HEADER.size)
    checksum = _read(file, DIGEST_BYTES)
    magic, version, owner, scope_hash, start, n_tokens, n_state_bytes = _HEADER.unpack(header)
    if magic != MAGIC or version != VERSION:
        raise CorruptFile(f"it begins with {magic!r}, version {version}")
    if not 0 <= start < n_tokens <= MAX_TOKENS:
        raise CorruptFile(f"it says it has {n_tokens} tokens from {start} on, {MAX_TOKENS} is the limit")
    tokens = array(TOKEN_TYPE)
    if TOKENS_AT + n_tokens * tokens.itemsize + n_state_bytes + DIGEST_BYTES != n_file_bytes or n_state_bytes == 0:
        raise CorruptFile(f"it has {n_file_bytes} bytes, its header says {n_tokens} tokens and {n_state_bytes} bytes")
    data = _read(file, n_tokens * tokens.itemsize)
    if _checksum(header, data) != checksum:
        raise CorruptFile("the checksum of its header is wrong")
    if owner != fingerprint:
        raise ForeignFile
    tokens.frombytes(data)
    return FileMeta(scope_hash, start, tokens, n_state_bytes)


def read_state(
    file: RawIOBase, fingerprint: bytes, meta: FileMeta, should_stop: Callable[[], bool] = never
) -> memoryview:
    """The state of a file whose ``read_meta`` is done; the only copy that is made of it. Raises CorruptFile, OSError
    (also when there is no memory), Stopped."""
    digest = _digest()
    header = _HEADER.pack(
        MAGIC, VERSION, fingerprint, meta.scope_hash, meta.start, len(meta.tokens), meta.n_state_bytes
    )
    for part in (header, _checksum(header, meta.tokens), meta.tokens):
        digest.update(part)
    state = _unfilled(meta.n_state_bytes)
    for block in _blocks(state):
        if should_stop():
            raise Stopped
        _fill(file, block)
        digest.update(block)
    if _read(file, DIGEST_BYTES) != digest.digest():
        raise CorruptFile("its checksum is wrong")
    if file.read(1):
        raise CorruptFile("it goes on behind its end")
    return state


def _unfilled(n_bytes: int) -> memoryview:
    """Memory not written to yet: filling a gigabyte with zeros would hold up all threads that wait for the GIL."""
    return memoryview(mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


def _checksum(*parts: bytes | memoryview | array[int]) -> bytes:
    digest = _digest()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _blocks(data: memoryview) -> list[memoryview]:
    return [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _read(file: RawIOBase, n_bytes: int) -> bytes:
    data = bytearray(n_bytes)
    _fill(file, memoryview(data))
    return bytes(data)


def _fill(file: RawIOBase, data: memoryview) -> None:
    while data:
        n_read = file.readinto(data)
        if not n_read:
            raise CorruptFile("it is truncated")
        data = data[n_read:]
