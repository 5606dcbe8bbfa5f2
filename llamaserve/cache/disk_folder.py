"""The folder of saved prefixes: whose files are whose, and how they come and go. Any thread; knows no budget.

A name begins with a tag made of the fingerprint and the format's version. Files with another tag, and whatever is not a
regular file, belong to somebody else, and are neither counted nor touched. A file comes to its name at once and whole;
so several processes may share the folder, and the worst that one does to another is to delete what that one knows.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from llamaserve.cache.disk_file import (
    DIGEST_BYTES,
    VERSION,
    CorruptFile,
    FileMeta,
    never,
    read_meta,
    read_state,
    write_prefix,
)

SUFFIX = ".prefix"
TEMPORARY_SUFFIX = ".tmp"
ABANDONED_S = 600.0
"""A temporary file that was not written to for so long is what a process left that died."""


class KeptFile(NamedTuple):
    """A file of ours."""

    name: str
    meta: FileMeta
    used_ns: int
    """Its time of change: when it was used last."""


class PrefixFolder:
    """Files of one model and layout, in a folder only its owner can read. Raises ValueError for a fingerprint that does
    not have DIGEST_BYTES bytes."""

    def __init__(self, path: Path, fingerprint: bytes) -> None:
        if len(fingerprint) != DIGEST_BYTES:
            raise ValueError(f"the fingerprint has {len(fingerprint)} bytes: it must have {DIGEST_BYTES}")
        self.path = path
        self._fingerprint = fingerprint
        tag = hashlib.blake2b(fingerprint, digest_size=8, salt=VERSION.to_bytes(4, "little")).hexdigest()
        self._prefix = f"{tag}-"

    def scope_hash(self, scope: str) -> bytes:
        """What stands for a scope in a file: it may be a tenant's secret, and goes to no disk. The hash differs between
        models. Who can read the files and guess the scope can check the guess."""
        return hashlib.blake2b(
            scope.encode("utf-8", "surrogatepass"), key=self._fingerprint, digest_size=DIGEST_BYTES
        ).digest()

    def name_of(self, scope_hash: bytes, start: int, tokens: array[int]) -> str:
        """The one name of a saved prefix; whoever writes it writes the same."""
        digest = hashlib.blake2b(scope_hash, key=self._fingerprint, digest_size=20)
        digest.update(start.to_bytes(8, "little"))
        digest.update(tokens)
        return f"{self._prefix}{digest.hexdigest()}{SUFFIX}"

    def create(self) -> None:
        """Make the folder if it is not there, and remove what dead processes left in it. Raises OSError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        long_ago = time.time() - ABANDONED_S
        with os.scandir(self.path) as entries:
            for entry in entries:
                is_ours = entry.name.startswith(self._prefix) and entry.name.endswith(TEMPORARY_SUFFIX)
                with suppress(OSError):
                    if is_ours and entry.stat(follow_symlinks=False).st_mtime < long_ago:
                        self.remove(entry.name)

    def names(self) -> set[str]:
        """Names of our files. Raises OSError."""
        with os.scandir(self.path) as entries:
            return {
                entry.name
                for entry in entries
                if entry.name.startswith(self._prefix)
                and entry.name.endswith(SUFFIX)
                and entry.is_file(follow_symlinks=False)
            }

    def look(self, name: str) -> KeptFile:
        """What a file says of itself, without its state. Raises CorruptFile, ForeignFile, OSError."""
        with self._opened(name) as (file, status):
            return KeptFile(name, self._meta(file, name, status), status.st_mtime_ns)

    def read(self, name: str, n_file_bytes: int, should_stop: Callable[[], bool] = never) -> memoryview:
        """The state in a file of this size, all of which is checked. Raises CorruptFile, ForeignFile, OSError,
        Stopped."""
        with self._opened(name) as (file, status):
            if status.st_size != n_file_bytes:
                raise CorruptFile(f"it has {status.st_size} bytes, it had {n_file_bytes}")
            return read_state(file, self._fingerprint, self._meta(file, name, status), should_stop)

    def write(self, name: str, meta: FileMeta, state: memoryview, should_stop: Callable[[], bool] = never) -> None:
        """Have a file under its name, whole and on disk, or not at all. Raises OSError, Stopped."""
        temporary = self.path / f"{name.removesuffix(SUFFIX)}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                write_prefix(fd, self._fingerprint, meta, state, should_stop)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, self.path / name)  # noqa: PTH105
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        self._sync()

    def touch(self, name: str) -> None:
        """Note that a file is used now, for the next process. Fails silently."""
        with suppress(OSError):
            os.utime(self.path / name, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Delete a file, unless another process has. Raises OSError."""
        (self.path / name).unlink(missing_ok=True)

    def _meta(self, file: FileIO, name: str, status: os.stat_result) -> FileMeta:
        meta = read_meta(file, self._fingerprint, status.st_size)
        if name != self.name_of(meta.scope_hash, meta.start, meta.tokens):
            raise CorruptFile("it has the name of another")
        return meta

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[FileIO, os.stat_result]]:
        """A regular file: a link is not followed, and a pipe does not keep us waiting."""
        fd = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with FileIO(fd) as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{name} is not a regular file")
            yield file, status

    def _sync(self) -> None:
        """Have the name on disk too, where the file system can; a name that is lost costs a miss."""
        with suppress(OSError):
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
