"""What holds between scheduler, prefix memory and engine between two ticks. Looks inside all three."""

from __future__ import annotations

from llamaserve.cache.shared_prefixes import SharedPrefixes
from llamaserve.engine.fake import FakeEngine
from llamaserve.scheduler.scheduler import Scheduler


def check_prefixes(scheduler: Scheduler) -> None:
    """Raise AssertionError unless everybody agrees on who holds which tokens."""
    engine, prefixes = scheduler._engine, scheduler._prefixes
    assert isinstance(engine, FakeEngine)
    if engine.failure is not None:
        return
    for slot in scheduler._slots.all:
        if slot.work is not None and engine._sequences[slot.seq_id].broken is None:
            assert engine.tokens(slot.seq_id) == tuple(slot.work.tokens_held()), f"slot {slot.seq_id}"
    if isinstance(prefixes, SharedPrefixes):
        _check_shared(scheduler, engine, prefixes)
    else:
        for slot in scheduler._slots.all:
            if slot.work is None:
                held = {holder.seq_id: holder.n_tokens for holder in prefixes.holders()}
                assert len(engine.tokens(slot.seq_id)) == held.get(slot.seq_id, 0), f"idle slot {slot.seq_id}"


def _check_shared(scheduler: Scheduler, engine: FakeEngine, prefixes: SharedPrefixes) -> None:
    index = prefixes._index
    n_slots = engine.info.n_slots
    n_private = 0
    for slot in scheduler._slots.all:
        n_indexed = index.length(slot.seq_id) if slot.seq_id in index else 0
        assert slot.work is not None or slot.seq_id not in index, f"idle slot {slot.seq_id} is in the index"
        held = engine.tokens(slot.seq_id)
        assert slot.seq_id not in index or tuple(index.tokens(slot.seq_id)) == held[:n_indexed]
        n_private += len(held) - n_indexed
    free = set(prefixes._parked.free_ids)
    assert len(free) == len(prefixes._parked.free_ids), "an id is free twice"
    for seq_id in range(n_slots, engine.n_ids):
        assert (seq_id in index) != (seq_id in free), f"parked id {seq_id} is lost"
        assert engine.tokens(seq_id) == (tuple(index.tokens(seq_id)) if seq_id in index else ())
    assert engine.used_cells() == index.n_cells + n_private, "S23: a cell is counted twice, or not at all"
    assert 0 <= prefixes.n_evictable <= index.n_cells
