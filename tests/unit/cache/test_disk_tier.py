"""Copies of cells in files: found, fetched, evicted, and there after a restart. S75."""

from __future__ import annotations

import os
import queue
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llamaserve.cache.disk_tier import DiskTier, FetchedState
from llamaserve.cache.saved_prefix import SavedPrefix
from tests.unit.cache.disk import (
    FINGERPRINT,
    LARGE,
    PATIENCE_S,
    best,
    brought_back,
    fetched,
    file_size,
    files,
    make_tier,
    store,
)
from tests.unit.cache.saved import BytesState, make_saved, state_bytes, token_ids

TEXT = range(1000, 1100)


def other_tokens(index: int, n_tokens: int = 100) -> range:
    """Tokens that have nothing in common with those of another index."""
    return range(10_000 * (index + 1), 10_000 * (index + 1) + n_tokens)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "made" / "as needed"


@pytest.fixture
def tier(folder: Path) -> Iterator[DiskTier]:
    tier = make_tier(folder)
    yield tier
    tier.close()


class HeldState(BytesState):
    """Its writing waits until it is released."""

    def __init__(self, saved: SavedPrefix) -> None:
        super().__init__(bytes(saved.state.view()), saved.start, saved.end)
        self.is_reached = threading.Event()
        self.is_released = threading.Event()

    def view(self) -> memoryview:
        self.is_reached.set()
        assert self.is_released.wait(PATIENCE_S)
        return super().view()


def held_up(tier: DiskTier, index: int = 900) -> HeldState:
    """Have the tier's writer be in the middle of a file."""
    saved = make_saved(other_tokens(index))
    state = HeldState(saved)
    assert tier.put(SavedPrefix("", saved.tokens, 0, state))
    assert state.is_reached.wait(PATIENCE_S)
    return state


def test_what_was_put_is_fetched_as_it_was(tier: DiskTier) -> None:
    assert tier.put(make_saved(TEXT, 20))
    assert tier.flush(PATIENCE_S)
    hit = best(tier, [*TEXT, 7], n_have=20)
    assert hit is not None
    assert (hit.n_tokens, hit.entry.start) == (100, 20)
    found = fetched(tier, hit)
    assert found is not None
    assert (found.scope, found.tokens, found.start) == ("", token_ids(TEXT), 20)
    assert bytes(found.data) == state_bytes(token_ids(TEXT), 20)
    assert (tier.n_entries, tier.n_bytes) == (1, file_size(100, 20))
    assert (tier.counters.written, tier.counters.fetched, tier.counters.bad_files) == (1, 1, 0)


def test_a_new_tier_finds_what_the_last_one_wrote(folder: Path) -> None:
    """S75: a restart."""
    first = make_tier(folder)
    store(first, make_saved(TEXT, scope="tenant"), make_saved(other_tokens(0)))
    first.close()
    second = make_tier(folder)
    assert (second.n_entries, second.n_bytes) == (2, 2 * file_size(100))
    found = brought_back(second, [*TEXT, 7], scope="tenant")
    assert found is not None
    assert bytes(found.data) == state_bytes(token_ids(TEXT), 0)
    assert brought_back(second, TEXT) is None, "K40"
    second.close()


def test_the_order_of_use_survives_a_restart(folder: Path) -> None:
    """K5: a file that was fetched is younger than one that was only written."""
    first = make_tier(folder, 3 * file_size(100))
    copies = [make_saved(other_tokens(index)) for index in range(3)]
    store(first, *copies)
    long_ago = 1_000_000_000
    for at, path in enumerate(files(folder)):
        os.utime(path, (long_ago + at, long_ago + at))
    assert brought_back(first, copies[1].tokens) is not None
    first.close()
    second = make_tier(folder, 3 * file_size(100))
    store(second, make_saved(other_tokens(3)), make_saved(other_tokens(4)))
    assert best(second, copies[0].tokens) is None
    assert best(second, copies[1].tokens) is not None
    assert best(second, copies[2].tokens) is None
    second.close()


def test_files_used_longest_ago_are_deleted_first(folder: Path) -> None:
    """K5: a hit is a use."""
    tier = make_tier(folder, 3 * file_size(100))
    copies = [make_saved(other_tokens(index)) for index in range(4)]
    store(tier, *copies[:3])
    assert best(tier, copies[0].tokens) is not None
    store(tier, copies[3])
    assert [best(tier, saved.tokens) is not None for saved in copies] == [True, False, True, True]
    assert sum(path.stat().st_size for path in files(folder)) == tier.n_bytes == 3 * file_size(100)
    assert tier.counters.evicted == 1
    tier.close()


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(20, 400)), max_size=12), st.integers(5_000, 100_000))
def test_the_files_never_take_more_than_the_budget(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]], max_bytes: int
) -> None:
    """S37"""
    folder = tmp_path_factory.mktemp("tier")
    tier = make_tier(folder, max_bytes)
    for index, n_tokens in sizes:
        saved = make_saved(other_tokens(index, n_tokens))
        is_wanted = tier.wants("", saved.tokens, 0) and file_size(n_tokens) <= max_bytes
        assert tier.put(saved) == is_wanted
        assert tier.flush(PATIENCE_S)
        assert not is_wanted or best(tier, saved.tokens) is not None
        on_disk = sum(path.stat().st_size for path in folder.iterdir())
        assert on_disk == tier.n_bytes <= max_bytes
    tier.close()


def test_a_smaller_budget_after_a_restart_deletes_the_oldest(folder: Path) -> None:
    first = make_tier(folder)
    copies = [make_saved(other_tokens(index)) for index in range(3)]
    store(first, *copies)
    first.close()
    second = make_tier(folder, 2 * file_size(100))
    assert second.n_entries == len(files(folder)) == 2
    second.close()


def test_wants_has_the_rules_of_the_ram_tier(folder: Path) -> None:
    """S36: asked before anything is copied."""
    tier = make_tier(folder, file_size(100))
    tokens = token_ids(TEXT)
    assert tier.wants("", tokens, 0)
    assert not tier.put(make_saved(other_tokens(0, 101))), "it alone is over the budget"
    store(tier, make_saved(TEXT))
    assert not tier.wants("", tokens[:90], 0), "covered"
    assert not tier.put(make_saved(TEXT))
    assert tier.wants("other", tokens, 0)
    tier.close()


def test_a_file_that_goes_on_behind_some_tokens_is_known(tier: DiskTier) -> None:
    store(tier, make_saved(TEXT, 50))
    assert tier.goes_on("", token_ids(TEXT[:50]), 40)
    assert not tier.goes_on("", token_ids(TEXT[:49]), 40)
    assert not tier.goes_on("other", token_ids(TEXT[:50]), 40), "K40"


def test_what_nobody_wants_any_more_is_not_read(tier: DiskTier) -> None:
    store(tier, make_saved(TEXT))
    hit = best(tier, TEXT)
    assert hit is not None
    answers: queue.SimpleQueue[FetchedState | None] = queue.SimpleQueue()
    tier.fetch(hit, answers.put, lambda: False)
    assert answers.get(timeout=PATIENCE_S) is None
    assert tier.counters.fetched == 0
    assert fetched(tier, hit) is not None


def test_a_disk_that_hangs_holds_up_the_end_no_longer_than_it_may(tier: DiskTier) -> None:
    """Both threads together: here the writing one never ends by itself."""
    held = held_up(tier)
    tier.close(0.05)
    assert not held.is_released.is_set()
    held.is_released.set()


def test_a_longer_copy_takes_the_place_of_those_it_stands_in_for(tier: DiskTier, folder: Path) -> None:
    store(tier, make_saved(TEXT[:50]), make_saved(TEXT, 50), make_saved(TEXT))
    assert tier.n_entries == len(files(folder)) == 1
    assert tier.counters.evicted == 0
    found = brought_back(tier, TEXT)
    assert found is not None
    assert found.start == 0


def test_pieces_of_a_prefix_chain_and_strangers_do_not_join_on(tier: DiskTier) -> None:
    store(tier, make_saved(TEXT[:50]), make_saved(TEXT, 50), make_saved([7, *TEXT[1:]], 50))
    n_have, starts = 0, []
    while (hit := best(tier, [*TEXT, 1], n_have)) is not None:
        found = fetched(tier, hit)
        assert found is not None
        assert bytes(found.data) == state_bytes(found.tokens, found.start)
        starts.append(found.start)
        n_have = hit.n_tokens
    assert starts == [0, 50]
    assert n_have == 100


def test_memory_that_cannot_be_trimmed_takes_whole_states_only(folder: Path) -> None:
    tier = make_tier(folder, can_trim=False)
    store(tier, make_saved(TEXT), make_saved(TEXT[:60]))
    hit = best(tier, [*TEXT[:90], 1])
    assert hit is not None
    assert (hit.n_tokens, tier.n_entries) == (60, 2)
    tier.close()


def test_no_scope_is_readable_on_disk_and_only_the_owner_reads_the_rest(tier: DiskTier, folder: Path) -> None:
    store(tier, make_saved(TEXT, scope="a tenant's secret"))
    (path,) = files(folder)
    assert b"secret" not in path.read_bytes()
    assert "secret" not in path.name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_scope_has_another_hash_with_another_model(folder: Path) -> None:
    hashes = set()
    for fingerprint in (FINGERPRINT, bytes(32)):
        tier = make_tier(folder, fingerprint=fingerprint)
        store(tier, make_saved(TEXT, scope="tenant"))
        hit = best(tier, TEXT, scope="tenant")
        assert hit is not None
        hashes.add(hit.entry.scope)
        tier.close()
    assert len(hashes) == 2


def test_models_share_a_folder_without_seeing_or_deleting_each_others_files(folder: Path) -> None:
    """What is another model's does not count either."""
    first = make_tier(folder, fingerprint=bytes(32))
    store(first, make_saved(TEXT), make_saved(other_tokens(0)))
    second = make_tier(folder, file_size(100))
    assert best(second, TEXT) is None
    assert (second.n_entries, second.n_bytes) == (0, 0)
    store(second, make_saved(TEXT), make_saved(other_tokens(1)))
    assert len(files(folder)) == 3
    assert brought_back(first, TEXT) is not None
    first.close()
    second.close()


def test_processes_that_share_a_folder_learn_of_each_others_files_and_keep_one_budget(folder: Path) -> None:
    budget = 3 * file_size(100)
    first, second = make_tier(folder, budget), make_tier(folder, budget)
    store(first, make_saved(other_tokens(0)), make_saved(other_tokens(1)))
    assert second.n_entries == 0
    store(second, make_saved(other_tokens(2)))
    assert second.n_entries == 3
    assert brought_back(second, other_tokens(0)) is not None
    store(second, make_saved(other_tokens(3)))
    assert len(files(folder)) == 3
    gone = [index for index in (0, 1) if best(second, other_tokens(index)) is None]
    assert len(gone) == 1
    assert brought_back(first, other_tokens(gone[0])) is None, "the other process has deleted it"
    store(first, make_saved(other_tokens(4)))
    assert len(files(folder)) == first.n_entries == 3
    first.close()
    second.close()


def test_writers_at_the_same_time_corrupt_nothing(folder: Path) -> None:
    """The same prefixes too: each has one name, and a file comes to it whole."""
    tiers = [make_tier(folder, 12 * file_size(100)) for _ in range(3)]

    def write(tier: DiskTier) -> None:
        for index in range(10):
            tier.put(make_saved(other_tokens(index)), PATIENCE_S)
            brought_back(tier, other_tokens(index))

    threads = [threading.Thread(target=write, args=(tier,)) for tier in tiers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for tier in tiers:
        assert tier.flush(PATIENCE_S)
        assert tier.is_on
        tier.close()
    last = make_tier(folder)
    assert last.counters.bad_files == 0
    assert last.n_entries == len(list(folder.iterdir())) == 10
    for index in range(10):
        found = brought_back(last, other_tokens(index))
        assert found is not None
        assert bytes(found.data) == state_bytes(token_ids(other_tokens(index)), 0)
    last.close()


def test_no_more_states_wait_to_be_written_than_their_bytes_allow(folder: Path) -> None:
    """Also while nothing is written at all; one may wait however large it is."""
    tier = make_tier(folder, max_queued_bytes=2 * file_size(100))
    held = held_up(tier)
    assert tier.put(make_saved(other_tokens(1)))
    third = make_saved(other_tokens(2))
    assert not tier.wants("", third.tokens, 0)
    assert not tier.put(third)
    assert tier.counters.refused == 1
    assert not tier.flush(0.0)
    held.is_released.set()
    assert tier.put(third, PATIENCE_S), "it waits for room"
    assert tier.flush(PATIENCE_S)
    assert tier.n_entries == 3
    assert tier.put(make_saved(other_tokens(3, 1000)))
    tier.close()


def test_what_waits_to_be_written_is_not_put_twice(tier: DiskTier) -> None:
    held = held_up(tier)
    assert tier.put(make_saved(TEXT))
    assert not tier.put(make_saved(TEXT))
    held.is_released.set()
    assert tier.flush(PATIENCE_S)
    assert tier.counters.written == 2


def test_a_fetch_does_not_wait_for_a_write(tier: DiskTier) -> None:
    store(tier, make_saved(TEXT))
    held = held_up(tier)
    assert brought_back(tier, TEXT) is not None
    held.is_released.set()


def test_a_file_the_engine_could_not_use_is_deleted(tier: DiskTier, folder: Path) -> None:
    store(tier, make_saved(TEXT))
    hit = best(tier, TEXT)
    assert hit is not None
    tier.discard(hit)
    assert best(tier, TEXT) is None
    assert tier.flush(PATIENCE_S)
    assert files(folder) == []
    store(tier, make_saved(TEXT))
    assert brought_back(tier, TEXT) is not None, "a new one takes its place"


def test_a_closed_tier_has_and_takes_nothing_and_answers_everybody(folder: Path) -> None:
    tier = make_tier(folder)
    store(tier, make_saved(TEXT))
    hit = best(tier, TEXT)
    assert hit is not None
    is_entered, may_go_on = threading.Event(), threading.Event()
    answers: queue.SimpleQueue[FetchedState | None] = queue.SimpleQueue()

    def hold_up_the_reader(answer: FetchedState | None) -> None:
        is_entered.set()
        assert may_go_on.wait(PATIENCE_S)
        answers.put(answer)

    tier.fetch(hit, hold_up_the_reader)
    assert is_entered.wait(PATIENCE_S)
    tier.fetch(hit, answers.put)
    held = held_up(tier)
    assert tier.put(make_saved(other_tokens(1)))
    closing = threading.Thread(target=tier.close)
    closing.start()
    assert answers.get(timeout=PATIENCE_S) is None, "it does not wait for what is under way"
    held.is_released.set()
    may_go_on.set()
    assert answers.get(timeout=PATIENCE_S) is not None
    closing.join(PATIENCE_S)
    tier.close()
    assert not tier.is_on
    assert best(tier, TEXT) is None
    assert not tier.wants("", token_ids(other_tokens(2)), 0)
    assert not tier.put(make_saved(other_tokens(2)), 0.01)
    assert fetched(tier, hit) is None
    assert [path.suffix for path in folder.iterdir()] == [".prefix"], "no temporary file is left"


def test_a_caller_that_fails_on_an_answer_does_not_end_the_reading(
    tier: DiskTier, caplog: pytest.LogCaptureFixture
) -> None:
    store(tier, make_saved(TEXT))
    hit = best(tier, TEXT)
    assert hit is not None

    def fail(_: FetchedState | None) -> None:
        raise RuntimeError("no thanks")

    tier.fetch(hit, fail)
    assert fetched(tier, hit) is not None
    assert "a job of llamaserve-disk-read failed" in caplog.text


@pytest.mark.parametrize(("max_bytes", "fingerprint"), [(0, FINGERPRINT), (1, b"short")])
def test_a_tier_that_cannot_work_is_refused(tmp_path: Path, max_bytes: int, fingerprint: bytes) -> None:
    with pytest.raises(ValueError, match="it must"):
        DiskTier(tmp_path, max_bytes, fingerprint)


def test_the_tokens_of_all_files_stay_within_their_ram(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookups need them in memory, so a large disk could take any amount of it."""
    monkeypatch.setattr("llamaserve.cache.disk_index.INDEX_BYTES", 3 * (1024 + 400))
    tier = make_tier(folder, LARGE)
    store(tier, *(make_saved(other_tokens(index)) for index in range(6)))
    assert tier.n_entries == len(files(folder)) == 3
    tier.close()
