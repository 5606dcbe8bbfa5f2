"""Whatever is wrong with a file is a miss; whatever is wrong with the folder turns the tier off. S75."""

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from llamaserve.cache.disk_file import DIGEST_BYTES, TOKENS_AT
from llamaserve.cache.disk_folder import ABANDONED_S
from llamaserve.cache.disk_tier import DiskTier
from tests.unit.cache.disk import (
    FINGERPRINT,
    PATIENCE_S,
    best,
    brought_back,
    fetched,
    file_size,
    files,
    make_tier,
    store,
)
from tests.unit.cache.saved import BYTES_PER_TOKEN, make_saved, state_bytes, token_ids

N_TOKENS = 40
TOKENS_END = TOKENS_AT + 4 * N_TOKENS
STATE_END = TOKENS_END + BYTES_PER_TOKEN * N_TOKENS
REGIONS = {
    "magic": (0, 8),
    "version": (8, 12),
    "fingerprint": (12, 44),
    "scope": (44, 76),
    "start": (76, 84),
    "token count": (84, 92),
    "state size": (92, 100),
    "header checksum": (100, TOKENS_AT),
    "tokens": (TOKENS_AT, TOKENS_END),
    "state": (TOKENS_END, STATE_END),
    "checksum": (STATE_END, STATE_END + DIGEST_BYTES),
}
Damage = Callable[[Path], None]


def text(index: int) -> range:
    """Tokens of a file, unlike those of all others."""
    return range(1000 * (index + 1), 1000 * (index + 1) + N_TOKENS)


def flip(at: int, bit: int, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def truncate(n_bytes: int, path: Path) -> None:
    os.truncate(path, n_bytes)


def append(data: bytes, path: Path) -> None:
    path.write_bytes(path.read_bytes() + data)


def contain(data: bytes, path: Path) -> None:
    path.write_bytes(data)


def claim(at: int, value: bytes, path: Path) -> None:
    """The header lies, and the checksums agree with it."""
    data = bytearray(path.read_bytes())
    data[at : at + len(value)] = value
    header = data[: TOKENS_AT - DIGEST_BYTES] + data[TOKENS_AT:TOKENS_END]
    data[TOKENS_AT - DIGEST_BYTES : TOKENS_AT] = hashlib.blake2b(header, digest_size=DIGEST_BYTES).digest()
    data[STATE_END:] = hashlib.blake2b(data[:STATE_END], digest_size=DIGEST_BYTES).digest()
    path.write_bytes(data)


def take_the_name_of_another(path: Path) -> None:
    """Sound, but not what its name says."""
    claim(TOKENS_AT, struct.pack("<i", 77), path)


def vanish(path: Path) -> None:
    path.unlink()


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_a_link(path: Path) -> None:
    """To a file that is sound."""
    target = path.parent / f"target of {path.stem}"
    path.rename(target)
    path.symlink_to(target)


def become_a_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def become_an_endless_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def kinds_of_damage() -> Iterator[Damage]:
    for start, end in REGIONS.values():
        for at in sorted({start, (start + end) // 2, end - 1}):
            for bit in (0, 7):
                yield functools.partial(flip, at, bit)
        for n_bytes in (start, start + 1, (start + end) // 2):
            yield functools.partial(truncate, n_bytes)
    yield functools.partial(truncate, STATE_END + DIGEST_BYTES - 1)
    for data in (b"x", bytes(DIGEST_BYTES), bytes(100_000)):
        yield functools.partial(append, data)
    for data in (b"", b"\0", b"LSPREFIX", bytes(5000), b"not a cache at all\n" * 1000):
        yield functools.partial(contain, data)
    for at, value in (
        (8, struct.pack("<I", 0)),
        (8, struct.pack("<I", 2)),
        (12, bytes(32)),
        (44, bytes(32)),
        (76, struct.pack("<Q", 1)),
        (76, struct.pack("<Q", N_TOKENS)),
        (76, struct.pack("<Q", 2**63)),
        (84, struct.pack("<Q", 0)),
        (84, struct.pack("<Q", 2**60)),
        (84, struct.pack("<Q", 2**64 - 1)),
        (84, struct.pack("<QQ", N_TOKENS - 1, BYTES_PER_TOKEN * N_TOKENS + 4)),
        (84, struct.pack("<QQ", N_TOKENS + 1, BYTES_PER_TOKEN * N_TOKENS - 4)),
        (92, struct.pack("<Q", 0)),
        (92, struct.pack("<Q", 2**60)),
        (92, struct.pack("<Q", 2**64 - 1)),
    ):
        yield functools.partial(claim, at, value)
    yield from (take_the_name_of_another, vanish, become_a_folder, become_a_pipe)
    yield from (become_a_link, become_a_dangling_link, become_an_endless_link)


KINDS = list(kinds_of_damage())
GOOD = range(500, 600)


class Written(NamedTuple):
    """A folder with one sound file and one for each kind of damage."""

    folder: Path
    names: list[str]

    def copy(self, folder: Path) -> None:
        """Have the same files elsewhere."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)

    def damage(self, folder: Path) -> None:
        """Do each kind of damage to its file."""
        for name, damage in zip(self.names, KINDS, strict=True):
            damage(folder / name)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("written")
    tier = make_tier(folder)
    texts = [text(index) for index in range(len(KINDS))]
    store(tier, make_saved(GOOD))
    for tokens in texts:
        assert tier.put(make_saved(tokens))
    assert tier.flush(PATIENCE_S)
    hits = [hit for tokens in texts if (hit := best(tier, tokens)) is not None]
    tier.close()
    return Written(folder, [hit.entry.name for hit in hits])


def is_good(tier: DiskTier) -> bool:
    """Whether the sound file is still found."""
    found = brought_back(tier, GOOD)
    return found is not None and bytes(found.data) == state_bytes(token_ids(GOOD), 0)


def test_there_are_at_least_100_kinds_of_damage() -> None:
    assert len(KINDS) >= 100


def test_files_corrupted_in_100_ways_are_100_misses(tmp_path: Path, written: Written) -> None:
    """Damage done while the tier runs: lookups hit what was learnt before, and nothing is ever fetched."""
    written.copy(tmp_path)
    tier = make_tier(tmp_path)
    assert tier.n_entries == len(KINDS) + 1
    written.damage(tmp_path)
    for index, kind in enumerate(KINDS):
        hit = best(tier, text(index))
        assert hit is not None
        assert fetched(tier, hit) is None, kind
        assert best(tier, text(index)) is None, "it is a miss at once from then on"
    assert is_good(tier)
    assert tier.is_on
    assert tier.n_entries == 1
    assert tier.counters.bad_files == len(KINDS), "each was counted"
    tier.close()


def test_files_corrupted_in_100_ways_are_100_misses_after_a_restart(tmp_path: Path, written: Written) -> None:
    written.copy(tmp_path)
    written.damage(tmp_path)
    tier = make_tier(tmp_path)
    for index, kind in enumerate(KINDS):
        assert brought_back(tier, text(index)) is None, kind
    assert is_good(tier)
    assert tier.is_on
    assert tier.n_entries == 1
    assert tier.counters.bad_files == len(KINDS) - 6, "one is not there, five are no files"
    for index in range(len(KINDS)):
        assert tier.put(make_saved(text(index)))
    assert tier.flush(PATIENCE_S)
    misses = [kind for index, kind in enumerate(KINDS) if brought_back(tier, text(index)) is None]
    assert misses == [become_a_folder], "every other name can be written again"
    tier.close()


def test_corrupt_files_are_deleted_and_what_is_not_ours_is_left_alone(tmp_path: Path, written: Written) -> None:
    written.copy(tmp_path)
    written.damage(tmp_path)
    tier = make_tier(tmp_path)
    for index in range(len(KINDS)):
        brought_back(tier, text(index))
    tier.close()
    left = [path for path in tmp_path.iterdir() if path.is_symlink() or not path.is_file()]
    assert len(left) == 5, "a folder, a pipe and three links"
    targets = list(tmp_path.glob("target of *"))
    assert len(targets) == 1, "a link's target is not ours"
    foreign = [path for path in files(tmp_path) if path.is_file() and path.read_bytes()[12:44] == bytes(32)]
    assert len(foreign) == 1
    assert len(list(tmp_path.iterdir())) == 1 + len(left) + len(targets) + len(foreign)


def test_a_file_whose_size_lies_about_memory_costs_none(tmp_path: Path) -> None:
    """A sparse file may be as large as its header says."""
    tier = make_tier(tmp_path)
    store(tier, make_saved(text(0)))
    (path,) = files(tmp_path)
    n_bytes = 1 << 40
    claim(92, struct.pack("<Q", n_bytes - TOKENS_END - DIGEST_BYTES), path)
    os.truncate(path, n_bytes)
    assert brought_back(tier, text(0)) is None
    tier.close()
    store(tier := make_tier(tmp_path), make_saved(text(0)))
    claim(92, struct.pack("<Q", n_bytes - TOKENS_END - DIGEST_BYTES), path)
    os.truncate(path, n_bytes)
    tier.close()
    tier = make_tier(tmp_path)
    assert tier.n_entries == 0
    assert files(tmp_path) == [], "it alone is over the budget"
    tier.close()


def test_a_file_that_may_not_be_read_is_a_miss_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = make_tier(tmp_path)
    store(tier, make_saved(text(0)))
    hit = best(tier, text(0))
    assert hit is not None
    fail(monkeypatch, "open", errno.EACCES)
    assert fetched(tier, hit) is None
    assert best(tier, text(0)) is None
    monkeypatch.undo()
    store(tier, make_saved(text(1)))
    assert tier.is_on
    assert len(files(tmp_path)) == 2
    tier.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_passes_turns_nothing_off_and_forgets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Too many sockets open, say."""
    tier = make_tier(tmp_path)
    store(tier, make_saved(text(0)))
    fail(monkeypatch, "open", code)
    assert brought_back(tier, text(0)) is None
    store(tier, make_saved(text(1)))
    monkeypatch.undo()
    assert brought_back(tier, text(0)) is not None
    store(tier, make_saved(text(1)))
    assert brought_back(tier, text(1)) is not None
    tier.close()


def fail(monkeypatch: pytest.MonkeyPatch, function: str, code: int) -> None:
    """Have a function of the operating system fail."""

    def failing(*_args: Any, **_options: Any) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(f"llamaserve.cache.disk_file.os.{function}", failing)


def fail_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full after the first bytes of a file."""
    write, n_written = os.write, 0

    def write_some(fd: int, data: memoryview) -> int:
        nonlocal n_written
        if n_written >= 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        n_written += (n := write(fd, data[:100]))
        return n

    monkeypatch.setattr("llamaserve.cache.disk_file.os.write", write_some)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("write", errno.ENOSPC),
        ("write", errno.EDQUOT),
        ("write", errno.EIO),
        ("write late", errno.ENOSPC),
        ("fsync", errno.EIO),
        ("replace", errno.ENOSPC),
        ("open", errno.EROFS),
        ("open", errno.EACCES),
        ("scandir", errno.EIO),
    ],
)
def test_a_disk_that_is_full_or_broken_turns_the_tier_off_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, function: str, code: int
) -> None:
    """The process goes on, and a restart finds what there was."""
    tier = make_tier(tmp_path)
    store(tier, make_saved(text(0)))
    hit = best(tier, text(0))
    assert hit is not None
    if function == "write late":
        fail_late(monkeypatch)
    else:
        fail(monkeypatch, function, code)
    for index in range(1, 4):
        tier.put(make_saved(text(index)))
    assert tier.flush(PATIENCE_S)
    monkeypatch.undo()
    assert not tier.is_on
    assert (tier.n_entries, tier.n_bytes) == (0, 0)
    assert best(tier, text(0)) is None
    assert fetched(tier, hit) is None
    assert not tier.wants("", token_ids(text(5)), 0)
    assert not tier.put(make_saved(text(5)))
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert str(tmp_path) in warnings[0]
    assert os.strerror(code) in warnings[0]
    tier.close()
    assert len(list(tmp_path.iterdir())) == 1, "no temporary file is left"
    restarted = make_tier(tmp_path)
    assert brought_back(restarted, text(0)) is not None
    restarted.close()


def test_a_folder_that_vanishes_turns_the_tier_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "cache"
    tier = make_tier(folder)
    store(tier, make_saved(text(0)), make_saved(text(1)))
    shutil.rmtree(folder)
    assert brought_back(tier, text(0)) is None
    store(tier, make_saved(text(2)))
    assert not tier.is_on
    assert not folder.exists()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    tier.close()


def test_a_folder_that_cannot_be_made_turns_the_tier_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "below"):
        tier = make_tier(folder)
        assert not tier.is_on
        assert not tier.put(make_saved(text(0)))
        tier.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_turns_the_tier_off(tmp_path: Path) -> None:
    tier = make_tier(tmp_path)
    tmp_path.chmod(0o500)
    store(tier, make_saved(text(0)))
    assert not tier.is_on
    tmp_path.chmod(0o700)
    tier.close()


def test_what_a_dead_process_was_writing_is_removed_and_what_a_live_one_writes_is_not(tmp_path: Path) -> None:
    tier = make_tier(tmp_path)
    store(tier, make_saved(text(0)))
    tier.close()
    (path,) = files(tmp_path)
    names = [path.stem + ".dead.tmp", path.stem + ".alive.tmp", "someone else's.tmp"]
    for name in names:
        (tmp_path / name).touch()
    long_ago = time.time() - ABANDONED_S - 60
    for name in (names[0], names[2]):
        os.utime(tmp_path / name, (long_ago, long_ago))
    tier = make_tier(tmp_path, file_size(N_TOKENS), FINGERPRINT)
    assert {path.name for path in tmp_path.iterdir()} == {path.name, names[1], names[2]}
    assert tier.n_entries == 1
    tier.close()
