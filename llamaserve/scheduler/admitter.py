"""From the queue to a slot: who waits, who comes in, who gave a place up and comes back. Scheduler thread only.

In line are first those that were preempted, the oldest first, then the admission queue. Whoever is next comes in when a
slot is idle and memory has room beside those that run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from llamaserve.cache.prefix_memory import PrefixMemory, is_one_pool
from llamaserve.engine.port import Engine
from llamaserve.errors import Cancelled, ContextFull, DeadlineExceeded, EngineDown, LlamaServeError
from llamaserve.request import Failed
from llamaserve.scheduler.admission_queue import AdmissionQueue
from llamaserve.scheduler.answers import Answers, as_ours
from llamaserve.scheduler.constraining import begin
from llamaserve.scheduler.inbox import Inbox, Submit
from llamaserve.scheduler.kv_pressure import n_missing
from llamaserve.scheduler.opening import NO_PROMPT, sequence_spec
from llamaserve.scheduler.preemption import Preempted, PreemptedRequests
from llamaserve.scheduler.slot import Slot, Work
from llamaserve.scheduler.slot_table import SlotTable
from llamaserve.scheduler.stats import Counters

_logger = logging.getLogger(__name__)


class Admitter:
    """All requests that are in the scheduler's hands and have no slot."""

    def __init__(
        self,
        engine: Engine,
        prefixes: PrefixMemory,
        *,
        slots: SlotTable,
        inbox: Inbox,
        answers: Answers,
        counters: Counters,
        clock: Callable[[], float],
        ages: bool,
        preempt_ram: int,
    ) -> None:
        """``ages``: whether less urgent lanes come forward with time; ``preempt_ram``: bytes for preempted cells."""
        self._engine = engine
        self._prefixes = prefixes
        self._slots = slots
        self._inbox = inbox
        self._answers = answers
        self._counters = counters
        self._clock = clock
        self.queue: AdmissionQueue[Submit] = AdmissionQueue(ages=ages)
        self.preempted = PreemptedRequests(preempt_ram)
        info = engine.info
        self._n_ctx = info.n_ctx
        self._n_ctx_seq = info.n_ctx_seq
        self._is_oversubscribed = is_one_pool(info)
        self.following: Collection[int] = ()
        """Sequences that wait for others' tokens; the scheduler tells."""
        self._n_admitted = 0
        self._n_left = 0
        """Requests that have left the queue since it was last observed."""

    # Waiting.

    def take(self, entry: Submit) -> None:
        """Let a request wait."""
        self.queue.push(entry)
        self._prefixes.prefetch(entry.request_id, entry.prompt, self._inbox.wake)

    def cancel(self, request_id: str) -> None:
        """Answer a request that waits, or gave its place up; nothing for one that has ended."""
        if (entry := self.queue.remove(request_id)) is not None:
            self._leave_queue(entry, Failed(Cancelled()))
        elif (preempted := self.preempted.pop(request_id)) is not None:
            self._end(preempted.work, Failed(Cancelled()))

    def expire(self) -> bool:
        """Answer those that have waited too long; whether there were any."""
        if self.queue.next_deadline is None:
            return False
        expired = self.queue.expire(self._clock())
        for entry in expired:
            self._leave_queue(entry, Failed(DeadlineExceeded(entry.timeout_s or 0.0)))
        return bool(expired)

    def watch_queue(self) -> None:
        """Have the inbox know how fast the queue empties."""
        if self.queue or self._n_left:
            self._inbox.drain.observe(self._clock(), n_left=self._n_left, n_waiting=len(self.queue))
            self._n_left = 0

    def settle(self, work: Work) -> None:
        """A request that had a slot has ended: its owner has had so much."""
        request_id = work.request.request_id
        self.queue.settle(request_id, n_computed=work.n_computed, n_generated=work.n_generated)

    def clear(self) -> None:
        """Forget all; they are answered elsewhere."""
        self.queue.clear()
        self.preempted.clear()

    def _leave_queue(self, entry: Submit, event: Failed) -> None:
        """A request ends that had no slot."""
        self._n_left += 1
        self._prefixes.drop_fetch(entry.request_id)
        self._answers.end(entry.request_id, event)

    def _end(self, work: Work, event: Failed) -> None:
        """A request ends that had a slot once."""
        self.settle(work)
        self._answers.end(work.request.request_id, event)

    # Who is next.

    def can_admit(self) -> bool:
        """Whether whoever is next in line can begin."""
        if not self._slots.idle:
            return False
        preempted = self.preempted.first()
        if preempted is None:
            return self._next_of(self.queue.peek) is not None
        return self._n_missing(preempted.work.n_cells, self._n_free()) <= 0

    def _next_of(self, choose: Callable[..., Submit | None]) -> Submit | None:
        """The next of those that wait, by the queue's ``peek`` or ``pop``."""
        if not self.queue:
            return None
        return choose(self._readiness(), idle_sessions=self._slots.idle.sessions())

    def _readiness(self) -> Callable[[Submit], bool]:
        """Whether a waiting request could begin: it does not wait for the disk, and it has room. Those that run are
        looked at once, however many are asked."""
        n_free = self._n_free() if len(self._slots) and self._is_oversubscribed else None
        running = [slot.working.prompt for slot in self._slots] if self._engine.can_share else []

        def is_ready(entry: Submit) -> bool:
            if self._prefixes.is_fetching(entry.request_id):
                return False
            if n_free is None:
                return True
            missing = self._n_missing(entry.n_tokens, n_free)
            # What others hold and it can adopt it does not need. Parked cells count as free, so only running ones do.
            return missing <= 0 or any(entry.prompt.shares(other, missing) for other in running)

        return is_ready

    def _n_free(self) -> int:
        """Cells for others than those that run; what is parked counts as free, and what running prompts will still need
        as taken."""
        works = [slot.working for slot in self._slots.prefilling if slot.seq_id not in self.following]
        n_taken = self._engine.used_cells() + sum(work.n_left_to_feed for work in works)
        return self._n_ctx - n_taken + self._prefixes.n_evictable

    def _n_missing(self, n_cells: int, n_free: int) -> int:
        """Cells that a request is short of that needs so many."""
        return n_missing(n_cells=n_cells, n_free=n_free, n_ctx=self._n_ctx, n_running=len(self._slots))

    # Coming in.

    def admit(self) -> None:
        """Fill idle slots: first with requests that gave their place up, then with new ones. Raises EngineDown."""
        while self.can_admit():
            preempted = self.preempted.first()
            if preempted is None:
                self._begin_next()
            elif not self._try_back(preempted):
                return

    def _begin_next(self) -> None:
        entry = self._next_of(self.queue.pop)
        if entry is None:
            return
        self._inbox.begin(entry.request_id)
        self._n_left += 1
        self._n_admitted += 1
        work = Work(
            entry.request,
            entry.prompt,
            submitted_at=entry.submitted_at,
            admitted_at=self._clock(),
            admitted_order=self._n_admitted,
            n_ctx_seq=self._n_ctx_seq,
        )
        self._counters.latencies.observe_queue_wait(work.admitted_at - work.submitted_at)
        self._begin(work)
        if entry.request_id in self._slots:
            self.queue.reuse(entry.request_id, work.n_cached)

    def _begin(self, work: Work) -> None:
        """Give a request a slot, with as much of its prompt as is there; one that cannot be opened is answered."""
        request_id = work.request.request_id
        try:
            begin(work)
        except LlamaServeError as error:  # before it takes a slot: what that holds is another's
            self._prefixes.drop_fetch(request_id)
            self._end(work, Failed(error))
            return
        for running in self._slots.generating:
            self._prefixes.grow(running.seq_id, running.working.tokens_to_show())
        slot = self._slots[self._prefixes.choose_slot(work.prompt, self._slots.idle.ids())]
        try:
            work.reuse(self._prefixes.enter(slot.seq_id, work.prompt))
            self._prefixes.drop_fetch(request_id)
            work.piece_ends = self._prefixes.piece_ends(work.prompt)
            self._engine.open(sequence_spec(slot.seq_id, work.request))
        except EngineDown:
            raise
        except Exception as error:
            if not isinstance(error, LlamaServeError):  # those are the request's own fault
                _logger.exception("request %s: the engine did not open sequence %d", request_id, slot.seq_id)
            self._prefixes.leave(slot.seq_id, None)
            self._prefixes.drop_fetch(request_id)
            self._end(work, Failed(as_ours(error)))
            return
        self._slots.begin(slot, work)
        self._answers.show_progress(work)

    # Coming back.

    def give_place_up(self, work: Work, slot: Slot) -> None:
        """A request leaves its slot for others, and waits to come back. Raises what the engine raises; it has the slot
        then."""
        suspended = None
        if work.n_generated:
            suspended = self._engine.suspend(slot.seq_id, self.preempted.n_bytes_left)
            self._prefixes.suspend(slot.seq_id)
        else:
            self._prefixes.leave(slot.seq_id, work.tokens_held())
            work.begin_again()
        self._slots.vacate(slot, self._counters.ticks)
        self._counters.preemptions += 1
        self.preempted.add(Preempted(work, suspended, 0 if suspended is None else suspended.n_bytes))

    def _try_back(self, preempted: Preempted) -> bool:
        """As ``_come_back``; a request that cannot come back ends, and the others go on."""
        try:
            return self._come_back(preempted)
        except EngineDown:
            raise
        except Exception as error:
            request_id = preempted.work.request.request_id
            _logger.exception("request %s could not come back", request_id)
            self.preempted.pop(request_id)
            self._end(preempted.work, Failed(as_ours(error)))
            return True

    def _come_back(self, preempted: Preempted) -> bool:
        """Give a preempted request a slot again; False when its cells do not fit after all."""
        work = preempted.work
        request_id = work.request.request_id
        if preempted.suspended is None:
            self.preempted.pop(request_id)
            self._begin(work)
            return True
        slot = self._slots[self._prefixes.choose_slot(NO_PROMPT, self._slots.idle.ids())]
        self._prefixes.leave(slot.seq_id, None)
        self._prefixes.make_room(work.n_cells)
        if not self._engine.resume(slot.seq_id, preempted.suspended):
            if len(self._slots):
                return False
            self.preempted.pop(request_id)
            self._end(work, Failed(ContextFull(f"no room for its {work.n_cells} KV cells, even alone")))
            return True
        self.preempted.pop(request_id)
        self._prefixes.resume(slot.seq_id, work.prompt)
        if preempted.n_bytes:
            self._slots.go_on(slot, work)
        else:
            work.feed_again()
            self._slots.begin(slot, work)
        return True
