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
REPORT_VARIABLE = "LLAMASERVE_CLIENTS_REPORT"
WITHOUT_VARIABLE = "LLAMASERVE_CLIENTS_WITHOUT"

MODEL = "smollm2"
N_CTX = 4096
"""Tokens that all requests may have together, and each of them alone."""
API_KEY = "none"
"""Clients insist on one; a server without keys reads none."""

CheckT = TypeVar("CheckT", bound=Callable[[str], object])
ErrorT = TypeVar("ErrorT", bound=Exception)


@dataclass(frozen=True)
class Report:
    """What a check script found out."""

    version: str
    passed: list[str]
    failed: list[str]
    left_out: list[str]


def needs(ability: str) -> Callable[[CheckT], CheckT]:
    """Mark a check of something that can be left out with the runner's ``--without``."""

    def mark(check: CheckT) -> CheckT:
        check.__dict__["needs"] = ability
        return check

    return mark


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
    Path(os.environ[REPORT_VARIABLE]).write_text(json.dumps(report.__dict__), encoding="utf-8")
    # Some clients leave threads that Python would wait for.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if report.failed else 0)


def _run(names: dict[str, object], package_version: str) -> Report:
    url, without = os.environ[URL_VARIABLE], os.environ.get(WITHOUT_VARIABLE, "").split()
    report = Report(package_version, [], [], [])
    for name, check in names.items():
        if not name.startswith("check_") or not inspect.isfunction(check):
            continue
        if check.__dict__.get("needs") in without:
            report.left_out.append(name)
            print(f"  left out {name}", flush=True)
        elif _passes(check, name, url):
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
