"""Server processes: started on a free port, waited for, measured, ended. Linux: memory and time come from /proc."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness.arms import Arm
from bench.harness.peers import peer

HOST = "127.0.0.1"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
CRASH_S = 0.5
POLL_S = 0.05
TAIL_LINES = 20


@dataclass(frozen=True)
class Setting:
    """What all arms of a scenario have in common."""

    model: Path
    threads: int
    n_ctx: int
    """Tokens over all slots."""
    slots: int

    def described(self) -> str:
        """For a report; no folder of this machine is in it."""
        return f"{self.model.name}, {self.threads} threads, context {self.n_ctx}, {self.slots} slots"


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    arm: Arm
    url: str
    pid: int

    def peak_rss_mib(self) -> float:
        """The most memory the process has had since it started."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"/proc/{self.pid}/status has no VmHWM")

    def cpu_seconds(self) -> float:
        """Processor time of all its threads until now."""
        return cpu_seconds(self.pid)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process's threads until now, in the kernel too."""
    # The second field is the program's name in parentheses, which may have spaces in it.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(arm: Arm, setting: Setting) -> Iterator[Running]:
    """The arm's server as a process of its own, from its first 200 on /health until the end of the block.

    Raises RuntimeError, with the end of its log, when it dies: before it is ready, or inside the block.
    """
    port = _free_port()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command(arm, setting, port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(arm.env),
        )
        try:
            _wait_until_ready(process, port)
            yield Running(arm, f"http://{HOST}:{port}", process.pid)
            _require_alive(process)
        except _Died as error:
            raise RuntimeError(f"{arm.name} {error}; its log ends with:\n{_tail(log.fileno())}") from error
        except Exception as error:
            if not _ends_soon(process):
                raise
            died = f"{arm.name} ended with {process.returncode}"  # which is why the block failed
            raise RuntimeError(f"{died}; its log ends with:\n{_tail(log.fileno())}") from error
        finally:
            _end(process)


def command(arm: Arm, setting: Setting, port: int) -> list[str]:
    """The command line that starts an arm: the same model, threads, context and slots for every kind."""
    slots = setting.slots if arm.slots is None else arm.slots
    common = ["-m", str(setting.model), "--host", HOST, "--port", str(port)]
    common += ["-np", str(slots), "-c", str(setting.n_ctx), "-t", str(setting.threads), *arm.flags]
    if arm.kind == "llamaserve":
        return [sys.executable, "-m", "llamaserve", "serve", *common]
    return [str(peer("llama-server")), *common]


class _Died(Exception):
    """What became of a server instead of answering."""


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _is_healthy(port):
        if process.poll() is not None:
            raise _Died(f"ended with {process.returncode} before it was ready")
        if time.monotonic() > deadline:
            raise _Died(f"was not ready after {START_TIMEOUT_S:.0f} s")
        time.sleep(POLL_S)


def _require_alive(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        raise _Died(f"ended with {process.returncode}")


def _ends_soon(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has ended; a moment is left for a crash whose connections closed before it did."""
    try:
        process.wait(CRASH_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _free_port() -> int:
    """A port nobody listens on now; between this and the server's start another program could take it."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: int) -> str:
    """The last lines of a log; the child's writes moved the shared offset, so it is read by position."""
    text = os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")
    return "\n".join(text.splitlines()[-TAIL_LINES:])
