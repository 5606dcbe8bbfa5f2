"""Check a real server with the clients people use: python -m tests.clients.run [NAME …] (make test-clients).

Each client is a folder beside this file: ``requirements.txt`` for its environment, and ``check.py``, which runs in it.
What they need and leave is in ``build/clients``. Needs the package index for what is not installed yet.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from llamaserve.models import resolve
from tests.clients.checking import (
    FOLDER_VARIABLE,
    MODEL,
    REPORT,
    TOKENIZER_VARIABLE,
    URL_VARIABLE,
    Report,
)
from tests.clients.environments import CannotInstall, environment_python
from tests.clients.served import Served, ServerFailed, serving
from tests.clients.tokenizer_folder import write_tokenizer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "clients"
TOKENIZER = BUILD / "tokenizer"
CLIENTS = tuple(sorted(path.parent.name for path in FOLDER.glob("*/check.py")))
CHECK_TIMEOUT_S = 600


@dataclass(frozen=True)
class Outcome:
    """What became of a client's checks."""

    client: str
    report: Report | None
    """None if the script did not come that far."""
    faults: list[str]
    """What went wrong beside the checks."""
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether every check that ran passed, one ran at all, and nothing else went wrong."""
        return self.report is not None and bool(self.report.passed) and not self.report.failed and not self.faults

    def row(self) -> str:
        """Its line in the table."""
        report = self.report or Report("?", [], [])
        checks = f"{len(report.passed)} passed, {len(report.failed)} failed"
        verdict = "ok" if self.is_good else "FAILED"
        return f"{self.client:12} {report.version:10} {verdict:7} {checks:20} {self.seconds:6.1f}"


def check_client(client: str, python: Path, server: Served) -> Outcome:
    """Run a client's checks in its environment."""
    print(f"\n{client}", flush=True)
    log_position, started_at = server.log.stat().st_size, time.monotonic()
    folder = BUILD / "work" / client
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    faults = _run_script(client, python, server.url, folder)
    faults += server.faults_since(log_position)
    for fault in faults:
        print(f"  FAULT    {fault}", flush=True)
    report = folder / REPORT
    found = Report(**json.loads(report.read_text(encoding="utf-8"))) if report.exists() else None
    return Outcome(client, found, faults, time.monotonic() - started_at)


def _run_script(client: str, python: Path, url: str, folder: Path) -> list[str]:
    environment = os.environ | {
        URL_VARIABLE: url,
        FOLDER_VARIABLE: str(folder),
        TOKENIZER_VARIABLE: str(TOKENIZER),
        "PYTHONPATH": "",
        # No client may phone home or fetch what it could do without.
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / "datasets"),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DO_NOT_TRACK": "1",
        "NO_PROXY": "127.0.0.1",
    }
    command = [python, "-m", f"tests.clients.{client}.check"]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False, timeout=CHECK_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return [f"the checks took more than {CHECK_TIMEOUT_S} s"]
    return [] if done.returncode == 0 or (folder / REPORT).exists() else [f"the checks ended with {done.returncode}"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.run", description=__doc__)
    parser.add_argument("clients", nargs="*", metavar="NAME", help=f"of {', '.join(CLIENTS)}; all if none is given")
    clients = parser.parse_args().clients or CLIENTS
    for client in clients:
        if client not in CLIENTS:
            parser.error(f"{client!r} is no client here: choose of {', '.join(CLIENTS)}")
    BUILD.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server does not outlive this process
    try:
        write_tokenizer(resolve(MODEL), TOKENIZER)
        pythons = {
            client: environment_python(BUILD / client, FOLDER / client / "requirements.txt") for client in clients
        }
        with serving(BUILD) as server:
            outcomes = [check_client(client, pythons[client], server) for client in clients]
    except (CannotInstall, ServerFailed) as error:
        print(f"test-clients: {error}", file=sys.stderr)
        return 1
    print(f"\n{'client':12} {'version':10} {'':7} {'checks':40} {'s':>6}")
    print("\n".join(outcome.row() for outcome in outcomes))
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
