"""What a saved state depends on beside its tokens, in 32 bytes: the model, the adapters, the layout of the memory.

Hashing 40 GB at each start would take minutes, so of a large file only a part is read: its first 64 MiB, in which the
metadata are whole (those of a vocabulary of 262,000 tokens take 7 MB), its last block, and 2,048 blocks spread evenly.
In 40 GB that is one in 20 MB, less than a matrix of such a model takes, so that a model trained further is told
from the one it came from. Two files that differ only between the blocks are taken for the same. Files up to 256 MiB are
read whole.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

WHOLE_BYTES = 256 << 20
HEAD_BYTES = 64 << 20
N_BLOCKS = 2048
BLOCK_BYTES = 8 << 10
READ_BYTES = 1 << 20
FINGERPRINT_BYTES = 32

_SPLIT = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")


def fingerprint(model_path: Path, state_layout: str, adapters: Sequence[tuple[Path, float]] = ()) -> bytes:
    """Identifies what states can be exchanged between: equal for the same model file, whatever its name, the same
    adapters with the same scales in the same order, and the same layout (``Engine.state_layout``).

    A split model is all its files. Raises OSError if a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    for part in (f"{sys.byteorder}-endian", state_layout):
        _add(digest, part.encode())
    files = _parts(model_path)
    _add(digest, len(files).to_bytes(4, "little"))
    for file in files:
        _add(digest, _file_digest(file))
    for path, scale in adapters:
        _add(digest, _file_digest(path))
        _add(digest, float(scale).hex().encode())
    return digest.digest()


def _add(digest: hashlib.blake2b, field: bytes) -> None:
    """A field with its length before it: two fields never read as one."""
    digest.update(len(field).to_bytes(8, "little"))
    digest.update(field)


def _parts(model_path: Path) -> list[Path]:
    """All files of a model that llama.cpp loads when it is given this one."""
    match = _SPLIT.fullmatch(model_path.name)
    if match is None:
        return [model_path]
    count = match["count"]
    parts = range(1, int(count) + 1)
    return [model_path.with_name(f"{match['stem']}-{part:05}-of-{count}.gguf") for part in parts]


def _file_digest(path: Path) -> bytes:
    digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    with path.open("rb") as file:
        n_bytes = file.seek(0, 2)
        digest.update(n_bytes.to_bytes(8, "little"))
        for start, end in _sampled(n_bytes):
            file.seek(start)
            for data in _read(file, end - start):
                digest.update(data)
    return digest.digest()


def _sampled(n_bytes: int) -> Iterator[tuple[int, int]]:
    """Parts of a file that are read: first and one behind the last byte of each."""
    if n_bytes <= WHOLE_BYTES:
        yield 0, n_bytes
        return
    yield 0, HEAD_BYTES
    last = n_bytes - BLOCK_BYTES
    for block in range(1, N_BLOCKS + 1):
        start = HEAD_BYTES + (last - HEAD_BYTES) * block // N_BLOCKS
        yield start, start + BLOCK_BYTES


def _read(file: BinaryIO, n_bytes: int) -> Iterator[bytes]:
    while n_bytes and (data := file.read(min(n_bytes, READ_BYTES))):
        n_bytes -= len(data)
        yield data
