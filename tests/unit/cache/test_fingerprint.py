"""What saved states are bound to."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamaserve.cache import fingerprint as module
from llamaserve.cache.disk_file import DIGEST_BYTES
from llamaserve.cache.fingerprint import fingerprint

LAYOUT = "f16 k, f16 v, unified"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of some kilobytes counts as large: 1,000 bytes of head, 8 blocks of 10."""
    monkeypatch.setattr(module, "WHOLE_BYTES", 2000)
    monkeypatch.setattr(module, "HEAD_BYTES", 1000)
    monkeypatch.setattr(module, "N_BLOCKS", 8)
    monkeypatch.setattr(module, "BLOCK_BYTES", 10)


def make_file(path: Path, n_bytes: int, *changed: int) -> Path:
    """Bytes of a pattern, some of them changed."""
    data = bytearray(at * 7 % 251 for at in range(n_bytes))
    for at in changed:
        data[at] ^= 0xFF
    path.write_bytes(data)
    return path


def test_the_same_file_has_the_same_one_whatever_its_name_and_age(tmp_path: Path) -> None:
    first, second = make_file(tmp_path / "a.gguf", 5000), make_file(tmp_path / "b.gguf", 5000)
    assert fingerprint(first, LAYOUT) == fingerprint(second, LAYOUT)
    assert len(fingerprint(first, LAYOUT)) == DIGEST_BYTES


def test_another_layout_has_another_one(tmp_path: Path) -> None:
    model = make_file(tmp_path / "a.gguf", 5000)
    assert fingerprint(model, LAYOUT) != fingerprint(model, "q8_0 k, q8_0 v, unified")


@pytest.mark.parametrize("at", [0, 1, 500, 4999])
def test_one_changed_byte_in_a_small_file_changes_it(tmp_path: Path, at: int) -> None:
    assert fingerprint(make_file(tmp_path / "a", 5000), "") != fingerprint(make_file(tmp_path / "b", 5000, at), "")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("at", [0, 8, 500, 999, 10_990, 10_999])
def test_one_changed_byte_in_the_metadata_or_at_the_end_of_a_large_file_changes_it(tmp_path: Path, at: int) -> None:
    assert fingerprint(make_file(tmp_path / "a", 11_000), "") != fingerprint(make_file(tmp_path / "b", 11_000, at), "")


@pytest.mark.usefixtures("small_blocks")
def test_weights_changed_all_over_a_large_file_change_it_one_between_the_blocks_does_not(tmp_path: Path) -> None:
    """No more of 40 GB is read than takes a second."""
    model = fingerprint(make_file(tmp_path / "a", 11_000), "")
    assert fingerprint(make_file(tmp_path / "b", 11_000, *range(3000, 4300)), "") != model
    assert fingerprint(make_file(tmp_path / "c", 11_000, 1100), "") == model


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("n_bytes", [0, 1, 1999, 2000, 2001, 10_999, 11_001])
def test_another_size_changes_it(tmp_path: Path, n_bytes: int) -> None:
    """Also where all that is read of both is the same."""
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(bytes(11_000))
    second.write_bytes(bytes(n_bytes))
    assert fingerprint(first, "") != fingerprint(second, "")


def test_all_files_of_a_split_model_count(tmp_path: Path) -> None:
    names = [f"model-{part:05}-of-00002.gguf" for part in (1, 2)]
    first, second = (make_file(tmp_path / name, 3000) for name in names)
    before = fingerprint(first, "")
    make_file(second, 3000, 2000)
    assert fingerprint(first, "") != before
    second.unlink()
    with pytest.raises(FileNotFoundError):
        fingerprint(first, "")


def test_adapters_count_with_their_scales_and_in_their_order(tmp_path: Path) -> None:
    model, one, two = (make_file(tmp_path / name, n) for name, n in (("a", 3000), ("b", 200), ("c", 300)))
    choices: list[list[tuple[Path, float]]] = [
        [],
        [(one, 1.0)],
        [(one, 0.5)],
        [(two, 1.0)],
        [(one, 1.0), (two, 1.0)],
        [(two, 1.0), (one, 1.0)],
    ]
    assert len({fingerprint(model, LAYOUT, adapters) for adapters in choices}) == len(choices)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fingerprint(tmp_path / "missing.gguf", LAYOUT)
