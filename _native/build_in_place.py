"""Builds the native modules in ``build/native``, which is kept, and puts them beside the Python sources.

Building again compiles only what changed. Used by editable installs and by ``make build``.

Usage: ``python _native/build_in_place.py``
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "native"

sys.path.insert(0, str(ROOT / "vendor"))

import fetch  # noqa: E402  (lives in vendor/)


def check_compiler() -> None:
    """Stop with one line when there is no C++ compiler; CMake's own words for it fill a screen."""
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++", "cl"]
    if not any(name and shutil.which(shlex.split(name)[0]) for name in names):
        sys.exit("llamaserve: no C++ compiler found: install g++ or clang (on Debian: apt install g++), or set CXX")


def fetch_llama_cpp() -> None:
    """Bring llama.cpp, or stop with one line."""
    try:
        fetch.ensure()
    except fetch.FetchError as error:
        sys.exit(f"llamaserve: {error}")


def build_in_place() -> None:
    """Configure, build and install next to the sources; stops with one line when that fails."""
    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    cmake = shutil.which("cmake", path=environment["PATH"])
    if cmake is None:
        sys.exit("llamaserve: cmake is missing from the build environment: pip install cmake ninja")
    jobs = str(os.cpu_count() or 1)
    if not (BUILD / "CMakeCache.txt").exists():
        print("llamaserve: building llama.cpp and the native modules; the first time takes some minutes", flush=True)
    steps = [
        configure_command(cmake, has_ninja=shutil.which("ninja", path=environment["PATH"]) is not None),
        [cmake, "--build", str(BUILD), "--parallel", jobs],
        [cmake, "--install", str(BUILD), "--prefix", str(ROOT)],
    ]
    for step in steps:
        if subprocess.run(step, env=environment, check=False).returncode != 0:
            sys.exit(f"llamaserve: the native build failed at '{shlex.join(step[:3])}'; the lines above say why")


def configure_command(cmake: str, *, has_ninja: bool) -> list[str]:
    """The configuring call; it starts afresh when CMAKE_ARGS changed, for CMake remembers options no longer given."""
    arguments = os.environ.get("CMAKE_ARGS", "")
    command = [cmake, "-S", str(ROOT), "-B", str(BUILD), "-DCMAKE_BUILD_TYPE=Release"]
    command += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
    if has_ninja and not (BUILD / "Makefile").exists():
        command += ["-G", "Ninja"]
    used = BUILD / "cmake-args"
    if used.exists() and used.read_text(encoding="utf-8") != arguments:
        command.append("--fresh")
    BUILD.mkdir(parents=True, exist_ok=True)
    used.write_text(arguments, encoding="utf-8")
    return command + shlex.split(arguments)


if __name__ == "__main__":
    check_compiler()
    fetch_llama_cpp()
    build_in_place()
