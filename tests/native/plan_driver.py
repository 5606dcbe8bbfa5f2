"""Random steps, drawn from a seed, done to the real engine and to the model of the seam alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest

from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import PromptPiece, RowOutput, SequenceSpec, StepPlan, SuspendedSequence
from llamaserve.errors import EngineError
from llamaserve.request import SamplingParams
from tests.native.faults import inject
from tests.native.step_model import EngineModel, RowModel, SequenceModel, Text

Case = tuple[Text, SamplingParams]
CODES = (0, 0, 1, 1, 2, -1, -2, -3)


class PlanDriver:
    """One run from an empty engine: what it did is in ``log``, what came of it is counted in ``seen``."""

    def __init__(self, engine: NativeEngine, cases: Sequence[Case], seed: int, seen: Counter[str]) -> None:
        self.engine = engine
        self.cases = cases
        self.random = Random(seed)
        self.seen = seen
        self.log: list[str] = []
        self.model = EngineModel(engine.can_rewind)
        self.suspended: list[tuple[SequenceModel, SuspendedSequence]] = []

    def run(self, n_actions: int) -> None:
        """Do and check so many things, then leave the engine empty. Raises AssertionError where the two differ."""
        weights = self.weights()
        for action in self.random.choices(list(weights), list(weights.values()), k=n_actions):
            action()
            self.check_cells()
        inject(self.engine)
        for seq_id in range(self.engine.info.n_slots):
            assert self.engine.close(seq_id) is (seq_id in self.model.sequences)
        for seq_id in self.model.held:
            assert self.engine.trim(seq_id, 0)
        assert self.engine.used_cells() == 0

    def weights(self) -> dict[Callable[[], None], int]:
        """How often each thing is done."""
        return {
            self.open: 4,
            self.close: 2,
            self.suspend: 1,
            self.resume: 2,
            self.step: 6,
            self.decode_all: 8,
            self.prefill_all: 4,
            self.ask_for_what_runs_ahead: 6,
            self.unwind: 1,
            self.inject_faults: 2,
            self.hand_in_a_bad_plan: 1,
        }

    # --- sequences ---

    def ids_where(self, condition: Callable[[SequenceModel], object]) -> list[int]:
        """Open sequences of which something is true, ascending."""
        return sorted(seq_id for seq_id, sequence in self.model.sequences.items() if condition(sequence))

    def free_id(self) -> int | None:
        """A slot that is not open and holds nothing."""
        taken = self.model.sequences.keys() | self.model.held.keys()
        free = [seq_id for seq_id in range(self.engine.info.n_slots) if seq_id not in taken]
        return self.random.choice(free) if free else None

    def open(self) -> None:
        seq_id = self.free_id()
        if seq_id is None:
            return
        case = self.random.randrange(len(self.cases))
        self.note(f"open {seq_id} with case {case}")
        self.take_back()
        text, sampling = self.cases[case]
        self.engine.open(SequenceSpec(seq_id, sampling, text.prompt))
        self.model.sequences[seq_id] = SequenceModel(text)

    def close(self) -> None:
        # What can only be closed or is at its end, most of all: else soon nothing is left to do.
        at_end = self.ids_where(lambda sequence: sequence.has_failed or sequence.n_drawn == len(sequence.text.expected))
        ids = at_end or self.ids_where(bool)
        if not ids:
            return
        seq_id = self.random.choice(ids)
        self.note(f"close {seq_id}")
        self.take_back()
        assert self.engine.close(seq_id)
        del self.model.sequences[seq_id]
        self.model.count_cells()

    def suspend(self) -> None:
        ids = self.ids_where(lambda sequence: sequence.n_drawn and not sequence.has_failed)
        if not ids:
            return
        seq_id, max_bytes = self.random.choice(ids), self.random.choice((0, 2**30))
        self.note(f"suspend {seq_id}, {max_bytes} bytes")
        self.take_back()
        sequence = self.model.sequences[seq_id]
        if sequence.has_failed:  # by taking back
            with pytest.raises(EngineError, match="can only be closed"):
                self.engine.suspend(seq_id, max_bytes)
            return
        suspended = self.engine.suspend(seq_id, max_bytes)
        has_cells = max_bytes > 0 and not sequence.is_recomputing
        assert (suspended.n_bytes > 0) is has_cells
        n_cells = sequence.n_past if has_cells else 0
        sequence.n_recompute = 0 if has_cells else max(sequence.n_past, sequence.n_recompute)
        sequence.n_past = 0  # those it comes back with are new ones, and no checkpoint is of them
        sequence.n_past = n_cells
        del self.model.sequences[seq_id]
        self.model.count_cells()
        self.suspended.append((sequence, suspended))

    def resume(self) -> None:
        seq_id = self.free_id()
        if seq_id is None or not self.suspended:
            return
        sequence, suspended = self.suspended.pop(self.random.randrange(len(self.suspended)))
        self.note(f"resume as {seq_id}, {sequence.n_past} cells")
        self.take_back()
        assert self.engine.resume(seq_id, suspended)
        self.model.sequences[seq_id] = sequence
        self.model.count_cells()
        self.seen["resumed with cells" if sequence.n_past else "resumed without cells"] += 1

    # --- steps ---

    def step(self) -> None:
        """Any rows, in any order, stopped now and then."""
        decodable = self.ids_where(lambda sequence: sequence.may_decode)
        decode = self.random.sample(decodable, self.random.randint(0, len(decodable)))
        takers = [seq_id for seq_id in self.ids_where(lambda sequence: sequence.n_piece_max) if seq_id not in decode]
        takers = self.random.sample(takers, self.random.randint(0, len(takers)))
        pieces = self.pieces_for(takers, self.engine.info.n_batch - len(decode), is_whole=False)
        plan = StepPlan(decode, pieces, self.purge_list())
        self.submit(plan, ahead=self.random.random() < 0.5, is_stopped=self.random.random() < 0.15)

    def decode_all(self) -> None:
        """The step of steady streams."""
        decodable = self.ids_where(lambda sequence: sequence.may_decode)
        self.submit(StepPlan(decodable, purge=self.purge_list()), ahead=self.random.random() < 0.8)

    def prefill_all(self) -> None:
        """All that prompts still need, as far as a step takes it."""
        takers = self.ids_where(lambda sequence: sequence.n_piece_max)
        pieces = self.pieces_for(takers, self.engine.info.n_batch, is_whole=True)
        self.submit(StepPlan(pieces=pieces), ahead=self.random.random() < 0.5)

    def ask_for_what_runs_ahead(self) -> None:
        if self.model.ahead is not None:
            self.submit(StepPlan(self.model.ahead.seq_ids), ahead=self.random.random() < 0.8)

    def purge_list(self) -> list[int]:
        """Ids that may be forgotten, and now and then one that holds nothing."""
        ids = [*self.model.held, *([self.engine.n_ids - 1] if self.engine.can_share else [])]
        return self.random.sample(ids, self.random.randint(0, len(ids)))

    def pieces_for(self, seq_ids: Sequence[int], room: int, *, is_whole: bool) -> list[PromptPiece]:
        pieces = []
        for seq_id in seq_ids:
            n_most = min(self.model.sequences[seq_id].n_piece_max, room)
            if n_most:
                n_tokens = n_most if is_whole else self.random.choice((1, (n_most + 1) // 2, n_most))
                pieces.append(self.model.sequences[seq_id].piece(seq_id, n_tokens))
                room -= n_tokens
        return pieces

    def submit(self, plan: StepPlan, *, ahead: bool, is_stopped: bool = False) -> None:
        ids = [*plan.decode, *(piece.seq_id for piece in plan.pieces)]
        running = self.model.ahead
        is_next = running is not None and not plan.pieces and list(plan.decode) == running.seq_ids
        if not ids or (is_next and not all(self.model.sequences[seq_id].may_decode for seq_id in ids)):
            return
        # Whether the flag meets the early decode running or done is a matter of time, and so who meets what is left.
        is_stopped = is_stopped and not (is_next and (self.model.codes or self.model.n_failing_rewinds))
        pieces = [(piece.seq_id, len(piece.tokens)) for piece in plan.pieces]
        purge = f"purge {list(plan.purge)}"
        self.note(f"step {list(plan.decode)} {pieces}, {purge}, ahead {ahead}, stopped {is_stopped}, next {is_next}")
        flag = None
        if is_stopped:
            flag = self.engine.new_flag()
            flag.set()
        if not is_next:
            self.take_back()
        rows = self.engine.collect(self.engine.submit(plan, flag, ahead=ahead))
        expected = (
            self.model.confirm(plan, is_stopped=is_stopped)
            if is_next
            else self.model.compute(plan, is_stopped=is_stopped)
        )
        if running is not None and is_next and not is_stopped:
            assert self.engine.report.ran_ahead is running.is_decoded
            self.seen["ran ahead" if running.is_decoded else "failed ahead"] += 1
        self.check_rows(ids, rows, expected)
        if ahead:
            self.model.run_ahead(plan, expected)

    def check_rows(self, ids: Sequence[int], rows: Sequence[RowOutput], expected: Sequence[RowModel]) -> None:
        assert [row.seq_id for row in rows] == ids
        got, wanted = ([(row.error, row.token) for row in group] for group in (rows, expected))
        assert got == wanted, f"{got}, not {wanted}"
        assert self.engine.report.n_splits == self.model.n_splits
        assert list(self.engine.report.purged) == self.model.purged
        self.seen["purged"] += len(self.model.purged)
        for row, ours in zip(rows, expected, strict=True):
            self.seen["no token" if row.error is None and row.token is None else str(row.error)] += 1
            if ours.is_unsure and self.engine.length(row.seq_id) == 0:
                ours.sequence.n_past, ours.sequence.is_broken = 0, True
        self.model.count_cells()

    # --- the rest ---

    def unwind(self) -> None:
        self.note("unwind")
        self.take_back()
        self.check_unwind()

    def inject_faults(self) -> None:
        codes = self.random.choice(
            (
                self.random.choices(CODES, k=self.random.randint(0, 6)),
                [self.random.choice((1, -1))] * self.random.randint(1, 6),  # down to a single row
                [0, self.random.choice(CODES)],  # the second is often that of a step that runs ahead
            )
        )
        n_failing_rewinds = self.random.choice((0, 0, 0, 1, 2))
        self.note(f"inject {codes}, {n_failing_rewinds} failing rewinds")
        self.take_back()
        inject(self.engine, codes, n_failing_rewinds=n_failing_rewinds)
        self.model.inject(codes, n_failing_rewinds)

    def hand_in_a_bad_plan(self) -> None:
        """E10: refused whole, whatever else is in it."""
        self.take_back()
        good = self.ids_where(lambda sequence: sequence.may_decode)
        outside = self.engine.info.n_slots
        plans = [StepPlan(), StepPlan([*good, outside]), StepPlan(good, [PromptPiece(-1, (1,), is_last=True)])]
        plans += [StepPlan([*good, seq_id]) for seq_id in good]
        for seq_id, sequence in self.model.sequences.items():
            if sequence.is_cleared or sequence.is_recomputing or not (sequence.n_drawn or sequence.is_broken):
                plans.append(StepPlan([*good, seq_id]))
            if sequence.n_drawn and not sequence.has_failed:
                others = [other for other in good if other != seq_id]
                plans.append(StepPlan(others, [PromptPiece(seq_id, (1, 2), is_last=True)]))
        plan = self.random.choice(plans)
        self.note(f"refused: {plan}")
        with pytest.raises(EngineError):
            self.engine.submit(plan)
        self.seen["refused"] += 1

    def take_back(self) -> None:
        """The model's half of what every call does but the plan that runs ahead."""
        self.seen["taken back"] += self.model.ahead is not None
        self.model.take_back()

    def check_unwind(self) -> None:
        """Both tell of what was broken since they were asked last."""
        assert list(self.engine.unwind()) == self.model.unwind()

    def check_cells(self) -> None:
        """L1: cells are those of the tokens the caller knows of."""
        assert self.engine.used_cells() == self.model.used_cells
        assert list(self.engine.ahead_rows) == (self.model.ahead.seq_ids if self.model.ahead else [])
        if self.model.ahead is None:
            for seq_id, holder in [*self.model.sequences.items(), *self.model.held.items()]:
                assert self.engine.length(seq_id) == holder.n_past

    def note(self, line: str) -> None:
        self.log.append(line)
