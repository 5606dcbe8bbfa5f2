"""Random steps as ``plan_driver`` does them, and between them whatever can be done to what ids hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import MemoryKind, SavedState, SequenceSpec, StepPlan
from llamaserve.errors import EngineError
from tests.memory_laws import ROOM
from tests.native.faults import inject
from tests.native.plan_driver import Case, PlanDriver
from tests.native.step_model import Held, SequenceModel, Text

N_PARKED = 4
"""Ids beside the slots that are used; the context has room for all of them."""
N_SAVED = 6


@dataclass(frozen=True)
class Copy:
    """A saved state and what it is of."""

    text: Text
    state: SavedState

    @property
    def before(self) -> tuple[int, ...]:
        """The tokens an id must hold for it."""
        return (*self.text.prompt, *self.text.expected)[: self.state.start]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    differ = (i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differ, min(len(one), len(other)))


class MemoryDriver(PlanDriver):
    """A ``PlanDriver`` that keeps, parks, adopts, trims, saves, restores and goes back."""

    def __init__(self, engine: NativeEngine, cases: Sequence[Case], seed: int, seen: Counter[str]) -> None:
        super().__init__(engine, cases, seed, seen)
        self.copies: list[Copy] = []
        n_parked = N_PARKED if engine.can_share else 0
        self.ids = [*range(engine.info.n_slots), *range(engine.n_ids - n_parked, engine.n_ids)]
        self.may_lose_windows = engine.info.memory is MemoryKind.SLIDING_WINDOW

    def weights(self) -> dict[Callable[[], None], int]:
        return super().weights() | {
            self.resume: 4,
            self.inject_faults: 4,
            self.keep: 4,
            self.open_what_is_kept: 5,
            self.adopt: 6,
            self.trim: 2,
            self.save: 3,
            self.restore: 3,
            self.make_checkpoint: 3,
            self.go_back: 3,
            self.decode_without_room: 2,
        }

    def holder(self, seq_id: int) -> Held | None:
        """What holds cells under an id, open or not."""
        return self.model.sequences.get(seq_id) or self.model.held.get(seq_id)

    def sound_ids(self) -> list[int]:
        """Ids that hold tokens which are known."""
        holders = {seq_id: self.holder(seq_id) for seq_id in self.ids}
        return [
            seq_id
            for seq_id, holder in holders.items()
            if holder is not None and holder.n_past and not (isinstance(holder, SequenceModel) and holder.has_failed)
        ]

    def put(self, seq_id: int, held: Held) -> None:
        """Say what an id that is not open holds now."""
        self.model.held.pop(seq_id, None)
        if held.n_past:
            self.model.held[seq_id] = held
        self.model.count_cells()

    def decode_without_room(self) -> None:
        """Ids give their cells up for a step, as many as it takes."""
        decodable = self.ids_where(lambda sequence: sequence.may_decode)
        if not decodable or not self.model.held:
            return
        codes = [1] * self.random.randint(1, 3)
        self.note(f"inject {codes}")
        self.take_back()
        inject(self.engine, codes)
        self.model.inject(codes, 0)
        self.submit(StepPlan(decodable, purge=sorted(self.model.held)), ahead=self.random.random() < 0.5)

    def keep(self) -> None:
        ids = sorted(self.model.sequences)
        if not ids:
            return
        seq_id = self.random.choice(ids)
        self.note(f"close {seq_id} and keep")
        self.take_back()
        assert self.engine.close(seq_id, keep=True)
        sequence = self.model.sequences.pop(seq_id)
        n_kept = 0 if sequence.has_failed else sequence.n_past
        self.put(seq_id, Held(sequence.text, sequence.cells[:n_kept], sequence.checkpoints))
        self.seen["kept"] += n_kept > 0

    def open_what_is_kept(self) -> None:
        """A text begins with what a slot holds, as far as they are the same."""
        ids = [seq_id for seq_id in sorted(self.model.held) if seq_id < self.engine.info.n_slots]
        if not ids:
            return
        seq_id, (text, sampling) = self.random.choice(ids), self.random.choice(self.cases)
        held = self.model.held[seq_id]
        n_same = min(common_prefix(held.tokens, text.prompt), len(text.prompt) - 1)
        self.note(f"open {seq_id} with {n_same} of {held.n_past} tokens of a prompt of {len(text.prompt)}")
        self.take_back()
        self.cut(seq_id, n_same)
        if seq_id in self.model.held and self.model.held[seq_id].n_past > n_same:
            self.cut(seq_id, 0)
        kept = self.model.held.pop(seq_id, Held(text))
        self.engine.open(SequenceSpec(seq_id, sampling, text.prompt))
        self.model.sequences[seq_id] = SequenceModel(text, kept.cells, kept.checkpoints)
        self.model.count_cells()
        self.seen["opened with a prefix"] += kept.n_past > 0

    def cut(self, seq_id: int, n_tokens: int) -> None:
        """Trim, and see whether the answer is that of this kind of memory."""
        held = self.model.held[seq_id]
        is_cut = self.engine.trim(seq_id, n_tokens)
        if n_tokens in (0, held.n_past) or (self.engine.info.memory is MemoryKind.KV):
            assert is_cut
        elif not self.may_lose_windows:
            assert not is_cut
        if is_cut:
            held.n_past = n_tokens
            self.put(seq_id, held)

    def trim(self) -> None:
        if self.model.held:
            seq_id = self.random.choice(sorted(self.model.held))
            n_held = self.model.held[seq_id].n_past
            n_tokens = self.random.choice((0, n_held, self.random.randint(0, n_held)))
            self.note(f"trim {seq_id} to {n_tokens}")
            self.take_back()
            self.cut(seq_id, n_tokens)
            self.seen["trimmed"] += 1

    def adopt(self) -> None:
        self.take_back()
        pairs = [
            (seq_id, source)
            for source in self.sound_ids()
            for seq_id in self.ids
            if seq_id != source and self.may_adopt(seq_id, source)
        ]
        if not pairs or not self.engine.can_share:
            self.check_unwind()
            return
        seq_id, source = self.random.choice(pairs)
        giver, taker = self.holder(source), self.holder(seq_id)
        assert giver is not None
        n_held = 0 if taker is None else taker.n_past
        n_most = giver.n_past if taker is None else self.n_adoptable(taker, giver)
        n_tokens = self.random.choice((n_most, self.random.randint(n_held + 1, n_most)))
        self.note(f"{seq_id}, which holds {n_held}, adopts {n_tokens} of {giver.n_past} of {source}")
        try:
            self.engine.adopt(seq_id, source, n_tokens)
        except EngineError as error:
            if not self.may_lose_windows or "window" not in str(error):
                raise
            self.seen["window gone"] += 1
            return
        if taker is None:
            self.put(seq_id, Held(giver.text, giver.cells[:n_tokens]))
        else:
            taker.cells += giver.cells[n_held:n_tokens]
            self.model.count_cells()
        self.seen["adopted in a prompt" if seq_id in self.model.sequences else "adopted"] += 1

    def may_adopt(self, seq_id: int, source: int) -> bool:
        giver, taker = self.holder(source), self.holder(seq_id)
        assert giver is not None
        if isinstance(taker, SequenceModel) and (taker.has_failed or (taker.n_drawn > 0 and not taker.is_recomputing)):
            return False
        return taker is None or self.n_adoptable(taker, giver) > taker.n_past

    def n_adoptable(self, taker: Held, giver: Held) -> int:
        """Tokens it may hold then: those of its own text, and of an open one not the last, which must be computed."""
        text = (*taker.text.prompt, *taker.text.expected)
        if isinstance(taker, SequenceModel):
            text = text[: taker.n_recompute] if taker.is_recomputing else taker.text.prompt[:-1]
        return common_prefix(text, giver.tokens) if giver.tokens[: taker.n_past] == taker.tokens else 0

    def save(self) -> None:
        ids = self.sound_ids()
        if not ids or len(self.copies) == N_SAVED:
            return
        seq_id = self.random.choice(ids)
        self.take_back()
        holder = self.holder(seq_id)
        if holder is None or not holder.n_past:  # by taking back
            self.check_unwind()
            return
        start = self.random.randrange(holder.n_past) if self.engine.can_share and self.random.random() < 0.6 else 0
        self.note(f"save {seq_id} from {start} to {holder.n_past}")
        state = self.engine.save(seq_id, start, ROOM)
        if state is None:
            assert self.may_lose_windows
            assert start > 0
            return
        assert (state.start, state.end) == (start, holder.n_past)
        self.copies.append(Copy(holder.text, state))
        self.seen["saved"] += 1

    def restore(self) -> None:
        if not self.copies:
            return
        copy = self.copies.pop(self.random.randrange(len(self.copies)))
        fitting = [
            seq_id
            for seq_id in self.ids
            if seq_id not in self.model.sequences
            and (self.model.held[seq_id].tokens if seq_id in self.model.held else ()) == copy.before
        ]
        if not fitting:
            return
        seq_id = self.random.choice(fitting)
        self.note(f"restore {copy.state.start} to {copy.state.end} as {seq_id}")
        self.take_back()
        assert self.engine.restore(seq_id, copy.state)
        held = self.model.held.get(seq_id, Held(copy.text))
        restored = Held(copy.text, held.cells, held.checkpoints)
        restored.n_past = copy.state.end
        self.put(seq_id, restored)
        self.seen["restored"] += 1

    def make_checkpoint(self) -> None:
        ids = self.sound_ids()
        if not ids:
            return
        seq_id = self.random.choice(ids)
        self.take_back()
        holder = self.holder(seq_id)
        if holder is None or not holder.n_past:
            with pytest.raises(EngineError):
                self.engine.checkpoint(seq_id, ROOM)
            return
        self.note(f"checkpoint of {seq_id} at {holder.n_past}")
        checkpoint = self.engine.checkpoint(seq_id, ROOM)
        assert (checkpoint is None) is (self.engine.info.memory is MemoryKind.KV or self.engine.can_share)
        if checkpoint is not None:
            assert checkpoint.end == holder.n_past
            holder.checkpoints.append(checkpoint)

    def go_back(self) -> None:
        ids = [seq_id for seq_id, held in sorted(self.model.held.items()) if held.checkpoints]
        if not ids:
            return
        seq_id = self.random.choice(ids)
        held = self.model.held[seq_id]
        checkpoint = self.random.choice(held.checkpoints)
        self.note(f"{seq_id} goes back from {held.n_past} to {checkpoint.end}")
        self.take_back()
        assert self.engine.go_back(seq_id, checkpoint)
        held.n_past = checkpoint.end
        self.put(seq_id, held)
        self.seen["went back"] += 1
