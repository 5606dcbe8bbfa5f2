"""What holds in a scheduler between two ticks. Looks inside: nothing outside shows these things."""

from __future__ import annotations

from llamaserve.scheduler.scheduler import MAX_CONSECUTIVE_FAILED_STEPS, Scheduler
from llamaserve.scheduler.slot import Slot, SlotState, Work
from tests.unit.scheduler.prefix_invariants import check_prefixes


def check(scheduler: Scheduler) -> None:
    """Raise AssertionError unless all invariants between two ticks hold."""
    slots, queue = scheduler._slots, scheduler._admitter.queue
    for seq_id, slot in enumerate(slots.all):
        assert slot.seq_id == seq_id
        assert (slot.state is SlotState.IDLE) == (slot.work is None), f"slot {seq_id}: {slot.state}"
        if slot.work is not None:
            _check_work(scheduler, slot, slot.work)
    busy = {slot.seq_id for slot in slots.all if slot.work is not None}
    assert {slot.seq_id for slot in slots} == busy
    assert len(slots.idle) == len(slots.all) - len(busy)
    assert list(slots.generating) == [slot for slot in slots.all if slot.state is SlotState.GENERATING]
    assert list(slots.prefilling) == [slot for slot in slots.all if slot.state is SlotState.PREFILLING]
    running = {slot.working.request.request_id for slot in slots}
    preempted, waiting = set(scheduler._admitter.preempted), set(queue)
    assert not running & (waiting | preempted)
    assert not waiting & preempted
    assert running | waiting | preempted <= scheduler._inbox.live
    assert queue._charges.keys() == running | preempted, "settled once, at the end"
    limits = scheduler._inbox._limits
    assert limits._begun == (running | preempted) - scheduler._inbox._cancelled
    assert limits._waiting.keys() >= waiting - scheduler._inbox._cancelled
    assert limits._waiting.keys() <= scheduler._inbox.live
    assert not len(scheduler._answers), "events were not delivered"
    assert scheduler._n_failed_steps < MAX_CONSECUTIVE_FAILED_STEPS or scheduler._inbox.refusal is not None
    assert scheduler._inbox.refusal is None or not (busy or waiting or preempted), "work after a shut-down"
    assert set(scheduler._engine.ahead_rows) <= busy, "a step runs ahead of a slot that is idle"
    if scheduler._engine.ahead_rows:
        generating = [slot.seq_id for slot in slots.all if slot.state is SlotState.GENERATING]
        assert list(scheduler._engine.ahead_rows) == generating == sorted(busy), "not only decode rows run ahead"
    assert scheduler._ahead.broken <= busy or scheduler._inbox.refusal is not None, "an idle slot is taken for broken"
    _check_preempted(scheduler)
    check_prefixes(scheduler)


def _check_preempted(scheduler: Scheduler) -> None:
    works = [entry.work for entry in scheduler._admitter.preempted._by_id.values()]
    orders = [work.admitted_order for work in works]
    assert orders == sorted(orders), "who gave way first in the order of admission comes back first"
    running = [slot.working.admitted_order for slot in scheduler._slots]
    assert not (orders and running) or max(running) < orders[0], "a newer request has the room of an older one"
    assert scheduler._admitter.preempted.n_bytes_left >= 0, "the copies take more than they may"
    for work in works:
        assert work.text.stop_sequence is None, "E7: past a stop string"


def _check_work(scheduler: Scheduler, slot: Slot, work: Work) -> None:
    request = work.request
    assert scheduler._slots.of(request.request_id) is slot
    assert 0 <= work.n_fed <= work.n_to_feed
    assert (slot.state is SlotState.PREFILLING) == (work.n_left_to_feed > 0)
    assert slot.state is SlotState.PREFILLING or work.n_generated > 0
    assert request.max_tokens is None or work.n_generated < max(1, request.max_tokens), "E7: past max_tokens"
    assert work.n_prompt + work.n_generated < scheduler._info.n_ctx_seq, "E7: past the context bound"
    assert work.text.stop_sequence is None, "E7: past a stop string"
