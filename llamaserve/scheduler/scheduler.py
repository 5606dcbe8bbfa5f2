"""The scheduler: six phases a tick over slots, a queue and an engine.

Owns the slots, the queue and the text of every running request. The policies it calls in order are pure functions in
files of their own; what other threads share with it is in ``inbox``. It has no thread and no clock of its own, and
knows neither JSON nor HTTP nor llama.cpp.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llamaserve.config import SchedulerConfig
from llamaserve.engine.port import Engine, PromptPiece, RowError, RowOutput, SequenceSpec, StepPlan
from llamaserve.errors import Cancelled, ContextFull, DecodeFailed, EngineDown, LlamaServeError
from llamaserve.request import Event, Failed, Finished, FinishReason, GenerationRequest, TextDelta, Timings
from llamaserve.scheduler.admission import check_request
from llamaserve.scheduler.finish import finish_reason
from llamaserve.scheduler.inbox import Cancel, Command, Inbox, Stop, Submit
from llamaserve.scheduler.kv_pressure import FullRow, choose_victim
from llamaserve.scheduler.prefill_plan import PieceSize, plan_pieces
from llamaserve.scheduler.slot import Slot, SlotState, Work, choose_slot
from llamaserve.scheduler.stats import Counters, SchedulerStats
from llamaserve.scheduler.tick_policy import StepKind, choose_step_kind, prompt_budget

MAX_CONSECUTIVE_FAILED_STEPS = 8  # E11

Deliver = Callable[[list[tuple[str, Event]]], None]
"""Takes the (request id, event) pairs of one tick, in order. Scheduler thread; must not block or raise."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Step:
    """A plan, and the slots of its rows in plan order."""

    plan: StepPlan
    slots: Sequence[Slot]


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
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._info = engine.info
        self._config = config
        self._deliver_events = deliver
        self._clock = clock
        self._inbox = Inbox(n_slots=self._info.n_slots, max_queue=config.max_queue)
        self._slots = [Slot(seq_id) for seq_id in range(self._info.n_slots)]
        self._running: dict[str, Slot] = {}
        self._waiting: OrderedDict[str, Submit] = OrderedDict()
        self._events: list[tuple[str, Event]] = []
        self._counters = Counters()
        self._last_kind = StepKind.DECODE
        self._n_failed_steps = 0
        self._is_stopped = False
        self._n_admitted = 0

    # Any thread.

    def submit(self, request: GenerationRequest) -> None:
        """Take a request in; its events go to ``deliver``.

        Raises, and takes nothing: EmptyPrompt, PromptTooLong, BadToken, QueueFull, EngineDown, BadRequest when a
        live request has the same id.
        """
        check_request(request, self._info)
        self._inbox.submit(request, self._clock())

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
            self._info, self._slots, queue_depth=len(self._waiting), queue_rejects=self._inbox.n_rejected
        )

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
        self._admit()
        step = self._decide()
        if step is not None:
            outputs = self._run(step)
            if outputs is not None:
                self._apply(step, outputs)
        self._counters.used_cells = self._engine.used_cells()
        self._deliver()
        return took or step is not None

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
                self._waiting[command.request.request_id] = command
        elif isinstance(command, Cancel):
            self._cancel_now(command.request_id)
        elif isinstance(command, Stop):
            self._is_stopped = True
            self._shut_down(self._refusal())

    def _cancel_now(self, request_id: str) -> None:
        slot = self._running.get(request_id)
        if slot is not None:
            self._end(slot, Failed(Cancelled()))
        elif self._waiting.pop(request_id, None) is not None:
            self._answer(request_id, Failed(Cancelled()))
        # Else it ended in the tick before: it has had its terminal event.

    # Phase 2: admit.

    def _admit(self) -> None:
        while self._waiting:
            slot = choose_slot(self._slots)
            if slot is None:
                return
            request_id, entry = self._waiting.popitem(last=False)
            try:
                self._engine.open(SequenceSpec(slot.seq_id, entry.request.sampling))
            except EngineDown as error:
                self._give_up(error)  # and answers this one with all the others
                return
            except Exception as error:
                _logger.exception("request %s: the engine did not open sequence %d", request_id, slot.seq_id)
                self._engine.close(slot.seq_id)
                self._answer(request_id, Failed(_as_ours(error)))
                continue
            self._n_admitted += 1
            work = Work(
                entry.request,
                submitted_at=entry.submitted_at,
                admitted_at=self._clock(),
                admitted_order=self._n_admitted,
            )
            slot.begin(work)
            self._running[request_id] = slot

    # Phase 3: decide.

    def _decide(self) -> _Step | None:
        decoding = [slot.seq_id for slot in self._slots if slot.state is SlotState.GENERATING]
        n_prefilling = len(self._running) - len(decoding)
        kind = choose_step_kind(
            n_decoding=len(decoding),
            n_prefilling=n_prefilling,
            mixed_step=self._config.mixed_step,
            last_kind=self._last_kind,
        )
        if kind is None:
            return None
        self._last_kind = kind
        rows = [] if kind is StepKind.PROMPT else decoding
        pieces = [] if kind is StepKind.DECODE else self._cut_pieces(kind, len(rows))
        slots = [self._slots[seq_id] for seq_id in rows]
        slots += [self._slots[piece.seq_id] for piece in pieces]
        return _Step(StepPlan(rows, pieces), slots)

    def _cut_pieces(self, kind: StepKind, n_decoding: int) -> list[PromptPiece]:
        prefilling = [slot for slot in self._slots if slot.state is SlotState.PREFILLING]
        prefilling.sort(key=lambda slot: slot.working.admitted_order)
        if kind is StepKind.PROMPT:
            prefilling = prefilling[:1]
        chunk = self._config.prefill_chunk
        sizes = plan_pieces(
            [PieceSize(slot.seq_id, slot.working.n_prompt_left) for slot in prefilling],
            budget=prompt_budget(n_decoding=n_decoding, n_batch=self._info.n_batch, prefill_chunk=chunk),
            prefill_chunk=chunk,
        )
        pieces = []
        for seq_id, n_tokens in sizes:
            work = self._slots[seq_id].working
            end = work.n_prefilled + n_tokens
            tokens = work.request.prompt[work.n_prefilled : end]
            pieces.append(PromptPiece(seq_id, tokens, is_last=end == work.n_prompt))
        return pieces

    # Phase 4: run.

    def _run(self, step: _Step) -> Sequence[RowOutput] | None:
        """The outputs of a step; None if it failed as a whole, its requests are answered then."""
        flag = self._engine.new_flag()
        self._inbox.begin_step([slot.working.request.request_id for slot in step.slots], flag)
        self._counters.ticks += 1
        try:
            outputs = self._engine.collect(self._engine.submit(step.plan, flag))
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
        return outputs

    def _fail_step(self, step: _Step, message: str) -> None:
        for slot in step.slots:
            self._end(slot, Failed(DecodeFailed(f"the step failed: {message}")))
        self._count_failed_step(message)

    def _count_failed_step(self, message: str) -> None:
        """A failing step counts once, however many rows it had (K123)."""
        self._n_failed_steps += 1
        if self._n_failed_steps >= MAX_CONSECUTIVE_FAILED_STEPS:
            n_failed = self._n_failed_steps
            self._shut_down(EngineDown(f"stopped after {n_failed} failed steps in a row; the last: {message}"))

    # Phase 5: apply.

    def _apply(self, step: _Step, outputs: Sequence[RowOutput]) -> None:
        now = self._clock()
        n_decoding = len(step.plan.decode)
        has_success = False
        decode_failure: str | None = None
        full: list[FullRow] = []
        for index, (slot, output) in enumerate(zip(step.slots, outputs, strict=True)):
            error = output.error
            if error is RowError.CONTEXT_FULL:
                work = slot.working
                full.append(FullRow(slot.seq_id, work.n_computed, work.admitted_order))
                continue
            if error is not None:
                self._end(slot, Failed(self._row_failure(slot, error, output.message)))
                if error is RowError.DECODE:
                    decode_failure = output.message
                continue
            has_success = True
            if index < n_decoding:
                self._counters.decode_tokens += 1
                self._take_token(slot, output, now)
            else:
                self._take_piece(slot, step.plan.pieces[index - n_decoding], output, now)
        if full:
            self._relieve(full)
        if has_success:
            self._n_failed_steps = 0
        elif decode_failure is not None:
            self._count_failed_step(decode_failure)
        if decode_failure is not None:
            reason = self._engine.failure
            if reason is not None:
                self._give_up(EngineDown(reason))

    def _take_piece(self, slot: Slot, piece: PromptPiece, output: RowOutput, now: float) -> None:
        n_tokens = len(piece.tokens)
        slot.working.n_prefilled += n_tokens
        self._counters.prompt_tokens += n_tokens
        if piece.is_last:
            slot.generate()
            self._take_token(slot, output, now)

    def _take_token(self, slot: Slot, output: RowOutput, now: float) -> None:
        work = slot.working
        token = output.token
        if token is None:
            self._end(slot, Failed(DecodeFailed(f"the engine drew no token for sequence {slot.seq_id}")))
            return
        if work.first_token_at is None:
            work.first_token_at = now
        is_eog = output.is_eog
        text = ""
        if not is_eog:
            work.n_generated += 1
            self._counters.generated_tokens += 1
            text = work.text.push(output.piece)
        request = work.request
        reason = finish_reason(
            is_eog=is_eog,
            is_stopped=work.text.stop_sequence is not None,
            n_generated=work.n_generated,
            max_tokens=request.max_tokens,
            n_prompt=work.n_prompt,
            n_ctx_seq=self._info.n_ctx_seq,
        )
        if reason is not None:
            text += work.text.flush()
        if text or not is_eog:
            self._events.append((request.request_id, TextDelta(text, () if is_eog else (token,))))
        if reason is not None:
            self._end(slot, _finished(work, reason, now))

    def _relieve(self, full: Sequence[FullRow]) -> None:
        """End one request of those without a cell; the rows of the others are as before and run again."""
        slot = self._slots[choose_victim(full)]
        work = slot.working
        message = (
            f"the KV cache of {self._info.n_ctx} cells is full: no room for the next token after "
            f"{work.n_prefilled} of {work.n_prompt} prompt tokens and {work.n_generated} generated ones; "
            f"start the server with a larger --ctx-size"
        )
        self._end(slot, Failed(ContextFull(message)))

    def _row_failure(self, slot: Slot, error: RowError, message: str) -> LlamaServeError:
        work = slot.working
        if error is RowError.ABORTED:
            # A step's flag is set only when all its requests are cancelled, or at shut-down. How much of a piece
            # was computed before is not known, so a request that somebody still waits for could not go on.
            if self._inbox.is_cancelled(work.request.request_id):
                return Cancelled()
            if self._inbox.is_stopping:
                return self._refusal()
            return DecodeFailed("the step was stopped, though its request was not cancelled")
        return DecodeFailed(f"llama.cpp could not compute the step: {message}")

    # Ends.

    def _end(self, slot: Slot, event: Finished | Failed) -> None:
        """Free a slot and answer its request."""
        request_id = slot.release().request.request_id
        slot.last_used_tick = self._counters.ticks
        del self._running[request_id]
        self._engine.close(slot.seq_id)
        self._answer(request_id, event)

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
        self._running.clear()
        for request_id in self._inbox.leave_all():
            self._answer(request_id, Failed(EngineDown(*error.args)))
        for slot in self._slots:
            if slot.state is not SlotState.IDLE:
                slot.release()
                self._close_anyway(slot.seq_id)

    def _close_anyway(self, seq_id: int) -> None:
        try:
            self._engine.close(seq_id)
        except Exception:
            _logger.exception("sequence %d could not be closed", seq_id)

    # Phase 6: deliver.

    def _deliver(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._deliver_events(events)

    def check(self) -> None:
        """Raise AssertionError unless all invariants between two ticks hold. For tests, after every tick."""
        for seq_id, slot in enumerate(self._slots):
            assert slot.seq_id == seq_id
            assert (slot.state is SlotState.IDLE) == (slot.work is None), f"slot {seq_id}: {slot.state}"
            if slot.work is not None:
                self._check_work(slot, slot.work)
        busy = {slot.seq_id for slot in self._slots if slot.work is not None}
        assert {slot.seq_id for slot in self._running.values()} == busy
        just_freed = all(slot.last_used_tick == self._counters.ticks for slot in self._slots if slot.work is None)
        assert not self._waiting or just_freed, "a request waits beside a slot that was idle all the tick"
        assert not self._running.keys() & self._waiting.keys()
        assert self._running.keys() | self._waiting.keys() <= self._inbox.live
        assert not self._events, "events were not delivered"
        assert self._n_failed_steps < MAX_CONSECUTIVE_FAILED_STEPS or self._inbox.refusal is not None
        assert self._inbox.refusal is None or not (busy or self._waiting), "work goes on after a shut-down"

    def _check_work(self, slot: Slot, work: Work) -> None:
        request = work.request
        assert self._running[request.request_id] is slot
        assert 0 <= work.n_prefilled <= work.n_prompt
        assert (slot.state is SlotState.GENERATING) == (work.n_prefilled == work.n_prompt)
        assert (slot.state is SlotState.GENERATING) == (work.n_generated > 0)
        assert request.max_tokens is None or work.n_generated < request.max_tokens, "E7: past max_tokens"
        assert work.n_prompt + work.n_generated < self._info.n_ctx_seq, "E7: past the context bound"
        assert work.text.stop_sequence is None, "E7: past a stop string"


def _finished(work: Work, reason: FinishReason, now: float) -> Finished:
    first = now if work.first_token_at is None else work.first_token_at
    return Finished(
        reason=reason,
        stop_sequence=work.text.stop_sequence if reason is FinishReason.STOP_SEQUENCE else None,
        prompt_tokens=work.n_prompt,
        completion_tokens=work.n_generated,
        timings=Timings(
            queue_s=work.admitted_at - work.submitted_at,
            prefill_s=first - work.admitted_at,
            decode_s=now - first,
        ),
    )


def _as_ours(error: Exception) -> LlamaServeError:
    """The error itself if the package knows it, else DecodeFailed with what it says."""
    if isinstance(error, LlamaServeError):
        return error
    return DecodeFailed(f"{type(error).__name__}: {error}")
