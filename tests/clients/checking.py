"""What the check scripts have in common: where the server is, and how checks run and are reported.

Runs inside each client's environment, so it needs the standard library only.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

URL_VARIABLE = "LLAMASERVE_CLIENTS_URL"
FOLDER_VARIABLE = "LLAMASERVE_CLIENTS_FOLDER"
TOKENIZER_VARIABLE = "LLAMASERVE_CLIENTS_TOKENIZER"
REPORT = "report.json"
"""The file in the script's folder that says what it found out."""

MODEL = "smollm2"
N_CTX = 4096
"""Tokens that all requests may have together, and each of them alone."""
API_KEY = "none"
"""Clients insist on one; a server without keys reads none."""

ErrorT = TypeVar("ErrorT", bound=Exception)


@dataclass(frozen=True)
class Report:
    """What a check script found out."""

    version: str
    passed: list[str]
    failed: list[str]


def work_folder() -> Path:
    """Where a script may write; empty at its start."""
    return Path(os.environ[FOLDER_VARIABLE])


def tokenizer_folder() -> Path:
    """The model's tokenizer, in the form of Hugging Face's libraries."""
    return Path(os.environ[TOKENIZER_VARIABLE])


def raised(kind: type[ErrorT], call: Callable[[], object]) -> ErrorT:
    """The exception of this kind that the call raises; another one goes on, and none fails the check."""
    try:
        answer = call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was to come, not {answer!r}")


def main(package: str) -> None:
    """Run the ``check_…`` functions of the script that calls this, in their order there, each with the server's URL, to
    which clients add ``/v1``. Ends the process: with 1 when one failed."""
    report = _run(sys.modules["__main__"].__dict__, version(package))
    (work_folder() / REPORT).write_text(json.dumps(report.__dict__), encoding="utf-8")
    # Some clients leave threads that Python would wait for.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if report.failed else 0)


def _run(names: dict[str, object], package_version: str) -> Report:
    url = os.environ[URL_VARIABLE]
    report = Report(package_version, [], [])
    for name, check in list(names.items()):
        if not name.startswith("check_") or not inspect.isfunction(check):
            continue
        if _passes(check, name, url):
            report.passed.append(name)
        else:
            report.failed.append(name)
    return report


def _passes(check: Callable[[str], object], name: str, url: str) -> bool:
    started_at = time.monotonic()
    try:
        check(url)
    except Exception:  # noqa: BLE001 - whatever a client raises is that check's failure, and the others still run
        traceback.print_exc(file=sys.stdout)
        print(f"  FAILED   {name}", flush=True)
        return False
    print(f"  passed   {name} ({time.monotonic() - started_at:.1f} s)", flush=True)
    return True
