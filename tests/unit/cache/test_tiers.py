"""Both tiers together: what goes where, what comes back, and how long the end of the process waits."""

from __future__ import annotations

import logging
import random
import threading
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from llamaserve.cache.disk_tier import DiskTier
from llamaserve.cache.prompt import Prompt
from llamaserve.cache.ram_tier import RamTier
from llamaserve.cache.tiers import CLOSE_TIMEOUT_S, Tiers
from llamaserve.engine.fake import FakeEngine
from llamaserve.engine.port import PromptPiece, SequenceSpec, StepPlan
from llamaserve.request import SamplingParams
from tests.unit.cache.disk import LARGE, PATIENCE_S, files, make_tier
from tests.unit.cache.saved import make_saved

CELL_BYTES = 96
TOKEN_BYTES = 4
SCOPE = "tenant"


def text(seed: int, n_tokens: int) -> array[int]:
    """Texts of two seeds differ from the first token on."""
    return array("i", [seed, *(random.Random(seed).randrange(256) for _ in range(n_tokens - 1))])


def make_engine(n_ctx: int = 8192) -> FakeEngine:
    return FakeEngine(n_ctx=n_ctx, bytes_per_cell=CELL_BYTES)


def hold(engine: FakeEngine, seq_id: int, tokens: array[int]) -> None:
    """Have an id that is not open hold these tokens."""
    engine.open(SequenceSpec(seq_id, SamplingParams()))
    n_batch = engine.info.n_batch
    for at in range(0, len(tokens), n_batch):
        piece = PromptPiece(seq_id, tokens[at : at + n_batch], is_last=at + n_batch >= len(tokens))
        engine.step(StepPlan(pieces=[piece]))
    engine.close(seq_id, keep=True)
    assert engine.tokens(seq_id) == tuple(tokens)


def chain(tiers: Tiers, tokens: array[int], n_held: int = 0) -> list[int]:
    """Where the pieces begin that come back one after the other, and how many tokens there are then."""
    found = []
    while (hit := tiers.best(SCOPE, tokens, n_held, len(tokens))) is not None:
        found.append(hit.saved.start)
        n_held = hit.n_tokens
    return [*found, n_held]


def spill(tiers: Tiers, engine: FakeEngine, tokens: array[int], *bounds: int) -> None:
    """Move what id 0 holds to RAM, in pieces that begin there, from its end."""
    for start in sorted(bounds, reverse=True):
        held = tokens[: engine.length(0)]
        assert tiers.take_over(SCOPE, held, start, 0, len(tokens))
        engine.trim(0, start)


# Pieces.


def test_a_text_that_left_in_pieces_comes_back_whole_over_a_short_one() -> None:
    """K146: 20 tokens alone would be computed, but what is behind them is of no use without."""
    engine = make_engine()
    tiers = Tiers(engine, RamTier(LARGE), None)
    tokens = text(1, 2500)
    hold(engine, 0, tokens)
    spill(tiers, engine, tokens, 0, 1000, 1020, 2020)
    assert chain(tiers, tokens) == [0, 1000, 1020, 2020, 2500]


def test_several_short_pieces_in_a_row_are_crossed_and_a_short_end_is_not_kept() -> None:
    engine = make_engine()
    tiers = Tiers(engine, RamTier(LARGE), None)
    tokens = text(1, 500)
    hold(engine, 0, tokens)
    spill(tiers, engine, tokens, 0, 100, 110, 120, 130, 480)
    assert tiers.ram_entries == 5
    assert chain(tiers, tokens) == [0, 100, 110, 120, 130, 480]
    assert tiers.best(SCOPE, tokens[:140], 100, 140) is None, "10 tokens behind 30 are not worth it"


def test_short_pieces_are_kept_on_disk_too_and_read_with_the_others(tmp_path: Path) -> None:
    """Evicted pieces that the RAM tier has no room for, the short one among them."""
    engine = make_engine()
    disk = make_tier(tmp_path)
    tokens = text(1, 300)
    hold(engine, 0, tokens)
    tiers = Tiers(engine, None, disk)
    for start in (120, 100, 0):
        assert tiers.offer(SCOPE, tokens[: engine.length(0)], start, 0)
        assert disk.flush(PATIENCE_S)
        engine.trim(0, start)
    arrive(tiers, "r", Prompt(tokens, SCOPE))
    assert chain(tiers, tokens) == [0, 100, 120, 300]
    tiers.close()


# Budgets.


def test_what_alone_is_over_the_ram_budget_goes_to_disk(tmp_path: Path) -> None:
    engine = make_engine()
    disk = make_tier(tmp_path)
    tokens = text(1, 400)
    hold(engine, 0, tokens)
    tiers = Tiers(engine, RamTier(100 * CELL_BYTES), disk)
    assert tiers.offer(SCOPE, tokens, 0, 0)
    assert disk.flush(PATIENCE_S)
    assert (tiers.ram_entries, tiers.disk_entries) == (0, 1)
    assert not tiers.offer(SCOPE, tokens, 0, 0), "it has it"
    arrive(tiers, "r", Prompt(tokens, SCOPE))
    assert chain(tiers, tokens) == [0, 400]
    tiers.close()


def test_a_copy_can_be_limited() -> None:
    engine = make_engine()
    tiers = Tiers(engine, RamTier(LARGE), None)
    tokens = text(1, 100)
    hold(engine, 0, tokens)
    assert not tiers.offer(SCOPE, tokens, 0, 0, 100 * CELL_BYTES - 1)
    assert tiers.offer(SCOPE, tokens, 0, 0, 100 * CELL_BYTES)


def test_a_full_ram_gives_up_what_was_used_longest_ago_for_what_makes_way() -> None:
    """K5: else a server would stop moving cells as soon as its RAM is full of copies nobody asks for."""
    engine = make_engine(2000)
    size = 100 * (CELL_BYTES + TOKEN_BYTES)
    ram = RamTier(3 * size)
    tiers = Tiers(engine, ram, None)
    texts = [text(seed, 100) for seed in range(4)]
    for tokens in texts:
        if len(ram.entries()) == 3:
            assert tiers.best(SCOPE, texts[0], 0, 100) is not None, "a use"
        hold(engine, 0, tokens)
        assert tiers.take_over(SCOPE, tokens, 0, 0, 100)
        engine.trim(0, 0)
    assert [entry.tokens for entry in ram.entries()] == [texts[2], texts[0], texts[3]]
    assert not tiers.take_over(SCOPE, text(9, 100), 0, 0, 2000), "RAM has less room than the cells"


def test_what_ram_evicts_goes_to_disk(tmp_path: Path) -> None:
    engine = make_engine()
    tiers = Tiers(engine, RamTier(100 * (CELL_BYTES + TOKEN_BYTES)), disk := make_tier(tmp_path))
    for seed in (1, 2):
        hold(engine, 0, text(seed, 100))
        assert tiers.offer(SCOPE, text(seed, 100), 0, 0)
        engine.trim(0, 0)
    assert disk.flush(PATIENCE_S)
    assert (tiers.ram_entries, tiers.disk_entries) == (1, 1)
    assert tiers.gauges(parked_sequences=0, parked_cells=0, shares=True).disk_written == 1
    tiers.close()


# From disk.


def test_what_was_read_goes_to_ram_when_its_request_takes_it(tmp_path: Path) -> None:
    engine = make_engine()
    tokens = text(1, 300)
    tiers = Tiers(engine, RamTier(LARGE), make_tier(tmp_path))
    hold(engine, 0, tokens)
    tiers.keep(SCOPE, tokens, 0)
    prompt = Prompt(array("i", [*tokens, 2]), SCOPE)
    arrive(tiers, "r", prompt)
    hit = tiers.best(SCOPE, prompt.tokens, 0, prompt.n_reusable)
    assert hit is not None
    assert hit.is_from_disk
    assert tiers.ram_bytes > 300 * CELL_BYTES
    tiers.took(hit)
    assert tiers.ram_bytes == 300 * (CELL_BYTES + TOKEN_BYTES), "it is not kept twice"
    hit = tiers.best(SCOPE, prompt.tokens, 0, prompt.n_reusable)
    assert hit is not None
    assert not hit.is_from_disk
    tiers.drop_fetch("r")
    assert tiers.ram_entries == 1
    tiers.close()


def test_all_who_wait_find_it_without_a_ram_tier_and_the_last_one_drops_it(tmp_path: Path) -> None:
    engine = make_engine()
    tokens = text(1, 300)
    first = Tiers(engine, None, make_tier(tmp_path))
    hold(engine, 0, tokens)
    first.keep(SCOPE, tokens, 0)
    first.close()
    tiers = Tiers(engine, None, make_tier(tmp_path))
    prompt = Prompt(array("i", [*tokens, 1]), SCOPE)
    for request_id in ("a", "b"):
        arrive(tiers, request_id, prompt)
    assert tiers.gauges(parked_sequences=0, parked_cells=0, shares=True).disk_fetched == 1
    for request_id in ("a", "b"):
        hit = tiers.best(SCOPE, prompt.tokens, 0, prompt.n_reusable)
        assert hit is not None
        tiers.took(hit)
        tiers.drop_fetch(request_id)
    assert (tiers.ram_entries, tiers.ram_bytes) == (0, 0)
    tiers.close()


def test_a_state_that_was_refused_is_deleted(tmp_path: Path) -> None:
    engine = make_engine()
    tiers = Tiers(engine, RamTier(LARGE), disk := make_tier(tmp_path))
    tokens = text(1, 100)
    hold(engine, 0, tokens)
    tiers.keep(SCOPE, tokens, 0)
    arrive(tiers, "r", Prompt(tokens, SCOPE))
    hit = tiers.best(SCOPE, tokens, 0, 99)
    assert hit is not None
    tiers.discard(hit)
    assert disk.flush(PATIENCE_S)
    assert files(tmp_path) == []
    assert chain(tiers, tokens) == [0]
    tiers.close()


# The end.


class StuckDisk(DiskTier):
    """Takes everything and writes nothing; each wait for it takes all the time it is given."""

    clock = 0.0
    n_puts = 0

    def put(self, saved: object, timeout_s: float = 0.0) -> bool:
        del saved, timeout_s
        self.n_puts += 1
        return True

    def flush(self, timeout_s: float) -> bool:
        self.clock += timeout_s
        return False


@pytest.mark.parametrize("n_holders", [1, 50])
def test_a_disk_that_hangs_holds_up_the_end_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, n_holders: int
) -> None:
    """However many texts there are to be kept."""
    engine = make_engine()
    disk = StuckDisk(tmp_path, LARGE, bytes(32))
    ram = RamTier(LARGE)
    tiers = Tiers(engine, ram, disk, clock=lambda: disk.clock)
    for seed in range(n_holders):
        ram.put(make_saved(text(seed + 100, 50), scope=SCOPE))
    for seed in range(n_holders):
        hold(engine, 0, text(seed, 50))
        tiers.keep(SCOPE, text(seed, 50), 0)
        engine.trim(0, 0)
    tiers.close()
    assert disk.clock == CLOSE_TIMEOUT_S
    assert disk.n_puts == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def arrive(tiers: Tiers, request_id: str, prompt: Prompt) -> None:
    """Have read what the disk has of a prompt."""
    may_have_ended = threading.Event()
    tiers.prefetch(request_id, prompt, 0, may_have_ended.set)
    wait_for(lambda: not tiers.is_fetching(request_id), may_have_ended)


def wait_for(is_over: Callable[[], bool], changed: threading.Event) -> None:
    while not is_over():
        assert changed.wait(PATIENCE_S)
        changed.clear()
