"""Build entry: brings llama.cpp when it is missing, then CMake builds the native modules.

A wheel is built by scikit-build-core in a folder of its own; an editable install in place, see
``_native/build_in_place.py``.
"""

import sys
from pathlib import Path

from scikit_build_core.setuptools.build_cmake import BuildCMake
from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "_native"))

from build_in_place import build_in_place, check_compiler, fetch_llama_cpp


class BuildNative(BuildCMake):
    """CMake build; editable ones are incremental."""

    def run(self) -> None:
        check_compiler()
        if self.editable_mode:
            build_in_place()
        else:
            super().run()


fetch_llama_cpp()
setup(cmake_source_dir=".", cmdclass={"build_cmake": BuildNative})
