"""The format of a saved prefix on disk, and what reading it refuses."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserve.cache.disk_file import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    MAX_TOKENS,
    TOKENS_AT,
    CorruptFile,
    FileMeta,
    ForeignFile,
    Stopped,
    read_meta,
    read_state,
    write_prefix,
)

FINGERPRINT = bytes(range(32))
SCOPE_HASH = bytes(32)
STATE = bytes(range(256)) * 4
META = FileMeta(SCOPE_HASH, 3, array("i", range(40)), len(STATE))


def written(path: Path, meta: FileMeta = META, state: bytes = STATE) -> bytes:
    """The bytes of a file."""
    with path.open("wb") as file:
        write_prefix(file.fileno(), FINGERPRINT, meta, memoryview(state))
    return path.read_bytes()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("format") / "file")


def read(data: bytes, fingerprint: bytes = FINGERPRINT) -> tuple[FileMeta, bytes]:
    """What a file with these bytes has."""
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(data)
        file.seek(0)
        meta = read_meta(file, fingerprint, len(data))
        return meta, bytes(read_state(file, fingerprint, meta))


def resealed(data: bytes, at: int, value: bytes) -> bytes:
    """With a header that says something else, and a checksum that agrees with it."""
    changed = bytearray(data)
    changed[at : at + len(value)] = value
    n_tokens = len(META.tokens) * 4
    header = bytes(changed[: TOKENS_AT - DIGEST_BYTES])
    tokens = bytes(changed[TOKENS_AT : TOKENS_AT + n_tokens])
    changed[TOKENS_AT - DIGEST_BYTES : TOKENS_AT] = hashlib.blake2b(header + tokens, digest_size=32).digest()
    changed[-DIGEST_BYTES:] = hashlib.blake2b(changed[:-DIGEST_BYTES], digest_size=32).digest()
    return bytes(changed)


# Where the header's numbers stand: behind magic, version and two hashes.
START_AT, N_TOKENS_AT, N_STATE_AT = 76, 84, 92


def test_what_was_written_is_read(sound: bytes) -> None:
    assert read(sound) == (META, STATE)
    assert len(sound) == META.n_file_bytes


def test_a_state_of_many_blocks_is_read_whole(tmp_path: Path) -> None:
    state = os.urandom(2 * BLOCK_BYTES + 17)
    meta = FileMeta(SCOPE_HASH, 0, META.tokens, len(state))
    assert read(written(tmp_path / "file", meta, state)) == (meta, state)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_found(sound: bytes, at: int, bit: int) -> None:
    changed = bytearray(sound)
    changed[at % len(sound)] ^= 1 << bit
    with pytest.raises(CorruptFile):
        read(bytes(changed))


def test_a_file_truncated_anywhere_is_found(sound: bytes) -> None:
    for n_bytes in (*range(0, len(sound), 7), len(sound) - 1):
        with pytest.raises(CorruptFile):
            read(sound[:n_bytes])


def test_a_file_that_loses_its_end_while_it_is_read_is_found(sound: bytes, tmp_path: Path) -> None:
    """Its size was right when it was opened."""
    path = tmp_path / "file"
    path.write_bytes(sound[:-50])
    with io.FileIO(path) as file, pytest.raises(CorruptFile, match="truncated"):
        read_state(file, FINGERPRINT, read_meta(file, FINGERPRINT, len(sound)))


def test_a_file_with_more_behind_its_end_is_found(sound: bytes, tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match="bytes, its header says"):
        read(sound + b"x")
    path = tmp_path / "file"
    path.write_bytes(sound + b"x")
    with io.FileIO(path) as file, pytest.raises(CorruptFile, match="behind its end"):
        read_state(file, FINGERPRINT, read_meta(file, FINGERPRINT, len(sound)))


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"LSPREFIY", "it begins with b'LSPREFIY'"),
        (8, struct.pack("<I", 2), "version 2"),
        (START_AT, struct.pack("<Q", 40), "40 tokens from 40 on"),
        (START_AT, struct.pack("<Q", 2**64 - 1), "from 18446744073709551615 on"),
        (N_TOKENS_AT, struct.pack("<Q", 0), "0 tokens from 3 on"),
        (N_TOKENS_AT, struct.pack("<Q", 2**60), "1152921504606846976 tokens"),
        (N_TOKENS_AT, struct.pack("<Q", MAX_TOKENS), "its header says 16777216 tokens"),
        (N_TOKENS_AT, struct.pack("<QQ", 39, len(STATE) + 3), "its header says 39 tokens and 1027 bytes"),
        (N_STATE_AT, struct.pack("<Q", 0), "and 0 bytes"),
        (N_STATE_AT, struct.pack("<Q", 2**64 - 1), "and 18446744073709551615 bytes"),
    ],
)
def test_a_header_that_lies_is_not_believed_even_with_a_checksum_that_agrees(
    sound: bytes, at: int, value: bytes, message: str
) -> None:
    with pytest.raises(CorruptFile, match=message):
        read(resealed(sound, at, value))


def test_sizes_that_add_up_with_other_tokens_are_found(sound: bytes) -> None:
    """One token more and four bytes of state less: only the checksum of the tokens tells."""
    with pytest.raises(CorruptFile, match="checksum of its header"):
        read(resealed(sound, N_TOKENS_AT, struct.pack("<QQ", 41, len(STATE) - 4)))


def test_a_sound_file_of_another_model_is_foreign(sound: bytes) -> None:
    with pytest.raises(ForeignFile):
        read(sound, bytes(32))


@settings(deadline=None)
@given(st.binary(max_size=2000))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptFile):
        read(data)


@pytest.mark.parametrize("stop_after", [0, 1, 3])
def test_writing_and_reading_stop_when_they_are_told_to(tmp_path: Path, stop_after: int) -> None:
    def stops() -> Callable[[], bool]:
        asked = iter(range(100))
        return lambda: next(asked) >= stop_after

    with tempfile.TemporaryFile() as target, pytest.raises(Stopped):
        write_prefix(target.fileno(), FINGERPRINT, META, memoryview(STATE), stops())
    state = bytes(4 * BLOCK_BYTES)
    path = tmp_path / "large"
    data = written(path, FileMeta(SCOPE_HASH, 0, META.tokens, len(state)), state)
    with io.FileIO(path) as file:
        meta = read_meta(file, FINGERPRINT, len(data))
        with pytest.raises(Stopped):
            read_state(file, FINGERPRINT, meta, stops())
