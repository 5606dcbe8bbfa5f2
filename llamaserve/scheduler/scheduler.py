"""The scheduler: six phases a tick over slots, a queue and an engine.

Turns requests into steps, and what the steps drew into events. Who gets a slot is decided in ``admitter``, what a step
holds in ``step_plan``; what other threads share with it is in ``inbox``. It has no thread and no clock of its own, and
knows neither JSON nor HTTP nor llama.cpp.
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from llamaserve.cache.prefix_memory import Holder, PrefixMemory
from llamaserve.config import SchedulerConfig
from llamaserve.engine.port import Engine, PromptPiece, RowError, RowOutput, StepPlan, StepReport
from llamaserve.errors import (
    Cancelled,
    ContextFull,
    DecodeFailed,
    EngineDown,
    LlamaServeError,
    NoTokenLeft,
    RewindFailed,
)
from llamaserve.request import Event, Failed, Finished, FinishReason, GenerationRequest
from llamaserve.scheduler.admission import check_request
from llamaserve.scheduler.admitter import Admitter
from llamaserve.scheduler.answers import Answers, as_ours
from llamaserve.scheduler.constraining import accept, row_masks
from llamaserve.scheduler.inbox import Cancel, Command, Inbox, Stop, Submit
from llamaserve.scheduler.intake import finished, prompt_logprobs, take_token
from llamaserve.scheduler.kv_pressure import Runner, choose_victim
from llamaserve.scheduler.lookahead import may_run_ahead
from llamaserve.scheduler.opening import prompt_of
from llamaserve.scheduler.prefill_settings import grant_interval, prefill_limits
from llamaserve.scheduler.slot import Slot, Work
from llamaserve.scheduler.slot_table import SlotTable
from llamaserve.scheduler.slot_view import SlotView
from llamaserve.scheduler.stats import Counters, Discard, SchedulerStats
from llamaserve.scheduler.step_ahead import StepAhead
from llamaserve.scheduler.step_cost import StepCostModel, StepShape
from llamaserve.scheduler.step_plan import Decision, StepRules, Turn, decide_step

MAX_CONSECUTIVE_FAILED_STEPS = 8  # E11
MOST_SURPLUS = 256
"""Surplus parked cells that a step that runs ahead is not taken back for: llama.cpp's attention looks at blocks of so
many cells (llama-kv-cache.cpp, get_n_kv)."""

Deliver = Callable[[list[tuple[str, Event]]], None]
"""Takes the (request id, event) pairs of one tick, in order. Scheduler thread; must not block or raise."""

_logger = logging.getLogger(__name__)


class _Step(NamedTuple):
    """A plan, and whose its rows are, in plan order."""

    plan: StepPlan
    slots: Sequence[Slot]
    works: Sequence[Work]
    """Of the slots, when it was decided."""
    shape: StepShape


class _Outcome(NamedTuple):
    """What a step that was run brought."""

    outputs: Sequence[RowOutput]
    report: StepReport


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
        self._counters = Counters()
        self._answers = Answers(self._inbox, self._counters)
        self._slots = SlotTable(self._info.n_slots)
        self._ahead = StepAhead(engine, prefixes, self._counters)
        self._admitter = Admitter(
            engine,
            prefixes,
            slots=self._slots,
            inbox=self._inbox,
            answers=self._answers,
            counters=self._counters,
            clock=clock,
            ages=config.queue_aging,
            preempt_ram=config.preempt_ram * 2**20,
        )
        self._looks_ahead = config.looks_ahead and engine.can_rewind
        self._n_failed_steps = 0
        self._is_stopped = False
        self._must_purge = False
        """A step found no room although there should be some: the next may forget whatever is parked."""

    # Any thread.

    def submit(self, *requests: GenerationRequest, timeout_s: float | None = None) -> None:
        """Take requests in, all or none; their events go to ``deliver``. One that waits for a slot longer than
        ``timeout_s`` ends with Failed(DeadlineExceeded).

        Raises, and takes nothing: EmptyPrompt, PromptTooLong, BadToken, QueueFull, EngineDown, BadRequest when a
        live request has the same id.
        """
        for request in requests:
            check_request(request, self._info)
        now = self._clock()
        self._inbox.submit(*(Submit(request, prompt_of(request), now, timeout_s) for request in requests))

    def check_room(self) -> None:
        """Raises QueueFull when no request could come in now, for whoever has work to do before ``submit``."""
        self._inbox.check_room(self._clock())

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
            self._slots.all,
            queue_depth=len(self._admitter.queue),
            queue_rejects=self._inbox.n_rejected,
            token_rejects=self._inbox.n_rejected_tokens,
            preempted_requests=len(self._admitter.preempted),
            prefixes=self._prefixes,
        )

    def slots(self) -> Sequence[SlotView]:
        """What each slot does."""
        return [SlotView.of(slot) for slot in self._slots.all]

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
        took = self._admitter.expire() or took
        step = self._prepare()
        if step is not None:
            outcome = self._run(step)
            if outcome is not None:
                self._apply(step, outcome)
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
            if not self._ahead.is_there:  # else the next step is under way, and who comes in joins the one after it
                self._admit()
            self._admitter.watch_queue()
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
                self._admitter.take(command)
        elif isinstance(command, Cancel):
            self._cancel_now(command.request_id)
        elif isinstance(command, Stop):
            self._is_stopped = True
            self._shut_down(self._refusal())

    def _cancel_now(self, request_id: str) -> None:
        """One that ended in the tick before has had its terminal event."""
        slot = self._slots.of(request_id)
        if slot is not None:
            self._end(slot, Failed(Cancelled()))
        else:
            self._admitter.cancel(request_id)

    # Phase 2: admit.

    def _admit(self) -> None:
        self._admitter.admit()

    def _spill(self) -> None:
        """Have parked cells make way for those that run. A step that ran ahead is worth less than many of them."""
        n_surplus = self._prefixes.n_surplus if len(self._slots) else 0
        if n_surplus > MOST_SURPLUS or (n_surplus and not self._ahead.is_there):
            self._ahead.take_back(Discard.ROOM)
            self._prefixes.spill()

    # Phase 3: decide.

    def _decide(self) -> _Step | None:
        """What the next step is. A request whose restriction cannot go on ends, and the others have another step; only
        the one that is run counts for turns."""
        while (decision := self._next_decision()) is not None:
            plan = decision.plan
            rows = self._slots.generating if plan.decode else []
            if plan.pieces:
                rows = [*rows, *(self._slots[piece.seq_id] for piece in plan.pieces)]
            works = [slot.working for slot in rows]
            masks, failed = row_masks(plan, rows, works)
            if failed:
                for slot, error in failed:
                    self._end(slot, Failed(error))
                continue
            self._turn = decision.turn
            for seq_id, n_waited in decision.waits.items():
                self._slots[seq_id].working.n_waited = n_waited
            plan = self._with_room(plan, decision.shape)
            if masks:
                plan = replace(plan, masks=masks)
            return _Step(plan, rows, works, decision.shape)
        return None

    def _next_decision(self) -> Decision | None:
        slots = self._slots
        following: Collection[int] = self._catch_up() if slots.prefilling else ()
        self._admitter.following = following
        return decide_step(
            slots.generating, slots.prefilling, self._rules, self._model, self._turn, following=following
        )

    def _catch_up(self) -> Collection[int]:
        """Have those that wait for others' tokens adopt them; the sequences that go on waiting."""
        following = []
        for slot in self._slots.prefilling:
            if not slot.working.is_recomputing:
                n_held, waits = self._prefixes.catch_up(slot.seq_id)
                slot.working.reuse(n_held)
                if waits:
                    following.append(slot.seq_id)
        return following

    def _with_room(self, plan: StepPlan, shape: StepShape) -> StepPlan:
        """Make room for a step, and for the one that may run ahead of its rows."""
        n_cells = 2 * shape.n_rows + shape.n_prompt + len(plan.pieces)
        if self._info.n_ctx - self._engine.used_cells() < n_cells and self._prefixes.n_evictable:
            self._ahead.take_back(Discard.ROOM)
            self._prefixes.make_room(n_cells)
        if not self._must_purge:
            return plan
        self._must_purge = False
        return replace(plan, purge=self._prefixes.purge_order())

    # Phase 4: run.

    def _run(self, step: _Step) -> _Outcome | None:
        """What a step brought; None if it failed as a whole, its requests are answered then."""
        flag = self._engine.new_flag()
        request_ids = [work.request.request_id for work in step.works]
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
        got = [output.seq_id for output in outputs]
        if got != expected:  # K124: whose token is whose is not known
            _logger.error("a step over the sequences %s came back as %s", expected, got)
            self._fail_step(step, f"the engine answered the sequences {got} for {expected}")
            return None
        report = self._engine.report
        self._prefixes.purged(report.purged)
        self._counters.count_step(report, is_decode=not step.plan.pieces)
        return _Outcome(outputs, report)

    def _may_run_ahead(self, step: _Step) -> bool:
        return self._looks_ahead and may_run_ahead(
            step.works,
            n_running=len(self._slots),
            n_unfinished_prompts=sum(not piece.is_last for piece in step.plan.pieces),
            can_admit=self._admitter.can_admit(),
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

    def _apply(self, step: _Step, outcome: _Outcome) -> None:
        outputs, report = outcome
        now = self._clock()
        n_running = len(self._slots)
        n_decoding = len(step.plan.decode)
        n_failed = n_failed_rows = 0
        decode_failure: str | None = None
        full: Slot | None = None
        for index, (slot, work, output) in enumerate(zip(step.slots, step.works, outputs, strict=True)):
            error = output.error
            if error is None:
                if index < n_decoding:
                    work.n_decoded += 1
                    self._take_token(slot, work, output, now)
                else:
                    self._take_piece(slot, step.plan.pieces[index - n_decoding], output, now)
                continue
            if error is RowError.NO_TOKEN:  # the model did its part
                self._take_failure(slot, error, output.message)
                continue
            n_failed += 1
            if index < n_decoding:
                n_failed_rows += 1
                if error is RowError.ABORTED:
                    self._turn = self._turn._replace(owes_decode=True)
            if error is RowError.CONTEXT_FULL:
                full = slot
            else:
                self._take_failure(slot, error, output.message)
                if error is RowError.DECODE:
                    decode_failure = output.message
        if full is not None and len(self._slots) == n_running:  # else whoever ended has left room
            self._relieve(full, has_purged=bool(step.plan.purge))
        self._counters.decode_tokens += n_decoding - n_failed_rows
        if n_failed == 0:
            self._model.observe(step.shape, report.time.of_rows)
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
            self._answers.show_progress(work)
        if piece.n_top is not None:
            work.take_prompt_scores(output.scores)
        if work.n_left_to_feed:
            return
        self._slots.generate(slot)
        if piece.n_top is not None:
            self._answers.say(work.request.request_id, prompt_logprobs(work))
        if piece.is_last:
            self._take_token(slot, work, output, now)
        elif not work.is_recomputing:  # there is nothing to draw: max_tokens is 0
            self._end(slot, finished(work, FinishReason.LENGTH, now))

    def _take_token(self, slot: Slot, work: Work, output: RowOutput, now: float) -> None:
        token = output.token
        if token is None:
            self._end(slot, Failed(DecodeFailed(f"the engine drew no token for sequence {slot.seq_id}")))
            return
        self._watch_token(work, now)
        is_complete = False
        if work.constraint is not None:
            try:
                is_complete = accept(work, token, is_decoding_ahead=self._ahead.is_there)
            except LlamaServeError as error:
                self._end(slot, Failed(error))
                return
        delta, reason = take_token(
            work, token, output, now=now, n_ctx_seq=self._info.n_ctx_seq, is_complete=is_complete
        )
        if not output.is_eog:
            self._counters.generated_tokens += 1
        if delta is not None:
            self._answers.say(work.request.request_id, delta)
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
            self._end(slot, Failed(DecodeFailed(f"the step failed: {message}")))
        elif error is RowError.NO_TOKEN:
            self._end(slot, Failed(NoTokenLeft()))
        elif self._inbox.is_stopping:
            self._end(slot, Failed(self._refusal()))
        # Else the step was stopped for others' sake: the row is as before it and runs again.

    def _relieve(self, full: Slot, *, has_purged: bool) -> None:
        """A row found no cell; it is as before. What nobody uses is forgotten, else one request gives its place up, so
        that the others can go on."""
        if not has_purged and self._prefixes.purge_order():
            self._must_purge = True
            return
        seq_id = choose_victim([Runner(slot.seq_id, slot.working.admitted_order) for slot in self._slots])
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
        try:
            self._admitter.give_place_up(slot.working, slot)
        except Exception as error:
            _logger.exception("sequence %d could not give its place up", slot.seq_id)
            self._end(slot, Failed(as_ours(error)))
            return
        self._ahead.broken.discard(slot.seq_id)

    # Ends.

    def _end(self, slot: Slot, event: Finished | Failed) -> None:
        """Free a slot and answer its request. A sequence that could not go back to where it was failed, however its
        request ended (E15); the others of the step fail with their next row."""
        self._ahead.take_back(Discard.of(event))
        if slot.seq_id in self._ahead.broken:
            event = Failed(RewindFailed(f"sequence {slot.seq_id} could not go back to where it was"))
            is_kept = False
        else:
            is_kept = isinstance(event, Finished) or isinstance(event.error, Cancelled)
        work = self._slots.vacate(slot, self._counters.ticks)
        self._ahead.broken.discard(slot.seq_id)
        self._leave(slot.seq_id, work.tokens_held() if is_kept else None)
        self._admitter.settle(work)
        self._answers.end(work.request.request_id, event)

    def _leave(self, seq_id: int, tokens: array[int] | None) -> None:
        """Close a sequence; what it holds may be kept. Never fails: an engine that is down says so in the next step."""
        try:
            self._prefixes.leave(seq_id, tokens)
        except EngineDown:
            _logger.info("what sequence %d held is not kept: the engine is down", seq_id)
        except Exception:
            _logger.exception("what sequence %d held is not kept", seq_id)

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
        self._admitter.clear()
        for request_id in self._inbox.leave_all():
            self._answers.end(request_id, Failed(EngineDown(*error.args)))
        for slot in list(self._slots):
            work = self._slots.vacate(slot, self._counters.ticks)
            self._leave(slot.seq_id, work.tokens_held() if self._is_stopped else None)

    # Phase 6: deliver.

    def _deliver(self) -> None:
        if self._answers:
            self._deliver_events(self._answers.take())
