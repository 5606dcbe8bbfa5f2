"""What the engine seam promises, in Python: which rows of a step fail, how many cells a sequence has, what it draws.

A twin of the engine without a model: the tokens of a text are known beforehand. It meets the same injected return codes
as the real engine, in the same order.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from llamaserve.engine.port import PromptPiece, RowError, SavedState, StepPlan

_new_cells = itertools.count()


@dataclass(frozen=True)
class Text:
    """A prompt, and the tokens it gets with a certain sampling when nothing runs beside it."""

    prompt: tuple[int, ...]
    expected: tuple[int, ...]


@dataclass
class Held:
    """What an id holds: the first tokens of a text, each in a cell that others may hold too."""

    text: Text
    cells: list[int] = field(default_factory=list)
    checkpoints: list[SavedState] = field(default_factory=list)
    """Made of it at lengths it still has."""

    @property
    def n_past(self) -> int:
        """Tokens it holds."""
        return len(self.cells)

    @n_past.setter
    def n_past(self, n_tokens: int) -> None:
        del self.cells[n_tokens:]
        self.cells += [next(_new_cells) for _ in range(n_tokens - len(self.cells))]
        self.checkpoints = [checkpoint for checkpoint in self.checkpoints if checkpoint.end <= n_tokens]

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.text.prompt, *self.text.expected)[: self.n_past]


@dataclass
class SequenceModel(Held):
    """An open sequence."""

    n_drawn: int = 0
    n_recompute: int = 0
    """Tokens it had when it was suspended without its cells."""
    is_broken: bool = False
    """Its memory could not go back: its rows fail."""
    is_cleared: bool = False
    """Computing it failed: it takes no decode row."""

    @property
    def has_failed(self) -> bool:
        return self.is_broken or self.is_cleared

    @property
    def is_recomputing(self) -> bool:
        return self.n_past < self.n_recompute

    @property
    def may_decode(self) -> bool:
        """Whether a decode row of it is taken, and its next token is known."""
        if self.is_broken:
            return True
        return not self.is_cleared and 0 < self.n_drawn < len(self.text.expected) and not self.is_recomputing

    @property
    def n_piece_max(self) -> int:
        """Tokens it still takes as prompt pieces."""
        if self.has_failed:
            return 0
        if self.is_recomputing:
            return self.n_recompute - self.n_past
        return 0 if self.n_drawn else len(self.text.prompt) - self.n_past

    def piece(self, seq_id: int, n_tokens: int) -> PromptPiece:
        """Its next tokens."""
        history = (*self.text.prompt, *self.text.expected[: self.n_drawn])
        end = self.n_past + n_tokens
        is_last = not self.is_recomputing and end == len(self.text.prompt)
        return PromptPiece(seq_id, history[self.n_past : end], is_last)


@dataclass
class RowModel:
    """A row of a step and how it ends."""

    sequence: SequenceModel
    start: int
    """Cells its sequence had before the step."""
    n_tokens: int
    draws: bool
    error: RowError | None = None
    token: int | None = None
    is_unsure: bool = False
    """Stopped while it may have been computed, in memory that cannot go back: as before, or broken."""


@dataclass
class AheadModel:
    """A decode nobody has asked for yet."""

    seq_ids: list[int]
    is_decoded: bool = False
    """Whether its call went well."""


@dataclass
class EngineModel:
    """Open sequences, what runs ahead, and the failures to come."""

    can_rewind: bool
    sequences: dict[int, SequenceModel] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    """What ids hold that are not open."""
    ahead: AheadModel | None = None
    codes: deque[int] = field(default_factory=deque)
    n_failing_rewinds: int = 0
    used_cells: int = 0
    n_splits: int = 0
    """Of the step computed last."""
    purged: list[int] = field(default_factory=list)
    """By the step computed last."""
    _purge_list: deque[int] = field(default_factory=deque)
    _untold: list[tuple[int, SequenceModel]] = field(default_factory=list)

    def compute(self, plan: StepPlan, *, is_stopped: bool = False) -> list[RowModel]:
        """The rows of a step that was not computed before."""
        self.n_splits, self.purged = 0, []
        self._purge_list = deque(plan.purge)
        rows = [self._row(seq_id, None) for seq_id in plan.decode]
        rows += [self._row(piece.seq_id, piece) for piece in plan.pieces]
        entries = [(row, i) for row in rows if row.error is None for i in range(row.n_tokens)]
        self._decode_range(rows, entries, is_stopped=is_stopped)
        self.count_cells()
        return rows

    def confirm(self, plan: StepPlan, *, is_stopped: bool = False) -> list[RowModel]:
        """The rows of the step that ran ahead."""
        ahead, self.ahead = self.ahead, None
        assert ahead is not None
        assert list(plan.decode) == ahead.seq_ids
        if is_stopped or not ahead.is_decoded:
            return self.compute(plan, is_stopped=is_stopped)
        rows = [self._row(seq_id, None) for seq_id in ahead.seq_ids]
        for row in rows:
            self._commit(row, 0)
        self.n_splits, self.purged = 0, []
        self.count_cells()
        return rows

    def run_ahead(self, plan: StepPlan, rows: Sequence[RowModel]) -> None:
        """What the engine begins when a step submitted with ``ahead`` is done."""
        if not self.can_rewind or any(row.token is None for row in rows):
            return
        seq_ids = sorted([*plan.decode, *(piece.seq_id for piece in plan.pieces)])
        self.ahead = AheadModel(seq_ids)
        code = self.codes.popleft() if self.codes else 0
        self.ahead.is_decoded = code == 0
        if code not in (0, 1, -1):
            self._rewind_ahead()

    def take_back(self) -> None:
        """What any call but the plan that runs ahead does first."""
        ahead, self.ahead = self.ahead, None
        if ahead is None:
            return
        if ahead.is_decoded:
            self._rewind_ahead(ahead)
        self.count_cells()
        rows = [(seq_id, self.sequences[seq_id]) for seq_id in ahead.seq_ids]
        self._untold += [(seq_id, sequence) for seq_id, sequence in rows if sequence.is_broken]

    def unwind(self) -> list[int]:
        """The ids of open sequences that taking back broke, which nobody was told of yet."""
        self.take_back()
        untold, self._untold = self._untold, []
        return [seq_id for seq_id, sequence in untold if self.sequences.get(seq_id) is sequence]

    def inject(self, codes: Sequence[int], n_failing_rewinds: int) -> None:
        """Failures to come, instead of those injected before."""
        self.codes = deque(codes)
        self.n_failing_rewinds = n_failing_rewinds

    def count_cells(self) -> None:
        """Each once, however many ids hold it."""
        everybody = [*self.sequences.values(), *self.held.values()]
        self.used_cells = len({cell for holder in everybody for cell in holder.cells})

    def _purge_one(self) -> bool:
        while self._purge_list:
            seq_id = self._purge_list.popleft()
            if self.held.pop(seq_id, None) is not None:
                self.purged.append(seq_id)
                return True
        return False

    def _rewind_ahead(self, ahead: AheadModel | None = None) -> None:
        for seq_id in (ahead or self.ahead).seq_ids:  # type: ignore[union-attr]
            if self._next_rewind_fails():
                _break(self.sequences[seq_id])

    def _row(self, seq_id: int, piece: PromptPiece | None) -> RowModel:
        sequence = self.sequences[seq_id]
        row = RowModel(sequence, sequence.n_past, n_tokens=1, draws=True)
        if piece is not None:
            row.n_tokens, row.draws = len(piece.tokens), piece.is_last
        if sequence.is_broken:
            row.error = RowError.DECODE
        return row

    def _decode_range(self, rows: list[RowModel], entries: list[tuple[RowModel, int]], *, is_stopped: bool) -> None:
        batch = [(row, i) for row, i in entries if row.error is None]
        if not batch:
            return
        injected = self.codes.popleft() if self.codes else 0
        while injected == 1 and self._purge_one():
            injected = self.codes.popleft() if self.codes else 0
        code = 2 if is_stopped and injected == 0 else injected
        if code == 0:
            for row, i in batch:
                self._commit(row, i)
        elif code == 2:
            for row in rows:
                if row.error is None and row.token is None:
                    self._fail(row, RowError.ABORTED, is_computed=injected == 0)
        elif code in (1, -1) and len(batch) == 1:
            self._fail(batch[0][0], RowError.CONTEXT_FULL if code == 1 else RowError.DECODE)
        elif code in (1, -1):
            self.n_splits += 1
            middle = len(entries) // 2
            self._decode_range(rows, entries[:middle], is_stopped=is_stopped)
            self._decode_range(rows, entries[middle:], is_stopped=is_stopped)
        else:
            for row, _ in batch:
                if row.error is None:
                    self._fail(row, RowError.DECODE)

    def _commit(self, row: RowModel, index: int) -> None:
        sequence = row.sequence
        sequence.n_past = row.start + index + 1
        if row.draws and index + 1 == row.n_tokens:
            row.token = sequence.text.expected[sequence.n_drawn]
            sequence.n_drawn += 1

    def _fail(self, row: RowModel, error: RowError, *, is_computed: bool = False) -> None:
        sequence = row.sequence
        row.error = error
        if error is RowError.DECODE:
            sequence.n_past = 0
            sequence.is_cleared = True
            return
        is_as_before = sequence.n_past == row.start and not is_computed
        if self._next_rewind_fails() or not (self.can_rewind or row.start == 0 or is_as_before or is_computed):
            _break(sequence)
            if error is RowError.CONTEXT_FULL:
                row.error = RowError.DECODE
            return
        row.is_unsure = is_computed and not self.can_rewind and row.start > 0
        sequence.n_past = row.start

    def _next_rewind_fails(self) -> bool:
        fails = self.n_failing_rewinds > 0
        self.n_failing_rewinds -= fails
        return fails


def _break(sequence: SequenceModel) -> None:
    sequence.n_past = 0
    sequence.is_broken = True
