"""Run native tests with our C++ under a sanitizer: python tests/sanitized.py address|thread (make sanitize).

llama.cpp itself is that of the usual build, without one: its heap is watched, its own reads and writes are not.

The sanitizer's library must be loaded before Python itself, so this starts a second Python with it. Leaks are not
looked for: Python keeps much until it ends.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so"}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
}
LEFT_OUT = (
    "test_loading.py",
    "test_parity.py",
    "test_text.py",
    "test_cancellation.py",
    "test_state_layout.py",
    "test_chat_templates.py",
    "test_calls_or_content.py",
    "test_tool_calls.py",
    "test_hostile_chats.py",
)
"""No step and no thread of ours is in them, they take minutes under a sanitizer, or they have llama.cpp compute with
two threads, whose barriers the sanitizer does not see. Of those about chats, ``test_chat_parser`` is watched."""
TESTS = sorted(str(path) for path in (ROOT / "tests" / "native").glob("test_*.py") if path.name not in LEFT_OUT)


def package(sanitizer: str) -> Path:
    """The package with the sanitizer's module in it, as a folder to import from."""
    build = ROOT / "build" / "native" / "_native" / sanitizer
    folder = build / "site"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(
        ROOT / "llamaserve", folder / "llamaserve", ignore=shutil.ignore_patterns("_engine.*.so", "__pycache__")
    )
    for module in build.glob("_engine.*.so"):
        shutil.copy(module, folder / "llamaserve")
    return folder


def library(name: str) -> str:
    """Where the compiler keeps a library."""
    command = [os.environ.get("CXX", "g++"), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_tests(folder: str) -> int:
    """In the second Python: pytest puts the repository in front, so the package is imported before."""
    sys.path.insert(0, folder)
    importlib.import_module("llamaserve._engine")
    pytest = importlib.import_module("pytest")
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *TESTS]))


def main() -> int:
    sanitizer = sys.argv[1]
    if sanitizer == "--inside":
        return run_tests(sys.argv[2])
    preloaded = f"{library(LIBRARIES[sanitizer])}:{library('libstdc++.so.6')}"
    command = [sys.executable, __file__, "--inside", str(package(sanitizer))]
    environment = os.environ | OPTIONS | {"LD_PRELOAD": preloaded}
    return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
