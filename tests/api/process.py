"""A server in a process of its own, for what ends a process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def server_process(program: str, *arguments: str) -> Generator[subprocess.Popen[str], None, None]:
    """Run a program from the root of the repository, with pipes; killed at the end if it still runs."""
    root = Path(__file__).parents[2]
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    """The next line it writes."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
