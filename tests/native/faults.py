"""Failures on demand of the real engine, and sequences that must not notice them."""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import RowError, RowOutput, StepPlan
from tests.native.greedy import generate, start

PROMPTS = ([1, 50, 60, 70], [1, 80, 81], [1, 90, 91, 92, 93, 94], [1, 99, 98, 97, 96])
N_TOKENS = 10
SEQ_IDS = tuple(range(len(PROMPTS)))


def inject(
    engine: NativeEngine, codes: Sequence[int] = (), *, n_failing_rewinds: int = 0, n_failing_returns: int = 0
) -> None:
    """The next calls of llama_decode return these codes and compute nothing (0: as usual); so many rewinds fail, and so
    many sequences whose cells are gathered are lost.

    Takes back what runs ahead, and replaces what was injected before.
    """
    engine._engine.inject_faults(
        decode_codes=codes, n_failing_rewinds=n_failing_rewinds, n_failing_returns=n_failing_returns
    )


def codes_against(bad_row: int, n_rows: int, code: int) -> list[int]:
    """What the calls over decode rows return when every batch with one of them in it is refused with a code."""
    if not 0 <= bad_row < n_rows:
        return [0]
    if n_rows == 1:
        return [code]
    middle = n_rows // 2
    return [
        code,
        *codes_against(bad_row, middle, code),
        *codes_against(bad_row - middle, n_rows - middle, code),
    ]


def errors_of(rows: Sequence[RowOutput]) -> list[RowError | None]:
    """The errors of a step's rows, in plan order."""
    return [row.error for row in rows]


class Streams:
    """Sequences that run side by side, each held against the tokens it has alone."""

    def __init__(self, engine: NativeEngine) -> None:
        self.engine = engine
        self.expected = [generate(engine, prompt, N_TOKENS) for prompt in PROMPTS]
        self.tokens: dict[int, list[int]] = {}

    def start(self, seq_ids: Sequence[int] = SEQ_IDS) -> None:
        """Open sequences and compute their prompts."""
        for seq_id in seq_ids:
            self.tokens[seq_id] = []
            self.take([start(self.engine, seq_id, PROMPTS[seq_id])])

    def take(self, rows: Sequence[RowOutput]) -> None:
        """Keep the tokens of the rows that worked."""
        for row in rows:
            if row.error is None:
                assert row.token is not None
                self.tokens[row.seq_id].append(row.token)

    def decode(
        self, seq_ids: Sequence[int] = SEQ_IDS, *, purge: Sequence[int] = (), ahead: bool = False
    ) -> list[RowOutput]:
        """One step of these; its rows."""
        plan = StepPlan(decode=seq_ids, purge=purge)
        rows = list(self.engine.collect(self.engine.submit(plan, ahead=ahead)))
        assert [row.seq_id for row in rows] == list(seq_ids)
        self.take(rows)
        return rows

    def check(self, seq_ids: Sequence[int] = SEQ_IDS) -> None:
        """Whatever happened: the cells are those of the tokens, and the texts go on as they are alone.

        Ids beside the slots, if they hold anything, hold cells of their own.
        """
        n_parked = sum(self.engine.length(parked) for parked in range(self.engine.info.n_slots, self.engine.n_ids))
        assert self.engine.used_cells() == sum(self.n_cells(seq_id) for seq_id in seq_ids) + n_parked
        for seq_id in seq_ids:
            assert self.engine.length(seq_id) == self.n_cells(seq_id)
        while any(len(self.tokens[seq_id]) < N_TOKENS for seq_id in seq_ids):
            behind = [seq_id for seq_id in seq_ids if len(self.tokens[seq_id]) < N_TOKENS]
            assert errors_of(self.decode(behind)) == [None] * len(behind)
        for seq_id in seq_ids:
            assert self.tokens[seq_id] == self.expected[seq_id], f"sequence {seq_id}"

    def n_cells(self, seq_id: int) -> int:
        """Cells of a sequence: the token drawn last has none."""
        return len(PROMPTS[seq_id]) + len(self.tokens[seq_id]) - 1
