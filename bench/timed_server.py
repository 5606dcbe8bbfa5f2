"""llamaserve's HTTP server with clocks in it, as a process of its own; and how a scenario starts and reads one.

The process is put together from the product's parts, as ``llamaserve serve`` does it, and writes what it recorded when
it ends. Run by scenarios only: python -m bench.timed_server MODEL THREADS N_CTX SLOTS LOG
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.harness.serving import STOP_TIMEOUT_S, Setting
from bench.tick_log import HandOver, TickLog, TickRecord
from llamaserve.config import EngineConfig, HttpConfig, SchedulerConfig
from llamaserve.load_service import load_service
from llamaserve.server.run import run_server
from llamaserve.service import Service

MODEL_NAME = "model"


class ThreadTime(NamedTuple):
    """Of one thread since it began, in seconds."""

    ran: float
    waited: float
    """Ready to run, without a core."""


@dataclass
class TimedServer:
    """A server under way; the records are there once it has ended."""

    url: str
    pid: int
    """Also the id of its main thread, which runs the event loop."""
    ticks: list[TickRecord] = field(default_factory=list)
    hand_overs: list[HandOver] = field(default_factory=list)
    scheduler_thread: int = 0

    def thread_times(self) -> dict[int, ThreadTime]:
        """Every thread's time, by the kernel's id."""
        times = {}
        for stat in Path(f"/proc/{self.pid}/task").glob("*/schedstat"):
            ran, waited, _ = stat.read_text(encoding="ascii").split()
            times[int(stat.parent.name)] = ThreadTime(int(ran) / 1e9, int(waited) / 1e9)
        return times


def spent_between(before: Mapping[int, ThreadTime], after: Mapping[int, ThreadTime]) -> dict[int, ThreadTime]:
    """What each thread that is there at the end ran and waited; one that was not there at the start began with 0."""
    nothing = ThreadTime(0.0, 0.0)
    return {
        thread: ThreadTime(now.ran - before.get(thread, nothing).ran, now.waited - before.get(thread, nothing).waited)
        for thread, now in after.items()
    }


@contextmanager
def timed_serving(setting: Setting) -> Iterator[TimedServer]:
    """A server from when it is ready to the end of the block, then its records. Raises RuntimeError when it dies."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.json"
        arguments = [str(setting.model), str(setting.threads), str(setting.n_ctx), str(setting.slots), str(log)]
        command = [sys.executable, "-m", "bench.timed_server", *arguments]
        with (Path(folder) / "stderr").open("wb") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                code = process.wait(STOP_TIMEOUT_S)
                raise RuntimeError(f"the timed server ended with {code} before it was ready: {_last_line(folder)}")
            server = TimedServer(url, process.pid)
            yield server
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"the timed server ended with {process.returncode}: {_last_line(folder)}")
        recorded = json.loads(log.read_text(encoding="ascii"))
        server.ticks += [TickRecord(*tick) for tick in recorded["ticks"]]
        server.hand_overs += [HandOver(*times) for times in recorded["hand_overs"]]
        server.scheduler_thread = recorded["scheduler_thread"]


def _last_line(folder: str) -> str:
    lines = (Path(folder) / "stderr").read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def main(model: str, threads: str, n_ctx: str, slots: str, log_path: str) -> None:
    """Serve until a signal, then write the log."""
    engine_config = EngineConfig(Path(model), n_ctx=int(n_ctx), n_slots=int(slots), n_threads=int(threads))
    log = TickLog()

    def load() -> Service:
        service = load_service(engine_config, SchedulerConfig(), MODEL_NAME)
        scheduler = vars(vars(service)["_thread"])["_scheduler"]
        log.watch(scheduler, vars(scheduler)["_engine"])
        log.watch_event_loop(scheduler)
        return service

    run_server(load, HttpConfig(port=0), on_ready=lambda service, url: print(url, flush=True))
    recorded = {"ticks": log.ticks, "hand_overs": log.hand_overs, "scheduler_thread": log.scheduler_thread}
    Path(log_path).write_text(json.dumps(recorded), encoding="ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])
