"""Files that are read for requests that wait: once for all of them, within a budget, and without waiting for ever."""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable, Iterator

import pytest

from llamaserve.cache.disk_index import DiskEntry
from llamaserve.cache.disk_reads import READ_TIMEOUT_S, WAIT_TIMEOUT_S, DiskReads
from llamaserve.cache.disk_tier import DiskHit, FetchedState
from llamaserve.cache.saved_prefix import SavedPrefix
from tests.unit.cache.saved import BytesState, token_ids

FILE_BYTES = 1000
LARGE = 1 << 30


class ScriptedDisk:
    """Reads when it is told to, in the order of the orders."""

    def __init__(self) -> None:
        self.orders: list[tuple[DiskHit, Callable[[FetchedState | None], None], Callable[[], bool]]] = []
        self.begun: list[str] = []
        self.discarded: list[str] = []

    def fetch(self, hit: DiskHit, done: Callable[[FetchedState | None], None], is_wanted: Callable[[], bool]) -> None:
        self.orders.append((hit, done, is_wanted))

    def discard(self, hit: DiskHit) -> None:
        self.discarded.append(hit.entry.name)

    def begin(self) -> bool:
        """Begin with the first order; whether somebody wants it. One that is not wanted is answered."""
        hit, done, is_wanted = self.orders[0]
        if is_wanted():
            self.begun.append(hit.entry.name)
            return True
        del self.orders[0]
        done(None)
        return False

    def answer(self, *, fails: bool = False) -> None:
        hit, done, _ = self.orders.pop(0)
        entry = hit.entry
        done(None if fails else FetchedState(hit.scope, entry.tokens, entry.start, memoryview(b"x")))

    def read_all(self) -> None:
        while self.orders:
            if self.begin():
                self.answer()


class Rig:
    """Reads on a scripted disk and a clock that stands still."""

    def __init__(self, max_bytes: int = 10 * FILE_BYTES) -> None:
        self.disk = ScriptedDisk()
        self.now = 0.0
        self.n_woken = 0
        self.fails_to_load = False
        self.reads = DiskReads(
            self.disk, self._load, can_trim=True, max_bytes=max_bytes, clock=lambda: self.now, check_s=LARGE / 1000
        )

    def _load(self, fetched: FetchedState) -> SavedPrefix:
        if self.fails_to_load:
            raise ValueError("of another model")
        state = BytesState(b"x" * 100, fetched.start, len(fetched.tokens))
        return SavedPrefix(fetched.scope, fetched.tokens, fetched.start, state)

    def wake(self) -> None:
        self.n_woken += 1

    def order(self, request_id: str, *hits: DiskHit) -> None:
        self.reads.order(request_id, hits, self.wake)

    def finds(self, hit: DiskHit) -> bool:
        found = self.reads.best("", hit.entry.tokens, hit.entry.start, LARGE)
        return found is not None and found.copy.tokens == hit.entry.tokens


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.reads.close()


def text(index: int, n_tokens: int = 100) -> array[int]:
    return token_ids(range(10_000 * index, 10_000 * index + n_tokens))


def file(index: int, start: int = 0, n_bytes: int = FILE_BYTES, n_tokens: int = 100) -> DiskHit:
    tokens = text(index, n_tokens)
    return DiskHit("", DiskEntry(f"{index}-{start}", "", tokens, start, n_bytes), len(tokens))


def test_a_request_waits_until_its_files_are_read_and_finds_them_until_it_begins(rig: Rig) -> None:
    pieces = [file(1, 0, n_tokens=50), file(1, 50)]
    rig.order("a", *pieces)
    assert rig.reads.is_waiting("a")
    rig.disk.begin()
    rig.disk.answer()
    assert rig.n_woken == 0
    assert rig.reads.is_waiting("a"), "one is missing"
    rig.disk.read_all()
    assert rig.n_woken == 1
    assert not rig.reads.is_waiting("a")
    assert rig.finds(pieces[0])
    assert rig.finds(pieces[1])
    assert (rig.reads.n_entries, rig.reads.n_bytes) == (2, 2 * FILE_BYTES)
    rig.reads.forget("a")
    assert (rig.reads.n_entries, rig.reads.n_bytes) == (0, 0)
    assert not rig.reads.is_waiting("a")


def test_a_chain_larger_than_the_budget_is_kept_whole(rig: Rig) -> None:
    """Else its last piece would push out its first, and a large state could never come back."""
    pieces = [file(1, start, 9 * FILE_BYTES, n_tokens=start + 50) for start in (0, 50, 100)]
    rig.order("a", *pieces)
    rig.disk.read_all()
    assert not rig.reads.is_waiting("a")
    assert all(rig.finds(piece) for piece in pieces)


def test_a_file_is_read_once_for_all_who_want_it(rig: Rig) -> None:
    for number in range(16):
        rig.order(f"r{number}", file(1))
    assert len(rig.disk.orders) == 1
    rig.disk.read_all()
    assert rig.reads.n_bytes == FILE_BYTES
    for number in range(16):
        assert not rig.reads.is_waiting(f"r{number}")
        assert rig.finds(file(1))
        rig.reads.forget(f"r{number}")
    assert (rig.reads.n_entries, rig.reads.n_bytes) == (0, 0)


def test_reads_begin_as_far_as_there_is_room_and_go_on_when_a_request_has_begun(rig: Rig) -> None:
    for index in range(1, 4):
        rig.order(f"r{index}", file(index, n_bytes=4 * FILE_BYTES))
    assert len(rig.disk.orders) == 2
    rig.disk.read_all()
    assert not rig.reads.is_waiting("r1")
    assert rig.reads.is_waiting("r3")
    assert rig.reads.n_bytes == 8 * FILE_BYTES
    rig.order("r4", file(1))
    assert not rig.reads.is_waiting("r4"), "that is there"
    rig.reads.forget("r1")
    assert rig.reads.is_waiting("r3"), "another keeps it"
    rig.reads.forget("r4")
    rig.disk.read_all()
    assert not rig.reads.is_waiting("r3")
    assert rig.finds(file(3))


def test_who_waits_for_its_turn_is_not_overtaken_for_ever(rig: Rig) -> None:
    rig.order("a", file(1))
    rig.order("large", file(2, n_bytes=10 * FILE_BYTES))
    rig.order("small", file(3))
    rig.disk.read_all()
    assert rig.disk.begun == ["1-0"]
    rig.reads.forget("a")
    rig.disk.read_all()
    rig.reads.forget("large")
    rig.disk.read_all()
    assert rig.disk.begun == ["1-0", "2-0", "3-0"]


def test_what_nobody_wants_any_more_is_not_read_or_not_kept(rig: Rig) -> None:
    rig.order("a", file(1))
    rig.order("b", file(2))
    assert rig.disk.begin()
    rig.reads.forget("a")
    assert rig.reads.n_bytes == 2 * FILE_BYTES, "it is being read"
    rig.reads.forget("b")
    rig.disk.answer()
    assert not rig.disk.begin()
    assert (rig.disk.begun, rig.reads.n_bytes, rig.reads.n_entries) == (["1-0"], 0, 0)
    rig.order("c", file(1))
    rig.disk.read_all()
    assert not rig.reads.is_waiting("c")
    assert rig.finds(file(1))


def test_a_file_that_cannot_be_read_keeps_nobody(rig: Rig) -> None:
    rig.order("a", file(1), file(2))
    rig.disk.begin()
    rig.disk.answer(fails=True)
    rig.disk.read_all()
    assert not rig.reads.is_waiting("a")
    assert not rig.finds(file(1))
    assert rig.finds(file(2))
    assert rig.reads.n_bytes == FILE_BYTES


def test_a_disk_that_hangs_holds_nobody_and_is_asked_nothing_more(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.order("done", file(9))
    rig.disk.read_all()
    rig.order("a", file(1))
    rig.order("b", file(2))
    assert rig.reads.is_waiting("a")
    rig.now = 100.0
    assert rig.disk.begin()
    rig.now += READ_TIMEOUT_S - 1
    assert rig.reads.is_waiting("b")
    rig.now += 2
    assert not rig.reads.is_waiting("a")
    assert not rig.reads.is_waiting("b"), "its turn will not come either"
    assert not rig.reads.is_waiting("done")
    assert rig.finds(file(9)), "what was read is of use"
    n_orders = len(rig.disk.orders)
    rig.order("c", file(3))
    assert not rig.reads.is_waiting("c")
    assert len(rig.disk.orders) == n_orders
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    for request_id in ("done", "a", "b", "c"):
        rig.reads.forget(request_id)
    rig.disk.answer()
    rig.disk.read_all()
    assert rig.reads.n_bytes == 0
    rig.order("d", file(1))
    rig.disk.read_all()
    assert not rig.reads.is_waiting("d")
    assert rig.finds(file(1)), "it works again"


def test_a_request_waits_so_long_in_all_from_when_it_could_begin(rig: Rig) -> None:
    """Not from when it came: in a long queue nobody is in its way."""
    rig.order("a", file(1), file(2))
    rig.disk.begin()
    rig.disk.answer()
    rig.now = 10 * WAIT_TIMEOUT_S
    assert rig.reads.is_waiting("a")
    rig.now += WAIT_TIMEOUT_S - 1
    assert rig.reads.is_waiting("a")
    rig.now += 1
    assert not rig.reads.is_waiting("a")
    assert rig.finds(file(1)), "what came in time is of use"


def test_whoever_waits_is_woken_to_look_at_the_time() -> None:
    """With nothing else to do the scheduler sleeps."""
    woken = threading.Event()
    reads = DiskReads(ScriptedDisk(), lambda _: pytest.fail("nothing arrives"), can_trim=True, check_s=0.01)
    reads.order("a", [file(1)], woken.set)
    assert not woken.wait(0.05), "it could not begin anyway"
    assert reads.is_waiting("a")
    assert woken.wait(30)
    reads.close()


def test_a_state_the_engine_does_not_take_is_deleted(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.fails_to_load = True
    rig.order("a", file(1))
    rig.disk.read_all()
    assert not rig.reads.is_waiting("a")
    assert (rig.disk.discarded, rig.reads.n_bytes) == (["1-0"], 0)
    assert "does not fit" in caplog.text


def test_what_was_kept_elsewhere_takes_no_room_and_what_was_refused_is_deleted(rig: Rig) -> None:
    for index in (1, 2):
        rig.order(f"r{index}", file(index))
    rig.disk.read_all()
    copies = []
    for index in (1, 2):
        assert not rig.reads.is_waiting(f"r{index}")
        found = rig.reads.best("", text(index), 0, LARGE)
        assert found is not None
        copies.append(found.copy)
    rig.reads.release(copies[0])
    rig.reads.discard(copies[1])
    rig.reads.discard(copies[1])
    assert (rig.reads.n_entries, rig.reads.n_bytes, rig.disk.discarded) == (0, 0, ["2-0"])
    rig.order("again", file(1))
    rig.disk.read_all()
    assert not rig.reads.is_waiting("again")
    assert rig.finds(file(1)), "it is read anew"
    rig.reads.forget("r1")
    assert rig.finds(file(1))
