"""An engine without a model: bytes are tokens, a function says what comes next, failures come on demand.

For tests of everything above the engine seam. It obeys the laws of ``port`` and refuses what the real engine refuses.
One thread at a time, like any engine; ``vocab`` and flags: any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from llamaserve.engine.fake_faults import FakeFaults
from llamaserve.engine.fake_masks import check_masks, forbidden_tokens, next_token
from llamaserve.engine.fake_memory import FakeCells, FakeState
from llamaserve.engine.fake_plan_checks import check_plan
from llamaserve.engine.fake_sequence import FakeSequence, FakeSuspended
from llamaserve.engine.fake_text import (
    BOS,
    EOS,
    N_VOCAB,
    Continuation,
    FakeVocabulary,
    check_token,
    letters,
    score,
    scripted,
)
from llamaserve.engine.port import (
    FimTokens,
    MemoryKind,
    ModelInfo,
    PromptPiece,
    RowError,
    SavedState,
    Score,
    SequenceSpec,
    StepFlag,
    StepPlan,
    StepReport,
    SuspendedSequence,
    Ticket,
)
from llamaserve.errors import ConfigError, EngineDown, EngineError

__all__ = [
    "BOS",
    "EOS",
    "N_VOCAB",
    "Continuation",
    "FakeEngine",
    "FakeFlag",
    "FakeRow",
    "FakeState",
    "FakeSuspended",
    "FakeVocabulary",
    "letters",
    "scripted",
]

N_SHARED_IDS = 256
"""``n_ids`` of an engine that can share."""


@dataclass(frozen=True, slots=True)
class FakeRow:
    """A RowOutput."""

    seq_id: int
    token: int | None = None
    is_eog: bool = False
    piece: bytes = b""
    scores: tuple[Score, ...] = ()
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


class FakeEngine(FakeFaults):
    """An ``Engine`` with scripted text.

    ``continuation`` draws every token; of the sampling parameters only those matter that forbid tokens. One that may
    not be drawn becomes another, EOS a ".", and one that a mask bars one that it allows (``fake_masks.next_token``).
    Scores are those of ``fake_text.score``.

    ``step_s`` seconds pass in a step, unless its flag is set before. ``n_ctx`` cells are shared by all sequences, one
    of them holds at most ``n_ctx_seq``. A step that runs ahead takes no time and no cell: only the next ``submit`` sees
    that it was there.

    ``can_share`` lets ids share cells, and has 256 of them. Memory without ``can_trim`` is like a recurrent state: it
    forgets all or nothing and has checkpoints, whose copies hold every token. A copy takes ``bytes_per_cell`` for each.

    For tests: ``plans`` and ``opened`` keep what was asked, the ``fail_`` methods and ``lose_context`` script failures,
    and ``before_step`` is called with plan and flag while a step runs; it may block or raise. ``ran_ahead`` has for
    every plan whether it ran ahead.

    Raises ConfigError when ``n_batch`` is below ``n_slots``, when memory can share but not trim, or when a cell takes
    no byte.
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
        can_share: bool = True,
        can_trim: bool = True,
        bytes_per_cell: int = 1,
        before_step: Callable[[StepPlan, FakeFlag | None], None] | None = None,
        fim_tokens: FimTokens | None = None,
    ) -> None:
        if n_batch < n_slots:
            raise ConfigError(f"n_batch is {n_batch}: it must be at least n_slots, {n_slots}")
        if can_share and not can_trim:
            raise ConfigError("memory that cannot be trimmed cannot share: pass can_share=False too")
        if bytes_per_cell < 1:
            raise ConfigError(f"bytes_per_cell is {bytes_per_cell}: it must be at least 1")
        super().__init__()
        self.plans: list[StepPlan] = []
        self.ran_ahead: list[bool] = []
        self.opened: list[SequenceSpec] = []
        self.is_shut_down = False
        self.before_step = before_step
        self._vocab = FakeVocabulary(fim_tokens)
        self._continuation = continuation
        self._step_s = step_s
        self._sequences: dict[int, FakeSequence] = {}
        self._why_down: str | None = None
        self._pending: tuple[Ticket, StepPlan, FakeFlag | None] | None = None
        self._can_rewind = can_rewind
        self._wants_ahead = False
        self._ahead_rows: tuple[int, ...] = ()
        self._broken: list[int] = []
        self._report = StepReport()
        self._purge_list: deque[int] = deque()
        self._n_tickets = 0
        self._masks: Mapping[int, bytes] = {}
        self._can_share = can_share
        self._can_trim = can_trim
        self._bytes_per_cell = bytes_per_cell
        self._n_ids = N_SHARED_IDS if can_share else n_slots
        self._cells = FakeCells(self._n_ids)
        self._info = ModelInfo(
            architecture="fake",
            description="fake bytes",
            size_bytes=0,
            n_params=0,
            n_ctx_train=n_ctx,
            n_embd=1,
            n_vocab=N_VOCAB,
            memory=MemoryKind.KV if can_trim else MemoryKind.RECURRENT,
            n_ctx=n_ctx,
            n_ctx_seq=n_ctx if n_ctx_seq is None else n_ctx_seq,
            n_batch=n_batch,
            n_ubatch=n_batch,
            n_slots=n_slots,
        )

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
        """Start a sequence that goes on from the cells its id holds. Raises EngineError, BadToken, EngineDown."""
        self._check_running()
        self._settle()
        self._check_free(spec.seq_id)
        for token in spec.sampling.logit_bias:
            check_token(token, "logit_bias")
        for token in (*spec.history, *spec.stop_tokens):
            check_token(token)
        self.opened.append(spec)
        self._sequences[spec.seq_id] = FakeSequence(spec)

    @property
    def can_share(self) -> bool:
        """As given to the constructor."""
        return self._can_share

    @property
    def n_ids(self) -> int:
        """256 where ids can share cells, else ``n_slots``."""
        return self._n_ids

    @property
    def state_layout(self) -> str:
        """Names the size of a cell and what kind of memory it is."""
        return f"fake {self._info.memory.value}, {self._bytes_per_cell} bytes per cell"

    def length(self, seq_id: int) -> int:
        """Cells an id holds. Raises EngineError, EngineDown."""
        self._check_memory(seq_id)
        return self._cells.length(seq_id)

    def tokens(self, seq_id: int) -> tuple[int, ...]:
        """For tests: the tokens of the cells an id holds."""
        return self._cells.tokens(seq_id)

    def adopt(self, seq_id: int, source: int, n_tokens: int) -> None:
        """Share the cells of another id, up to its first ``n_tokens``. Raises EngineError, EngineDown."""
        self._check_memory(seq_id)
        self._check_memory(source)
        self._check_scripted("adopt")
        if not self._can_share:
            raise EngineError("memory cannot share cells")
        if seq_id == source:
            raise EngineError(f"sequence {seq_id} cannot adopt from itself")
        if not self._cells.length(seq_id) < n_tokens <= self._cells.length(source):
            raise EngineError(
                f"sequence {seq_id}, which holds {self._cells.length(seq_id)} tokens, cannot hold {n_tokens} of the "
                f"{self._cells.length(source)} of sequence {source}"
            )
        sequence = self._sequences.get(seq_id)
        if sequence is not None:
            self._check_adopts(seq_id, sequence, n_tokens)
        self._cells.share(seq_id, source, n_tokens)

    def trim(self, seq_id: int, n_tokens: int) -> bool:
        """Forget what an id holds from there on. Raises EngineError, EngineDown."""
        self._check_memory(seq_id)
        self._check_not_open(seq_id)
        n_held = self._cells.length(seq_id)
        if not 0 <= n_tokens <= n_held:
            raise EngineError(f"sequence {seq_id} holds {n_held} tokens: it cannot be cut to {n_tokens}")
        if not self._can_trim and 0 < n_tokens < n_held:
            return False
        self._cells.trim(seq_id, n_tokens)
        return True

    def save(self, seq_id: int, start: int, max_bytes: int) -> FakeState | None:
        """A copy of the tokens from ``start`` on. Raises EngineError, EngineDown."""
        self._check_memory(seq_id)
        self._check_scripted("save")
        if start > 0 and not self._can_share:
            raise EngineError(f"a copy from position {start} on cannot be made: memory cannot share cells")
        if not 0 <= start < self._cells.length(seq_id):
            raise EngineError(
                f"sequence {seq_id} holds {self._cells.length(seq_id)} tokens, none from position {start} on"
            )
        if (self._cells.length(seq_id) - start) * self._bytes_per_cell > max_bytes:
            return None
        return FakeState.of(self._cells.tokens(seq_id, start), start, self._bytes_per_cell)

    def load_state(self, data: bytes | memoryview, start: int, end: int) -> FakeState:
        """A state from its bytes. Raises EngineError."""
        _check_range(start, end)
        return FakeState(bytes(data), start, end)

    def restore(self, seq_id: int, state: SavedState) -> bool:
        """Compute what was saved, as it were. Raises EngineError, EngineDown."""
        self._check_memory(seq_id)
        self._check_not_open(seq_id)
        self._check_scripted("restore")
        own = self._own_state(state, is_checkpoint=False)
        if state.start > 0 and not self._can_share:
            raise EngineError(f"a state that starts at position {state.start} cannot be restored: memory cannot share")
        if self._cells.length(seq_id) != state.start:
            raise EngineError(
                f"sequence {seq_id} holds {self._cells.length(seq_id)} tokens, the state starts at {state.start}"
            )
        if state.end > self._info.n_ctx_seq or self._cells.n_used + state.end - state.start > self._info.n_ctx:
            return False
        self._cells.append(seq_id, own.tokens(self._bytes_per_cell))
        return True

    def checkpoint(self, seq_id: int, max_bytes: int) -> FakeState | None:
        """The tokens an id holds, where memory cannot be trimmed. Raises EngineError, EngineDown."""
        self._check_memory(seq_id)
        if self._cells.length(seq_id) == 0:
            raise EngineError(f"sequence {seq_id} holds no token")
        state = None if self._can_trim else self.save(seq_id, 0, max_bytes)
        if state is not None:
            state.is_checkpoint = True
        return state

    def go_back(self, seq_id: int, checkpoint: SavedState) -> bool:
        """Have an id hold what it held then. Raises EngineError, EngineDown.

        Stricter than the real one: EngineError also when the id has not kept the tokens of the checkpoint.
        """
        self._check_memory(seq_id)
        self._check_not_open(seq_id)
        self._check_scripted("restore")
        tokens = self._own_state(checkpoint, is_checkpoint=True).tokens(self._bytes_per_cell)
        if self._cells.tokens(seq_id)[: len(tokens)] != tokens:
            raise EngineError(f"sequence {seq_id} does not hold the {len(tokens)} tokens of the checkpoint any more")
        self._cells.trim(seq_id, len(tokens))
        return True

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
            self._settle()
        check_plan(plan, self._info, self._sequences, self._cells)
        check_masks(plan)
        if flag is not None and not isinstance(flag, FakeFlag):
            raise EngineError("the flag was not made by this engine")
        self._ahead_rows = ()
        self._wants_ahead = ahead
        self.plans.append(plan)
        self.ran_ahead.append(is_next)
        self._check_step_failure()
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
        self._purge_list = deque(plan.purge)
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
        self._masks = plan.masks
        rows = [self._decode(seq_id) for seq_id in plan.decode]
        rows += [self._compute_piece(piece) for piece in plan.pieces]
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
        """Take back the step that runs ahead; the ids ``fail_rewinds`` breaks, now or in another call."""
        self._settle()
        broken, self._broken = self._broken, []
        return broken

    def suspend(self, seq_id: int, max_bytes: int) -> FakeSuspended:
        """Close a sequence and keep it. Raises EngineError, EngineDown."""
        self._check_running()
        self._settle()
        sequence = self._sequences.get(seq_id)
        if sequence is None or sequence.drawn is None or sequence.broken is not None:
            raise EngineError(f"sequence {seq_id} is not open, has drawn nothing or is broken")
        cells = self._cells.tokens(seq_id)
        if sequence.is_recomputing(len(cells)) or len(cells) * self._bytes_per_cell > max_bytes:
            sequence.n_recompute = max(len(cells), sequence.n_recompute)
            suspended = FakeSuspended(sequence, None, self._bytes_per_cell)
        else:
            sequence.n_recompute = 0
            suspended = FakeSuspended(sequence, cells, self._bytes_per_cell)
        self.close(seq_id)
        return suspended

    def resume(self, seq_id: int, suspended: SuspendedSequence) -> bool:
        """Open it again; False when its cells have no room. Raises EngineError, EngineDown."""
        self._check_running()
        self._settle()
        self._check_free(seq_id)
        if not isinstance(suspended, FakeSuspended) or suspended.sequence is None:
            raise EngineError("a sequence suspended by this engine can be resumed once")
        sequence = suspended.sequence
        n_held = self._cells.length(seq_id)
        if n_held > (sequence.n_recompute if suspended.cells is None else 0):
            raise EngineError(f"sequence {seq_id} holds {n_held} tokens, which the suspended one cannot go on from")
        if suspended.cells is not None:
            if self._cells.n_used + len(suspended.cells) > self._info.n_ctx:
                return False
            self._cells.append(seq_id, suspended.cells)
        suspended.sequence = None
        suspended.cells = None
        self._sequences[seq_id] = sequence
        return True

    def step(self, plan: StepPlan, flag: StepFlag | None = None) -> list[FakeRow]:
        """``collect(submit(plan))``."""
        return self.collect(self.submit(plan, flag))

    def new_flag(self) -> FakeFlag:
        """A flag for one step."""
        return FakeFlag()

    def close(self, seq_id: int, *, keep: bool = False) -> bool:
        """End the sequence; whether it was open."""
        self._settle()
        self._row_failures.pop(seq_id, None)
        sequence = self._sequences.pop(seq_id, None)
        if sequence is None:
            return False
        self._broken = [broken for broken in self._broken if broken != seq_id]
        if not keep or sequence.broken is not None:
            self._cells.trim(seq_id, 0)
        return True

    def used_cells(self) -> int:
        """Cells that any id holds, each counted once."""
        return self._cells.n_used

    def shutdown(self) -> None:
        """Refuse everything from now on."""
        self.is_shut_down = True
        self._why_down = "the engine was shut down"
        self._pending = None
        self._ahead_rows = ()
        self._sequences.clear()
        self._cells = FakeCells(self._n_ids)

    def _settle(self) -> None:
        broken = self._take_failing_rewinds(self._ahead_rows)
        self._ahead_rows = ()
        for seq_id in broken:
            self._fail(seq_id, RowError.DECODE, "")
            self._sequences[seq_id].broken = "a step that ran ahead could not be taken back"
        self._broken += broken

    def _check_running(self) -> None:
        if self._why_down is not None:
            raise EngineDown(self._why_down)

    def _check_memory(self, seq_id: int) -> None:
        self._check_running()
        self._settle()
        self._cells.check_id(seq_id)

    def _check_not_open(self, seq_id: int) -> None:
        if seq_id in self._sequences:
            raise EngineError(f"sequence {seq_id} is open")

    def _check_adopts(self, seq_id: int, sequence: FakeSequence, n_tokens: int) -> None:
        if sequence.broken is not None:
            raise EngineError(f"sequence {seq_id} can only be closed: {sequence.broken}")
        if sequence.drawn is not None and n_tokens > sequence.n_recompute:
            raise EngineError(f"sequence {seq_id} has drawn a token already")

    def _own_state(self, state: SavedState, *, is_checkpoint: bool) -> FakeState:
        if not isinstance(state, FakeState):
            raise EngineError(f"a {type(state).__name__} was not saved by this engine")
        if state.is_checkpoint != is_checkpoint:
            raise EngineError("a checkpoint can only be gone back to, and a copy of a sequence only be restored")
        return state

    def _check_free(self, seq_id: int) -> None:
        if not 0 <= seq_id < self._info.n_slots:
            raise EngineError(f"sequence {seq_id} is out of range (0..{self._info.n_slots - 1})")
        self._check_not_open(seq_id)

    def _compute_piece(self, piece: PromptPiece) -> FakeRow:
        before = self._cells.tokens(piece.seq_id)
        row = self._compute(piece.seq_id, piece.tokens, draw=piece.is_last)
        if piece.n_top is None or row.error is not None:
            return row
        following = [*piece.tokens[1:], *(() if piece.next_token is None else (piece.next_token,))]
        first = piece.tokens[0]
        scores: list[Score] = [] if before else [(first, self._vocab.detokenize([first], special=True), None, ())]
        for index, token in enumerate(following):
            text = (*before, *piece.tokens[: index + 1])
            scores.append(score(self._continuation(text), token, piece.n_top))
        return replace(row, scores=(*scores, *row.scores))

    def _decode(self, seq_id: int) -> FakeRow:
        drawn = self._sequences[seq_id].drawn
        return self._compute(seq_id, () if drawn is None else (drawn,), draw=True)

    def _compute(self, seq_id: int, tokens: Sequence[int], *, draw: bool) -> FakeRow:
        sequence = self._sequences[seq_id]
        if sequence.broken is not None:
            return self._fail(seq_id, RowError.DECODE, sequence.broken)
        error = self._next_row_failure(seq_id)
        if error is not None:
            return self._fail(seq_id, error, f"scripted {error.value}")
        n_after = self._cells.length(seq_id) + len(tokens)
        if n_after > self._info.n_ctx_seq or not self._has_room(len(tokens)):
            return self._fail(seq_id, RowError.CONTEXT_FULL, "no cell left")
        self._cells.append(seq_id, tokens)
        if not draw:
            return FakeRow(seq_id)
        text = self._cells.tokens(seq_id)
        likeliest = self._continuation(text)
        spec = sequence.spec
        forbidden = forbidden_tokens(spec, text[len(text) - sequence.n_drawn :])
        token = next_token(likeliest, self._masks.get(seq_id), forbidden, len(text))
        if token is None:
            return self._fail(seq_id, RowError.NO_TOKEN, "every token that the mask allows is forbidden")
        sequence.drawn = token
        sequence.n_drawn += 1
        scores = () if spec.n_top is None else (score(likeliest, token, spec.n_top),)
        is_eog = token == EOS or token in spec.stop_tokens
        return FakeRow(seq_id, token, is_eog, bytes([token]) if token < EOS else b"", scores)

    def _has_room(self, n_cells: int) -> bool:
        """Whether so many cells are free, after as many purges as that takes."""
        while self._cells.n_used + n_cells > self._info.n_ctx and self._purge_list:
            seq_id = self._purge_list.popleft()
            if self._cells.length(seq_id) > 0:
                self._cells.trim(seq_id, 0)
                self._report = self._report._replace(purged=(*self._report.purged, seq_id))
        return self._cells.n_used + n_cells <= self._info.n_ctx

    def _fail(self, seq_id: int, error: RowError, message: str) -> FakeRow:
        if error is RowError.ABORTED and not self._can_rewind:
            self._sequences[seq_id].broken = message
        if error in (RowError.DECODE, RowError.NO_TOKEN) or self._sequences[seq_id].broken is not None:
            self._cells.trim(seq_id, 0)
            self._sequences[seq_id].drawn = None
        return FakeRow(seq_id, error=error, message=message)


def _check_range(start: int, end: int) -> None:
    if not 0 <= start < end:
        raise EngineError(f"a state from position {start} to {end} has no token")
