"""A plain decode loop over an engine: one sequence, one row, nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.engine.port import Engine, PromptPiece, RowOutput, SequenceSpec, StepPlan
from llamaserve.request import SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def start(engine: Engine, seq_id: int, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> RowOutput:
    """Open a sequence and compute its whole prompt in one piece."""
    engine.open(SequenceSpec(seq_id, sampling, prompt))
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(seq_id, prompt, is_last=True)]))
    return row


def continue_alone(engine: Engine, seq_id: int, n_tokens: int) -> list[int]:
    """Decode a running sequence alone."""
    tokens = []
    for _ in range(n_tokens):
        (row,) = engine.step(StepPlan(decode=[seq_id]))
        assert row.token is not None, row.message
        tokens.append(row.token)
    return tokens


def generate(
    engine: Engine, prompt: Sequence[int], n_tokens: int, sampling: SamplingParams = GREEDY, seq_id: int = 0
) -> list[int]:
    """The first tokens after a prompt, alone; the sequence is closed afterwards."""
    first = start(engine, seq_id, prompt, sampling).token
    assert first is not None
    tokens = [first, *continue_alone(engine, seq_id, n_tokens - 1)]
    engine.close(seq_id)
    return tokens
