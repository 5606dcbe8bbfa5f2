"""The one server that all clients talk to: a process of its own on a free port, its log in a file."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.clients.checking import MODEL, N_CTX

START_TIMEOUT_S = 600
"""The default model may have to be fetched."""
STOP_TIMEOUT_S = 60
N_SLOTS = 4
N_THREADS = 1
"""llama.cpp's threads spin while they wait for each other, and clients need the other cores."""

_READY = re.compile(r" at (http://\S+)$", re.MULTILINE)
_WRONG = re.compile(r" (?:ERROR|CRITICAL) |^Traceback", re.MULTILINE)


class ServerFailed(Exception):
    """The server did not start, or died."""


@dataclass(frozen=True)
class Served:
    """A server that answers."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def faults_since(self, position: int) -> list[str]:
        """What went wrong in the server since its log had this size: no client's request may do that."""
        if self.process.poll() is not None:
            return [f"the server ended with {self.process.returncode}"]
        with self.log.open(encoding="utf-8", errors="replace") as log:
            log.seek(position)
            return [line.rstrip() for line in log if _WRONG.search(line)]


@contextmanager
def serving(folder: Path) -> Generator[Served, None, None]:
    """The default model behind a real socket until the end of the block. Raises ServerFailed."""
    log = folder / "server.log"
    command = [sys.executable, "-m", "llamaserve", "serve", "-m", MODEL, "--port", "0"]
    command += ["-np", str(N_SLOTS), "-c", str(N_CTX), "-t", str(N_THREADS)]
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
        try:
            yield Served(_wait_for_url(process, log), process, log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_url(process: subprocess.Popen[str], log: Path) -> str:
    ends_at = time.monotonic() + START_TIMEOUT_S
    while True:
        ready = _READY.search(log.read_text(encoding="utf-8", errors="replace"))
        if ready is not None:
            return ready[1]
        if process.poll() is not None:
            raise ServerFailed(f"the server ended with {process.returncode} before it was ready: see {log}")
        if time.monotonic() > ends_at:
            raise ServerFailed(f"the server was not ready after {START_TIMEOUT_S} s: see {log}")
        time.sleep(0.1)
