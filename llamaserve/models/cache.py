"""The folder of downloaded models, the lock on it, and the stamps of files whose hash was checked. Any thread."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import platformdirs

from llamaserve.errors import ModelLoad

CACHE_VARIABLE = "LLAMASERVE_CACHE"
BLOCK_BYTES = 1 << 20


def models_folder(cache_dir: Path | None = None) -> Path:
    """Where models are kept: ``models`` in ``cache_dir``, in LLAMASERVE_CACHE, or in the user's cache folder."""
    chosen = cache_dir or os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("llamaserve", appauthor=False)
    return Path(chosen).expanduser() / "models"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def is_verified(path: Path, sha256: str) -> bool:
    """Whether the file is there and has been found to have this hash, and has not been changed since.

    Hashing 100 MB at every start would cost more than loading them, so the stamp beside the file remembers the size
    and the time of change of the file that was hashed.
    """
    try:
        return _stamp_path(path).read_text(encoding="ascii") == _stamp(path, sha256)
    except (OSError, UnicodeDecodeError):
        return False


def mark_verified(path: Path, sha256: str) -> None:
    """Remember that the file has this hash. Raises OSError."""
    _stamp_path(path).write_text(_stamp(path, sha256), encoding="ascii")


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256-ok")


def _stamp(path: Path, sha256: str) -> str:
    status = path.stat()
    return f"{sha256} {status.st_size} {status.st_mtime_ns}\n"


@contextmanager
def locked(lock_path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file, waiting for another process that has it; ``on_wait`` is called once before the wait.

    A lock of the operating system, not the mere existence of the file: it goes away with its process however that
    ends, so no lock is ever stale. The file stays. Raises ModelLoad where the file system has no locks.
    """
    with lock_path.open("ab") as file:
        try:
            if not _try_lock(file):
                on_wait()
                _wait_for_lock(file)
        except OSError as error:
            raise ModelLoad(
                f"cannot lock {lock_path}: {error.strerror}; set {CACHE_VARIABLE} to a folder on a local disk"
            ) from error
        try:
            yield
        finally:
            _unlock(file)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: BinaryIO) -> bool:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

    def _wait_for_lock(file: BinaryIO) -> None:
        file.seek(0)
        while True:
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # gives up after 10 s
            except PermissionError:
                continue
            return

    def _unlock(file: BinaryIO) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(file: BinaryIO) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _wait_for_lock(file: BinaryIO) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)

    def _unlock(file: BinaryIO) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
