"""The scheduler: six phases a tick over slots, a queue and an engine.

Owns the slots, the queue and the text of every running request. The policies it calls in order are pure functions in
files of their own; what other threads share with it is in ``inbox``. It has no thread and no clock of its own, and
knows neither JSON nor HTTP nor llama.cpp.
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from llamaserve.cache.prefix_memory import Holder, PrefixMemory
from llamaserve.config import SchedulerConfig
from llamaserve.engine.port import Engine, PromptPiece, RowError, RowOutput, StepPlan
from llamaserve.errors import (
    Cancelled,
    ContextFull,
    DeadlineExceeded,
    DecodeFailed,
    EngineDown,
    LlamaServeError,
    RewindFailed,
)
from llamaserve.request import Event, Failed, Finished, FinishReason, GenerationRequest, Progress
from llamaserve.scheduler.admission import check_request
from llamaserve.scheduler.admission_queue import AdmissionQueue
from llamaserve.scheduler.inbox import Cancel, Command, Inbox, Stop, Submit
from llamaserve.scheduler.intake import finished, prompt_logprobs, take_token
from llamaserve.scheduler.kv_pressure import Runner, choose_victim, has_common_prefix, n_missing
from llamaserve.scheduler.lookahead import may_run_ahead
from llamaserve.scheduler.opening import NO_PROMPT, prompt_of, sequence_spec
from llamaserve.scheduler.preemption import Preempted, PreemptedRequests
from llamaserve.scheduler.prefill_settings import grant_interval, prefill_limits
from llamaserve.scheduler.slot import IdleSlots, Slot, SlotState, Work
from llamaserve.scheduler.slot_view import SlotView
from llamaserve.scheduler.stats import Counters, Discard, SchedulerStats
from llamaserve.scheduler.step_cost import StepCostModel, StepShape
from llamaserve.scheduler.step_plan import StepRules, Turn, decide_step

MAX_CONSECUTIVE_FAILED_STEPS = 8  # E11
MOST_SURPLUS = 256
"""Surplus parked cells that a step that runs ahead is not taken back for: llama.cpp's attention looks at blocks of so
many cells (llama-kv-cache.cpp, get_n_kv)."""

Deliver = Callable[[list[tuple[str, Event]]], None]
"""Takes the (request id, event) pairs of one tick, in order. Scheduler thread; must not block or raise."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Step:
    """A plan, and the slots of its rows in plan order."""

    plan: StepPlan
    slots: Sequence[Slot]
    shape: StepShape


class Scheduler:
    """Turns requests into steps, and what the steps drew into events.

    Every request that ``submit`` took gets exactly one terminal event (K15): Finished, or Failed.

    ``submit``, ``cancel``, ``stop``, ``stats`` and ``failure``: any thread. All else: scheduler thread only.
    """

    def __init__(
        self,
        engine: Engine,
        config: SchedulerConfig,
        deliver: Deliver,
        prefixes: PrefixMemory,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._prefixes = prefixes
        self._info = engine.info
        self._rules = StepRules(
            limits=prefill_limits(config, n_batch=self._info.n_batch, environment=os.environ),
            mixed_step=config.mixed_step,
            grant_interval=grant_interval(config, os.environ),
            target_itl_ms=config.target_itl,
        )
        self._model = StepCostModel()
        self._turn = Turn()
        self._deliver_events = deliver
        self._clock = clock
        self._inbox = Inbox(
            n_slots=self._info.n_slots, max_queue=config.max_queue, max_queue_tokens=config.max_queue_tokens
        )
        self._slots = [Slot(seq_id) for seq_id in range(self._info.n_slots)]
        self._idle = IdleSlots(self._slots)
        self._running: dict[str, Slot] = {}
        self._waiting: AdmissionQueue[Submit] = AdmissionQueue(ages=config.queue_aging)
        self._n_left_queue = 0
        """Requests that have left it since it was last observed."""
        self._is_oversubscribed = self._info.n_slots * self._info.n_ctx_seq > self._info.n_ctx
        """Whether all slots together may want more cells than there are."""
        self._following: Collection[int] = ()
        """Sequences that wait for others' tokens."""
        self._preempted = PreemptedRequests(config.preempt_ram * 2**20)
        self._broken: set[int] = set()
        """Slots whose sequence could not go back to where it was; their requests fail with their next row."""
        self._looks_ahead = config.looks_ahead and engine.can_rewind
        self._events: list[tuple[str, Event]] = []
        self._counters = Counters()
        self._n_failed_steps = 0
        self._is_stopped = False
        self._n_admitted = 0
        self._must_purge = False
        """A step found no room although there should be some: the next may forget whatever is parked."""

    # Any thread.

    def submit(self, request: GenerationRequest, timeout_s: float | None = None) -> None:
        """Take a request in; its events go to ``deliver``. One that waits for a slot longer than ``timeout_s`` ends
        with Failed(DeadlineExceeded).

        Raises, and takes nothing: EmptyPrompt, PromptTooLong, BadToken, QueueFull, EngineDown, BadRequest when a
        live request has the same id.
        """
        check_request(request, self._info)
        self._inbox.submit(Submit(request, prompt_of(request), self._clock(), timeout_s))

    def cancel(self, request_id: str) -> bool:
        """Ask for the end of a request, waiting (S53) or running; whether it was live. It ends with
        Failed(Cancelled) unless it finishes before the next tick."""
        return self._inbox.cancel(request_id)

    def stop(self, error: EngineDown) -> None:
        """Refuse new requests and have the next tick answer all others with this error; a running step is stopped."""
        self._inbox.stop(error)

    @property
    def failure(self) -> EngineDown | None:
        """Why nothing is served any more; None while requests are taken."""
        return self._inbox.refusal

    def stats(self) -> SchedulerStats:
        """Numbers as they are now; taken between two phases they may be one row apart."""
        return self._counters.snapshot(
            self._info,
            self._slots,
            queue_depth=len(self._waiting),
            queue_rejects=self._inbox.n_rejected,
            token_rejects=self._inbox.n_rejected_tokens,
            preempted_requests=len(self._preempted),
            prefixes=self._prefixes,
        )

    def slots(self) -> Sequence[SlotView]:
        """What each slot does."""
        return [SlotView.of(slot) for slot in self._slots]

    def holders(self) -> Sequence[Holder]:
        """Which sequences hold computed prefixes; may be one tick old."""
        return self._prefixes.holders()

    # Scheduler thread only.

    def wait(self) -> None:
        """Block until another thread wants something."""
        self._inbox.wait()

    @property
    def is_stopped(self) -> bool:
        """Whether a tick has taken the stop."""
        return self._is_stopped

    def tick(self) -> bool:
        """One round of the six phases; whether there was anything to do."""
        took = self._take_commands()
        took = self._expire() or took
        step = self._prepare()
        if step is not None:
            outputs = self._run(step)
            if outputs is not None:
                self._apply(step, outputs)
        self._counters.used_cells = self._engine.used_cells()
        self._deliver()
        return took or step is not None

    def close(self) -> None:
        """Have what was computed survive where it can; after the last tick."""
        if self._engine.failure is None:
            self._prefixes.close()
        else:
            self._prefixes.clear()

    def _prepare(self) -> _Step | None:
        """Phases 2 and 3: who comes in, and what the step holds."""
        try:
            if not self._engine.ahead_rows:  # else the next step is under way, and who comes in joins the one after it
                self._admit()
            self._watch_queue()
            self._spill()
            return self._decide()
        except EngineDown as error:
            self._give_up(error)
            return None

    def fail_all(self, error: EngineDown) -> None:
        """Answer every live request with this error and refuse new ones. Delivers at once; may follow a tick that
        broke off."""
        self._shut_down(error)
        self._deliver()

    # Phase 1: take.

    def _take_commands(self) -> bool:
        commands = self._inbox.take()
        for command in commands:
            self._take(command)
        return bool(commands)

    def _take(self, command: Command) -> None:
        if isinstance(command, Submit):
            # After a shut-down the request was answered with all the others.
            if self._inbox.refusal is None:
                self._waiting.push(command)
                self._prefixes.prefetch(command.request_id, command.prompt, self._inbox.wake)
        elif isinstance(command, Cancel):
            self._cancel_now(command.request_id)
        elif isinstance(command, Stop):
            self._is_stopped = True
            self._shut_down(self._refusal())

    def _cancel_now(self, request_id: str) -> None:
        slot = self._running.get(request_id)
        if slot is not None:
            self._end(slot, Failed(Cancelled()))
        elif (entry := self._waiting.remove(request_id)) is not None:
            self._leave_queue(entry, Failed(Cancelled()))
        elif (preempted := self._preempted.pop(request_id)) is not None:
            self._settle(preempted.work)
            self._answer(request_id, Failed(Cancelled()))
        # Else it ended in the tick before: it has had its terminal event.

    def _expire(self) -> bool:
        """Answer those that have waited too long; whether there were any."""
        if self._waiting.next_deadline is None:
            return False
        expired = self._waiting.expire(self._clock())
        for entry in expired:
            self._leave_queue(entry, Failed(DeadlineExceeded(entry.timeout_s or 0.0)))
        return bool(expired)

    def _leave_queue(self, entry: Submit, event: Failed) -> None:
        """A request ends that had no slot."""
        self._n_left_queue += 1
        self._prefixes.drop_fetch(entry.request_id)
        self._answer(entry.request_id, event)

    def _watch_queue(self) -> None:
        """Have the inbox know how fast the queue empties."""
        if self._waiting or self._n_left_queue:
            self._inbox.drain.observe(self._clock(), n_left=self._n_left_queue, n_waiting=len(self._waiting))
            self._n_left_queue = 0

    # Phase 2: admit.

    def _admit(self) -> None:
        """Fill idle slots: first with requests that gave their place up, then with new ones."""
        while self._can_admit():
            preempted = self._preempted.first()
            try:
                if preempted is None:
                    self._begin_next()
                elif not self._come_back(preempted):
                    return
            except EngineDown as error:
                self._give_up(error)  # and answers this one with all the others
                return
            except Exception as error:
                if preempted is None:
                    raise
                self._give_back_up(preempted, error)

    def _give_back_up(self, preempted: Preempted, error: Exception) -> None:
        """A request that cannot come back ends; the others go on."""
        request_id = preempted.work.request.request_id
        _logger.error("request %s could not come back", request_id, exc_info=error)
        self._preempted.pop(request_id)
        self._settle(preempted.work)
        self._answer(request_id, Failed(_as_ours(error)))

    def _spill(self) -> None:
        """Have parked cells make way for those that run. A step that ran ahead is worth less than many of them."""
        n_surplus = self._prefixes.n_surplus if self._running else 0
        if n_surplus > (MOST_SURPLUS if self._engine.ahead_rows else 0):
            self._take_back(Discard.ROOM)
            self._prefixes.spill()

    def _can_admit(self) -> bool:
        """Whether whoever is next in line can begin."""
        if not self._idle:
            return False
        preempted = self._preempted.first()
        if preempted is None:
            return self._waiting_one(self._waiting.peek) is not None
        return self._n_missing(preempted.work.n_cells) <= 0

    def _n_free_cells(self) -> int:
        return self._info.n_ctx - self._engine.used_cells()

    def _n_missing(self, n_cells: int) -> int:
        """Cells that a request is short of that needs so many; what is parked counts as free, and what running
        prompts will still need as taken."""
        works = [slot.working for slot in self._running.values() if slot.seq_id not in self._following]
        return n_missing(
            n_cells=n_cells,
            n_free=self._n_free_cells() + self._prefixes.n_evictable - sum(work.n_left_to_feed for work in works),
            n_ctx=self._info.n_ctx,
            n_running=len(self._running),
        )

    def _is_ready(self, entry: Submit) -> bool:
        """Whether a waiting request could begin: it does not wait for the disk, and it has room."""
        if self._prefixes.is_fetching(entry.request_id):
            return False
        if not self._running or not self._is_oversubscribed:
            return True
        missing = self._n_missing(entry.n_tokens)
        if missing <= 0:
            return True
        # What others hold and it can adopt it does not need. Parked cells count as free, so only running ones do.
        running = (slot.working.prompt for slot in self._running.values())
        return self._engine.can_share and has_common_prefix(entry.prompt, running, missing)

    def _waiting_one(self, choose: Callable[..., Submit | None]) -> Submit | None:
        """The next of those that wait, by the queue's ``peek`` or ``pop``."""
        return choose(self._is_ready, idle_sessions=self._idle.sessions()) if self._waiting else None

    def _begin_next(self) -> None:
        entry = self._waiting_one(self._waiting.pop)
        if entry is None:
            return
        self._inbox.begin(entry.request_id)
        self._n_left_queue += 1
        self._n_admitted += 1
        work = Work(
            entry.request,
            entry.prompt,
            submitted_at=entry.submitted_at,
            admitted_at=self._clock(),
            admitted_order=self._n_admitted,
        )
        self._counters.latencies.observe_queue_wait(work.admitted_at - work.submitted_at)
        self._begin(work)
        if entry.request_id in self._running:
            self._waiting.reuse(entry.request_id, work.n_cached)

    def _begin(self, work: Work) -> None:
        """Give a request a slot, with as much of its prompt as is there; one that cannot be opened is answered."""
        for running in self._running.values():
            if running.state is SlotState.GENERATING:
                self._prefixes.grow(running.seq_id, running.working.tokens_to_show())
        slot = self._slots[self._prefixes.choose_slot(work.prompt, self._idle.ids())]
        request_id = work.request.request_id
        try:
            work.reuse(self._prefixes.enter(slot.seq_id, work.prompt))
            self._prefixes.drop_fetch(request_id)
            work.piece_ends = self._prefixes.piece_ends(work.prompt)
            self._engine.open(sequence_spec(slot.seq_id, work.request))
        except EngineDown:
            raise
        except Exception as error:
            _logger.exception("request %s: the engine did not open sequence %d", request_id, slot.seq_id)
            self._prefixes.leave(slot.seq_id, None)
            self._settle(work)
            self._answer(request_id, Failed(_as_ours(error)))
            return
        slot.begin(work)
        self._occupy(slot)

    def _occupy(self, slot: Slot) -> None:
        work = slot.working
        self._idle.take(slot)
        self._running[work.request.request_id] = slot
        self._show_progress(work)

    def _show_progress(self, work: Work) -> None:
        if work.request.return_progress and not work.is_recomputing and work.last_token_at is None:
            self._events.append((work.request.request_id, Progress(work.n_prompt, work.n_cached, work.n_computed)))

    def _come_back(self, preempted: Preempted) -> bool:
        """Give a preempted request a slot again; False when its cells do not fit after all."""
        work = preempted.work
        request_id = work.request.request_id
        if preempted.suspended is None:
            self._preempted.pop(request_id)
            self._begin(work)
            return True
        slot = self._slots[self._prefixes.choose_slot(NO_PROMPT, self._idle.ids())]
        self._prefixes.leave(slot.seq_id, None)
        self._prefixes.make_room(work.n_cells)
        if not self._engine.resume(slot.seq_id, preempted.suspended):
            if self._running:
                return False
            self._preempted.pop(request_id)
            self._settle(work)
            self._answer(request_id, Failed(ContextFull(f"no room for its {work.n_cells} KV cells, even alone")))
            return True
        self._preempted.pop(request_id)
        self._prefixes.resume(slot.seq_id, work.prompt)
        if preempted.n_bytes:
            slot.go_on(work)
        else:
            work.feed_again()
            slot.begin(work)
        self._occupy(slot)
        return True

    # Phase 3: decide.

    def _decide(self) -> _Step | None:
        self._following = following = self._catch_up()
        decision = decide_step(self._slots, self._rules, self._model, self._turn, following=following)
        if decision is None:
            return None
        self._turn = decision.turn
        for seq_id, n_waited in decision.waits.items():
            self._slots[seq_id].working.n_waited = n_waited
        plan = self._with_room(decision.plan)
        seq_ids = [*plan.decode, *(piece.seq_id for piece in plan.pieces)]
        return _Step(plan, [self._slots[seq_id] for seq_id in seq_ids], decision.shape)

    def _catch_up(self) -> Collection[int]:
        """Have those that wait for others' tokens adopt them; the sequences that go on waiting."""
        following = []
        for slot in self._running.values():
            if slot.state is SlotState.PREFILLING and not slot.working.is_recomputing:
                n_held, waits = self._prefixes.catch_up(slot.seq_id)
                slot.working.reuse(n_held)
                if waits:
                    following.append(slot.seq_id)
        return following

    def _with_room(self, plan: StepPlan) -> StepPlan:
        """Make room for a step, and for the one that may run ahead of its rows."""
        n_rows = len(plan.decode) + len(plan.pieces)
        n_tokens = len(plan.decode) + sum(len(piece.tokens) for piece in plan.pieces)
        if self._n_free_cells() < n_tokens + n_rows and self._prefixes.n_evictable:
            self._take_back(Discard.ROOM)
            self._prefixes.make_room(n_tokens + n_rows)
        if not self._must_purge:
            return plan
        self._must_purge = False
        return replace(plan, purge=self._prefixes.purge_order())

    # Phase 4: run.

    def _run(self, step: _Step) -> Sequence[RowOutput] | None:
        """The outputs of a step; None if it failed as a whole, its requests are answered then."""
        flag = self._engine.new_flag()
        request_ids = [slot.working.request.request_id for slot in step.slots]
        # A stopped row must go on as if the step had not been: without rewinding, a step is stopped for all or none.
        prompting = request_ids[len(step.plan.decode) :] if self._engine.can_rewind else ()
        self._inbox.begin_step(request_ids, prompting, flag)
        self._counters.ticks += 1
        try:
            outputs = self._engine.collect(self._engine.submit(step.plan, flag, ahead=self._may_run_ahead(step)))
        except EngineDown as error:
            self._give_up(error)
            return None
        except Exception as error:
            _logger.exception("a step of %d rows failed", len(step.slots))
            self._fail_step(step, f"{type(error).__name__}: {error}")
            return None
        finally:
            self._inbox.end_step()
        expected = [slot.seq_id for slot in step.slots]
        if [output.seq_id for output in outputs] != expected:  # K124: whose token is whose is not known
            got = [output.seq_id for output in outputs]
            _logger.error("a step over the sequences %s came back as %s", expected, got)
            self._fail_step(step, f"the engine answered the sequences {got} for {expected}")
            return None
        report = self._engine.report
        self._prefixes.purged(report.purged)
        self._counters.count_step(report, is_decode=not step.plan.pieces)
        return outputs

    def _may_run_ahead(self, step: _Step) -> bool:
        return self._looks_ahead and may_run_ahead(
            [slot.working for slot in step.slots],
            n_running=len(self._running),
            n_ctx_seq=self._info.n_ctx_seq,
            n_unfinished_prompts=sum(not piece.is_last for piece in step.plan.pieces),
            can_admit=self._can_admit(),
        )

    def _fail_step(self, step: _Step, message: str) -> None:
        for slot in step.slots:
            self._end(slot, Failed(DecodeFailed(f"the step failed: {message}")))
        self._count_failed_step(message)

    def _count_failed_step(self, message: str) -> None:
        """A failing step counts once, however many rows it had (K123)."""
        self._n_failed_steps += 1
        self._counters.failed_steps += 1
        if self._n_failed_steps >= MAX_CONSECUTIVE_FAILED_STEPS:
            n_failed = self._n_failed_steps
            self._shut_down(EngineDown(f"stopped after {n_failed} failed steps in a row; the last: {message}"))

    # Phase 5: apply.

    def _apply(self, step: _Step, outputs: Sequence[RowOutput]) -> None:
        now = self._clock()
        n_running = len(self._running)
        n_decoding = len(step.plan.decode)
        n_failed = 0
        decode_failure: str | None = None
        full: Slot | None = None
        for index, (slot, output) in enumerate(zip(step.slots, outputs, strict=True)):
            error = output.error
            if error is None:
                if index < n_decoding:
                    self._counters.decode_tokens += 1
                    slot.working.n_decoded += 1
                    self._take_token(slot, output, now)
                else:
                    self._take_piece(slot, step.plan.pieces[index - n_decoding], output, now)
                continue
            n_failed += 1
            if error is RowError.CONTEXT_FULL:
                full = slot
            else:
                self._take_failure(slot, error, output.message)
                if error is RowError.DECODE:
                    decode_failure = output.message
        if full is not None and len(self._running) == n_running:  # else whoever ended has left room
            self._relieve(full, has_purged=bool(step.plan.purge))
        if n_failed == 0:
            self._model.observe(step.shape, sum(self._engine.report.time))
        self._watch_failures(n_failed < len(outputs), decode_failure)

    def _watch_failures(self, has_success: bool, decode_failure: str | None) -> None:
        if has_success:
            self._n_failed_steps = 0
        elif decode_failure is not None:
            self._count_failed_step(decode_failure)
        if decode_failure is not None:
            reason = self._engine.failure
            if reason is not None:
                self._give_up(EngineDown(reason))

    def _take_piece(self, slot: Slot, piece: PromptPiece, output: RowOutput, now: float) -> None:
        work = slot.working
        n_tokens = len(piece.tokens)
        work.n_fed += n_tokens
        if work.is_recomputing:
            self._counters.recomputed_tokens += n_tokens
        else:
            self._counters.prompt_tokens += n_tokens
            self._prefixes.advance(slot.seq_id, work.n_fed)
            self._show_progress(work)
        if piece.n_top is not None:
            work.take_prompt_scores(output.scores)
        if work.n_left_to_feed:
            return
        slot.generate()
        if piece.n_top is not None:
            self._events.append((work.request.request_id, prompt_logprobs(work)))
        if piece.is_last:
            self._take_token(slot, output, now)
        elif not work.is_recomputing:  # there is nothing to draw: max_tokens is 0
            self._end(slot, finished(work, FinishReason.LENGTH, now))

    def _take_token(self, slot: Slot, output: RowOutput, now: float) -> None:
        work = slot.working
        token = output.token
        if token is None:
            self._end(slot, Failed(DecodeFailed(f"the engine drew no token for sequence {slot.seq_id}")))
            return
        self._watch_token(work, now)
        delta, reason = take_token(work, token, output, now=now, n_ctx_seq=self._info.n_ctx_seq)
        if not output.is_eog:
            self._counters.generated_tokens += 1
        if delta is not None:
            self._events.append((work.request.request_id, delta))
        if reason is not None:
            self._end(slot, finished(work, reason, now))

    def _watch_token(self, work: Work, now: float) -> None:
        before, work.last_token_at = work.last_token_at, now
        if before is None:
            self._counters.latencies.observe_first_token(now - work.submitted_at)
        else:
            self._counters.latencies.observe_gap(now - before)

    def _take_failure(self, slot: Slot, error: RowError, message: str) -> None:
        if self._inbox.is_cancelled(slot.working.request.request_id):
            self._end(slot, Failed(Cancelled()))
        elif error is RowError.DECODE:
            self._end(slot, Failed(DecodeFailed(f"llama.cpp could not compute the step: {message}")))
        elif self._inbox.is_stopping:
            self._end(slot, Failed(self._refusal()))
        # Else the step was stopped for others' sake: the row is as before it and runs again.

    def _relieve(self, full: Slot, *, has_purged: bool) -> None:
        """A row found no cell; it is as before. What nobody uses is forgotten, else one request gives its place up, so
        that the others can go on."""
        if not has_purged and self._prefixes.purge_order():
            self._must_purge = True
            return
        seq_id = choose_victim([Runner(slot.seq_id, slot.working.admitted_order) for slot in self._running.values()])
        if seq_id is not None:
            self._preempt(self._slots[seq_id])
            return
        work = full.working
        message = (
            f"the KV cache of {self._info.n_ctx} cells is full: no room for the next token after "
            f"{min(work.n_fed, work.n_prompt)} of {work.n_prompt} prompt tokens and {work.n_generated} generated ones; "
            f"start the server with a larger --ctx-size"
        )
        self._end(full, Failed(ContextFull(message)))

    def _preempt(self, slot: Slot) -> None:
        suspended = None
        try:
            if slot.working.n_generated:
                suspended = self._engine.suspend(slot.seq_id, self._preempted.n_bytes_left)
                self._prefixes.suspend(slot.seq_id)
            else:
                self._prefixes.leave(slot.seq_id, slot.working.tokens_held())
                slot.working.begin_again()
        except Exception as error:
            _logger.exception("sequence %d could not give its place up", slot.seq_id)
            self._end(slot, Failed(_as_ours(error)))
            return
        work = self._vacate(slot)
        self._counters.preemptions += 1
        self._preempted.add(Preempted(work, suspended, 0 if suspended is None else suspended.n_bytes))

    # Ends.

    def _take_back(self, why: Discard) -> None:
        """Take back a step that ran ahead, before its rows change."""
        if not self._engine.ahead_rows:
            return
        self._counters.lookahead_discards[why] += 1
        broken = self._engine.unwind()
        if broken:
            _logger.error("the sequences %s could not go back to where they were", list(broken))
            self._broken.update(broken)
            for seq_id in broken:
                self._prefixes.lose(seq_id)

    def _vacate(self, slot: Slot) -> Work:
        """Take the request out of its slot."""
        work = slot.release()
        slot.last_used_tick = self._counters.ticks
        self._idle.add(slot)
        self._broken.discard(slot.seq_id)
        del self._running[work.request.request_id]
        return work

    def _end(self, slot: Slot, event: Finished | Failed) -> None:
        """Free a slot and answer its request. A sequence that could not go back to where it was failed, however its
        request ended (E15); the others of the step fail with their next row."""
        self._take_back(Discard.of(event))
        if slot.seq_id in self._broken:
            event = Failed(RewindFailed(f"sequence {slot.seq_id} could not go back to where it was"))
            is_kept = False
        else:
            is_kept = isinstance(event, Finished) or isinstance(event.error, Cancelled)
        work = self._vacate(slot)
        self._leave(slot.seq_id, work.tokens_held() if is_kept else None)
        self._settle(work)
        self._answer(work.request.request_id, event)

    def _settle(self, work: Work) -> None:
        """A request that had a slot has ended: its owner has had so much."""
        request_id = work.request.request_id
        self._waiting.settle(request_id, n_computed=work.n_computed, n_generated=work.n_generated)

    def _leave(self, seq_id: int, tokens: array[int] | None) -> None:
        """Close a sequence; what it holds may be kept. Never fails: an engine that is down says so in the next step."""
        try:
            self._prefixes.leave(seq_id, tokens)
        except EngineDown:
            _logger.info("what sequence %d held is not kept: the engine is down", seq_id)
        except Exception:
            _logger.exception("what sequence %d held is not kept", seq_id)

    def _answer(self, request_id: str, event: Finished | Failed) -> None:
        self._events.append((request_id, event))
        self._inbox.leave(request_id)
        self._counters.count_end(event)

    def _refusal(self) -> EngineDown:
        """Why requests are refused, as an exception of its own: consumers raise them in several threads."""
        refusal = self._inbox.refusal
        return EngineDown("the engine was stopped") if refusal is None else EngineDown(*refusal.args)

    def _give_up(self, error: EngineDown) -> None:
        """The engine will compute nothing more."""
        _logger.error("the engine is down: %s", error)
        self._shut_down(error)

    def _shut_down(self, error: EngineDown) -> None:
        """Answer everything and take nothing more. Answers by the list of live requests, not by slot and queue, so
        that nobody is left out whatever state they are in; and before it asks anything of the engine."""
        self._inbox.refuse(error)
        self._waiting.clear()
        self._preempted.clear()
        self._running.clear()
        for request_id in self._inbox.leave_all():
            self._answer(request_id, Failed(EngineDown(*error.args)))
        for slot in self._slots:
            if slot.state is not SlotState.IDLE:
                work = slot.release()
                self._idle.add(slot)
                self._leave(slot.seq_id, work.tokens_held() if self._is_stopped else None)

    # Phase 6: deliver.

    def _deliver(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._deliver_events(events)


def _as_ours(error: Exception) -> LlamaServeError:
    """The error itself if the package knows it, else DecodeFailed with what it says."""
    if isinstance(error, LlamaServeError):
        return error
    return DecodeFailed(f"{type(error).__name__}: {error}")
