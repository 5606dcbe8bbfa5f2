"""Build entry: brings llama.cpp when it is missing, then CMake builds the native modules.

A wheel is built by scikit-build-core in a folder of its own. An editable install builds in ``build/native``, which is
kept, and puts the modules beside the Python sources: building again compiles only what changed.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11
from scikit_build_core.setuptools.build_cmake import BuildCMake
from setuptools import setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "vendor"))

import fetch  # noqa: E402  (lives in vendor/)


class BuildNative(BuildCMake):
    """CMake build; editable ones are incremental."""

    def run(self) -> None:
        check_compiler()
        if self.editable_mode:
            build_in_place(ROOT / "build" / "native")
        else:
            super().run()


def check_compiler() -> None:
    """Stop with one line when there is no C++ compiler; CMake's own words for it fill a screen."""
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++", "cl"]
    if not any(name and shutil.which(shlex.split(name)[0]) for name in names):
        sys.exit(
            "llamaserve: no C++ compiler found: install g++ or clang (Debian, Ubuntu: apt install g++), or set CXX"
        )


def build_in_place(build: Path) -> None:
    """Configure, build and install next to the sources."""
    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    cmake = shutil.which("cmake", path=environment["PATH"])
    if cmake is None:
        sys.exit("llamaserve: cmake is missing from the build environment: pip install cmake ninja")
    configure = [cmake, "-S", str(ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
    if shutil.which("ninja", path=environment["PATH"]) and not (build / "Makefile").exists():
        configure += ["-G", "Ninja"]
    arguments = os.environ.get("CMAKE_ARGS", "")
    configure += shlex.split(arguments)
    used = build / "cmake-args"
    if used.exists() and used.read_text(encoding="utf-8") != arguments:
        configure.insert(1, "--fresh")  # CMake remembers an option that is no longer given
    build.mkdir(parents=True, exist_ok=True)
    used.write_text(arguments, encoding="utf-8")
    jobs = str(os.cpu_count() or 1)
    steps = [
        configure,
        [cmake, "--build", str(build), "--parallel", jobs],
        [cmake, "--install", str(build), "--prefix", str(ROOT)],
    ]
    for step in steps:
        if subprocess.run(step, env=environment, check=False).returncode != 0:
            sys.exit(f"llamaserve: the native build failed at '{' '.join(step[:2])}'; the lines above say why")


try:
    fetch.ensure()
except fetch.FetchError as error:
    sys.exit(f"llamaserve: {error}")

setup(cmake_source_dir=".", cmdclass={"build_cmake": BuildNative})
