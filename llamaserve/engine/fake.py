"""An engine without a model: bytes are tokens, a function says what comes next, failures come on demand.

For tests of everything above the engine seam. It obeys the laws of ``port`` and refuses what the real engine refuses.
One thread at a time, like any engine; ``vocab`` and flags: any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llamaserve.engine.port import (
    MemoryKind,
    ModelInfo,
    PromptPiece,
    RowError,
    SequenceSpec,
    StepFlag,
    StepPlan,
    StepReport,
    SuspendedSequence,
    Ticket,
)
from llamaserve.errors import BadToken, ConfigError, EngineDown, EngineError

EOS = 256
BOS = 257
N_VOCAB = 258
SPECIAL_TEXT = {b"<eos>": EOS, b"<bos>": BOS}
"""How control tokens are written in a text."""

Continuation = Callable[[tuple[int, ...]], int]
"""All tokens of a sequence, prompt and drawn, to the next one."""


def letters(history: tuple[int, ...]) -> int:
    """A lower-case letter that depends on the history; never ends."""
    recent = 0
    for token in history[-3:]:
        recent = recent * 31 + token
    return ord("a") + (recent * 7 + len(history) * 11) % 26


def scripted(replies: Mapping[str, str | bytes]) -> Continuation:
    """Answers each prompt, given without BOS, with its reply and an EOS; a prompt that is not listed with an EOS."""
    texts = {prompt.encode(): reply.encode() if isinstance(reply, str) else reply for prompt, reply in replies.items()}

    def continuation(history: tuple[int, ...]) -> int:
        written = bytes(token for token in history if token < EOS)
        for prompt in sorted(texts, key=len, reverse=True):
            if written.startswith(prompt):
                reply = texts[prompt]
                n_said = len(written) - len(prompt)
                return reply[n_said] if n_said < len(reply) else EOS
        return EOS

    return continuation


@dataclass(frozen=True, slots=True)
class FakeRow:
    """A RowOutput."""

    seq_id: int
    token: int | None = None
    is_eog: bool = False
    piece: bytes = b""
    error: RowError | None = None
    message: str = ""


class FakeFlag:
    """A StepFlag that can be waited for."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Stop the step."""
        self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether the step shall stop."""
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Block until the flag is set or the time is over; whether it is set."""
        return self._event.wait(timeout_s)


class FakeVocabulary:
    """Bytes 0 to 255, then EOS and BOS."""

    @property
    def n_tokens(self) -> int:
        """258."""
        return N_VOCAB

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The UTF-8 bytes; ``add_special`` puts BOS in front, ``parse_special`` reads "<eos>" and "<bos>"."""
        tokens = [BOS] if add_special else []
        rest = text.encode()
        while rest:
            special = next((name for name in SPECIAL_TEXT if parse_special and rest.startswith(name)), None)
            tokens.append(rest[0] if special is None else SPECIAL_TEXT[special])
            rest = rest[1 if special is None else len(special) :]
        return tokens

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> bytes:
        """The bytes; ``special`` writes control tokens out. Raises BadToken."""
        names = {token: name for name, token in SPECIAL_TEXT.items()}
        for token in tokens:
            _check_token(token)
        return b"".join(bytes([token]) if token < EOS else names[token] if special else b"" for token in tokens)

    def is_eog(self, token: int) -> bool:
        """Whether the token is EOS. Raises BadToken."""
        _check_token(token)
        return token == EOS


class _Sequence:
    """Tokens whose KV exists, and the one drawn last."""

    __slots__ = ("broken", "computed", "drawn", "n_recompute", "spec")

    def __init__(self, spec: SequenceSpec) -> None:
        self.spec = spec
        self.computed: list[int] = []
        self.drawn: int | None = None
        self.n_recompute = 0
        self.broken: str | None = None

    @property
    def is_recomputing(self) -> bool:
        """Whether it was resumed without its cells and has not got all of them back."""
        return len(self.computed) < self.n_recompute


class FakeSuspended:
    """A SuspendedSequence; a cell takes one byte."""

    def __init__(self, sequence: _Sequence, *, has_cells: bool) -> None:
        self.sequence: _Sequence | None = sequence
        self.n_bytes = len(sequence.computed) if has_cells else 0


class FakeEngine:
    """An ``Engine`` with scripted text.

    ``continuation`` draws every token; of the sampling parameters only ``ignore_eos`` and ``logit_bias`` with -inf on
    EOS matter: EOS is then drawn as ".". ``step_s`` seconds pass in a step, unless its flag is set before. ``n_ctx``
    cells are shared by all sequences, one of them holds at most ``n_ctx_seq``. A step that runs ahead takes no time and
    no cell: only the next ``submit`` sees that it was there.

    For tests: ``plans`` and ``opened`` keep what was asked, ``fail_row``, ``fail_step`` and ``lose_context`` script
    failures, and ``before_step`` is called with plan and flag while a step runs; it may block or raise. ``ran_ahead``
    has for every plan whether it ran ahead.

    Raises ConfigError when ``n_batch`` is below ``n_slots``.
    """

    def __init__(
        self,
        *,
        n_slots: int = 4,
        n_ctx: int = 1024,
        n_batch: int = 512,
        n_ctx_seq: int | None = None,
        continuation: Continuation = letters,
        step_s: float = 0.0,
        can_rewind: bool = True,
        before_step: Callable[[StepPlan, FakeFlag | None], None] | None = None,
    ) -> None:
        if n_batch < n_slots:
            raise ConfigError(f"n_batch is {n_batch}: it must be at least n_slots, {n_slots}")
        self.plans: list[StepPlan] = []
        self.ran_ahead: list[bool] = []
        self.opened: list[SequenceSpec] = []
        self.is_shut_down = False
        self.before_step = before_step
        self._vocab = FakeVocabulary()
        self._continuation = continuation
        self._step_s = step_s
        self._sequences: dict[int, _Sequence] = {}
        self._row_failures: dict[int, deque[RowError]] = {}
        self._step_failures: deque[Exception] = deque()
        self._why_next_is_lost: str | None = None
        self._why_down: str | None = None
        self._pending: tuple[Ticket, StepPlan, FakeFlag | None] | None = None
        self._can_rewind = can_rewind
        self._wants_ahead = False
        self._ahead_rows: tuple[int, ...] = ()
        self._n_failing_rewinds = 0
        self._report = StepReport()
        self._n_tickets = 0
        self._n_used = 0
        self._info = ModelInfo(
            architecture="fake",
            description="fake bytes",
            size_bytes=0,
            n_params=0,
            n_ctx_train=n_ctx,
            n_embd=1,
            n_vocab=N_VOCAB,
            memory=MemoryKind.KV,
            n_ctx=n_ctx,
            n_ctx_seq=n_ctx if n_ctx_seq is None else n_ctx_seq,
            n_batch=n_batch,
            n_ubatch=n_batch,
            n_slots=n_slots,
        )

    def fail_row(self, seq_id: int, error: RowError) -> None:
        """The next row of this sequence id fails; called twice, the next two."""
        self._row_failures.setdefault(seq_id, deque()).append(error)

    def fail_step(self, error: Exception, *, times: int = 1) -> None:
        """The next ``times`` calls of ``submit`` raise this."""
        self._step_failures.extend([error] * times)

    def fail_rewinds(self, count: int) -> None:
        """So many sequences, of the next steps that are taken back, cannot be."""
        self._n_failing_rewinds = count

    def lose_context(self, message: str) -> None:
        """llama.cpp throws in the next step: its rows fail, and later ``open`` and ``submit`` raise EngineDown."""
        self._why_next_is_lost = message

    @property
    def failure(self) -> str | None:
        """Why the engine computes nothing any more."""
        return self._why_down

    @property
    def info(self) -> ModelInfo:
        """Sizes as given to the constructor."""
        return self._info

    @property
    def vocab(self) -> FakeVocabulary:
        """Bytes, EOS, BOS."""
        return self._vocab

    def open(self, spec: SequenceSpec) -> None:
        """Start an empty sequence. Raises EngineError, BadToken, EngineDown after ``shutdown``."""
        self._check_running()
        self.unwind()
        self._check_free(spec.seq_id)
        for token in spec.sampling.logit_bias:
            _check_token(token, "logit_bias")
        self.opened.append(spec)
        self._sequences[spec.seq_id] = _Sequence(spec)

    @property
    def can_rewind(self) -> bool:
        """As given to the constructor."""
        return self._can_rewind

    def submit(self, plan: StepPlan, flag: StepFlag | None = None, *, ahead: bool = False) -> Ticket:
        """Keep the plan for ``collect``. Raises EngineError for a bad plan, and what ``fail_step`` scripted."""
        self._check_running()
        if self._pending is not None:
            raise EngineError("a ticket is outstanding")
        is_next = bool(self._ahead_rows) and not plan.pieces and tuple(plan.decode) == self._ahead_rows
        if not is_next:
            self.unwind()
        self._check_plan(plan)
        if flag is not None and not isinstance(flag, FakeFlag):
            raise EngineError("the flag was not made by this engine")
        self._ahead_rows = ()
        self._wants_ahead = ahead
        self.plans.append(plan)
        self.ran_ahead.append(is_next)
        if self._step_failures:
            raise self._step_failures.popleft()
        self._n_tickets += 1
        ticket = Ticket(self._n_tickets)
        self._pending = (ticket, plan, flag)
        return ticket

    def collect(self, ticket: Ticket) -> list[FakeRow]:
        """Compute the rows. Raises EngineError for a ticket not outstanding, and what ``before_step`` raises."""
        if self._pending is None or self._pending[0] != ticket:
            raise EngineError(f"ticket {ticket} is not outstanding")
        _, plan, flag = self._pending
        self._pending = None
        self._report = StepReport(ran_ahead=self.ran_ahead[-1])
        if self.before_step is not None:
            self.before_step(plan, flag)
        if self._step_s:
            (flag or FakeFlag()).wait(self._step_s)
        ids = [*plan.decode, *(piece.seq_id for piece in plan.pieces)]
        if self._why_next_is_lost is not None:
            self._why_down = self._why_next_is_lost
            return [self._fail(seq_id, RowError.DECODE, self._why_down) for seq_id in ids]
        if flag is not None and flag.is_set:
            return [FakeRow(seq_id, error=RowError.ABORTED, message="the step was stopped") for seq_id in ids]
        rows = [self._decode(seq_id) for seq_id in plan.decode]
        rows += [self._compute(piece.seq_id, piece.tokens, draw=piece.is_last) for piece in plan.pieces]
        goes_on = all(row.error is None and row.token is not None and not row.is_eog for row in rows)
        if self._wants_ahead and self._can_rewind and goes_on:
            self._ahead_rows = tuple(sorted(ids))
        return rows

    @property
    def report(self) -> StepReport:
        """Of the step collected last; it took no time."""
        return self._report

    @property
    def ahead_rows(self) -> Sequence[int]:
        """The rows of the step that runs ahead."""
        return self._ahead_rows

    def unwind(self) -> list[int]:
        """Take back the step that runs ahead; the ids ``fail_rewinds`` breaks."""
        broken = self._ahead_rows[: self._n_failing_rewinds]
        self._n_failing_rewinds -= len(broken)
        self._ahead_rows = ()
        for seq_id in broken:
            self._fail(seq_id, RowError.DECODE, "")
            self._sequences[seq_id].broken = "a step that ran ahead could not be taken back"
        return list(broken)

    def suspend(self, seq_id: int, max_bytes: int) -> FakeSuspended:
        """Close a sequence and keep it. Raises EngineError, EngineDown."""
        self._check_running()
        self.unwind()
        sequence = self._sequences.get(seq_id)
        if sequence is None or sequence.drawn is None or sequence.broken is not None:
            raise EngineError(f"sequence {seq_id} is not open, has drawn nothing or is broken")
        suspended = FakeSuspended(
            sequence, has_cells=not sequence.is_recomputing and len(sequence.computed) <= max_bytes
        )
        self.close(seq_id)
        return suspended

    def resume(self, seq_id: int, suspended: SuspendedSequence) -> bool:
        """Open it again; False when its cells have no room. Raises EngineError, EngineDown."""
        self._check_running()
        self.unwind()
        self._check_free(seq_id)
        if not isinstance(suspended, FakeSuspended) or suspended.sequence is None:
            raise EngineError("a sequence suspended by this engine can be resumed once")
        sequence = suspended.sequence
        if suspended.n_bytes == 0:
            sequence.n_recompute = max(len(sequence.computed), sequence.n_recompute)
            sequence.computed = []
        elif self._n_used + len(sequence.computed) > self._info.n_ctx:
            return False
        suspended.sequence = None
        self._sequences[seq_id] = sequence
        self._n_used += len(sequence.computed)
        return True

    def step(self, plan: StepPlan, flag: StepFlag | None = None) -> list[FakeRow]:
        """``collect(submit(plan))``."""
        return self.collect(self.submit(plan, flag))

    def new_flag(self) -> FakeFlag:
        """A flag for one step."""
        return FakeFlag()

    def close(self, seq_id: int) -> bool:
        """Forget the sequence; whether it was open."""
        self.unwind()
        self._row_failures.pop(seq_id, None)
        sequence = self._sequences.pop(seq_id, None)
        if sequence is None:
            return False
        self._n_used -= len(sequence.computed)
        return True

    def used_cells(self) -> int:
        """Tokens computed, over all open sequences."""
        return self._n_used

    def shutdown(self) -> None:
        """Refuse everything from now on."""
        self.is_shut_down = True
        self._why_down = "the engine was shut down"
        self._pending = None
        self._ahead_rows = ()
        self._sequences.clear()
        self._n_used = 0

    def _check_running(self) -> None:
        if self._why_down is not None:
            raise EngineDown(self._why_down)

    def _check_free(self, seq_id: int) -> None:
        if not 0 <= seq_id < self._info.n_slots:
            raise EngineError(f"sequence {seq_id} is out of range (0..{self._info.n_slots - 1})")
        if seq_id in self._sequences:
            raise EngineError(f"sequence {seq_id} is open")

    def _check_plan(self, plan: StepPlan) -> None:
        ids = [*plan.decode, *(piece.seq_id for piece in plan.pieces)]
        if not ids:
            raise EngineError("the plan is empty")
        if len(set(ids)) != len(ids):
            raise EngineError(f"the plan names a sequence twice: {ids}")
        for seq_id in ids:
            if seq_id not in self._sequences:
                raise EngineError(f"sequence {seq_id} is not open")
        for seq_id in plan.purge:
            if seq_id in self._sequences:
                raise EngineError(f"sequence {seq_id} is open: it cannot be purged")
        n_tokens = len(plan.decode) + sum(len(piece.tokens) for piece in plan.pieces)
        if n_tokens > self._info.n_batch:
            raise EngineError(f"the plan holds {n_tokens} tokens, at most {self._info.n_batch} are allowed")
        for seq_id in plan.decode:
            sequence = self._sequences[seq_id]
            if sequence.broken is None and (sequence.drawn is None or sequence.is_recomputing):
                raise EngineError(f"sequence {seq_id} has drawn no token yet, or has not all of its cells back")
        for piece in plan.pieces:
            self._check_piece(piece)

    def _check_piece(self, piece: PromptPiece) -> None:
        sequence = self._sequences[piece.seq_id]
        if sequence.is_recomputing:
            if piece.is_last or len(sequence.computed) + len(piece.tokens) > sequence.n_recompute:
                raise EngineError(f"sequence {piece.seq_id} draws nothing before it has its cells back")
        elif sequence.drawn is not None:
            raise EngineError(f"sequence {piece.seq_id} has its prompt already")
        if not piece.tokens:
            raise EngineError(f"the piece of sequence {piece.seq_id} is empty")
        for token in piece.tokens:
            _check_token(token)

    def _decode(self, seq_id: int) -> FakeRow:
        drawn = self._sequences[seq_id].drawn
        return self._compute(seq_id, () if drawn is None else (drawn,), draw=True)

    def _compute(self, seq_id: int, tokens: Sequence[int], *, draw: bool) -> FakeRow:
        sequence = self._sequences[seq_id]
        if sequence.broken is not None:
            return self._fail(seq_id, RowError.DECODE, sequence.broken)
        failures = self._row_failures.get(seq_id)
        if failures:
            error = failures.popleft()
            return self._fail(seq_id, error, f"scripted {error.value}")
        n_after = len(sequence.computed) + len(tokens)
        if n_after > self._info.n_ctx_seq or self._n_used + len(tokens) > self._info.n_ctx:
            return self._fail(seq_id, RowError.CONTEXT_FULL, "no cell left")
        sequence.computed.extend(tokens)
        self._n_used += len(tokens)
        if not draw:
            return FakeRow(seq_id)
        token = self._continuation(tuple(sequence.computed))
        sampling = sequence.spec.sampling
        if token == EOS and (sampling.ignore_eos or sampling.logit_bias.get(EOS) == float("-inf")):
            token = ord(".")
        sequence.drawn = token
        is_eog = token == EOS
        return FakeRow(seq_id, token, is_eog, bytes([token]) if token < EOS else b"")

    def _fail(self, seq_id: int, error: RowError, message: str) -> FakeRow:
        if error is RowError.ABORTED and not self._can_rewind:
            self._sequences[seq_id].broken = message
        if error is RowError.DECODE or self._sequences[seq_id].broken is not None:
            sequence = self._sequences[seq_id]
            self._n_used -= len(sequence.computed)
            sequence.computed.clear()
            sequence.drawn = None
        return FakeRow(seq_id, error=error, message=message)


def _check_token(token: int, param: str = "prompt") -> None:
    if not 0 <= token < N_VOCAB:
        raise BadToken(token, N_VOCAB, param)
