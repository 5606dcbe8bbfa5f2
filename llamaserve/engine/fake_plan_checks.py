"""Which plans the fake engine refuses: those that the real one refuses. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from llamaserve.engine.fake_memory import FakeCells
from llamaserve.engine.fake_sequence import FakeSequence
from llamaserve.engine.fake_text import check_token
from llamaserve.engine.port import ModelInfo, PromptPiece, StepPlan
from llamaserve.errors import EngineError


def check_plan(plan: StepPlan, info: ModelInfo, sequences: Mapping[int, FakeSequence], cells: FakeCells) -> None:
    """Raise EngineError for rows and pieces that the open sequences cannot take now, BadToken for tokens outside the
    vocabulary."""
    ids = [*plan.decode, *(piece.seq_id for piece in plan.pieces)]
    if not ids:
        raise EngineError("the plan is empty")
    if len(set(ids)) != len(ids):
        raise EngineError(f"the plan names a sequence twice: {ids}")
    for seq_id in ids:
        if seq_id not in sequences:
            raise EngineError(f"sequence {seq_id} is not open")
    for seq_id in plan.purge:
        cells.check_id(seq_id)
        if seq_id in sequences:
            raise EngineError(f"sequence {seq_id} is open: it cannot be purged")
    n_tokens = len(plan.decode) + sum(len(piece.tokens) for piece in plan.pieces)
    if n_tokens > info.n_batch:
        raise EngineError(f"the plan holds {n_tokens} tokens, at most {info.n_batch} are allowed")
    for seq_id in plan.decode:
        sequence = sequences[seq_id]
        if sequence.broken is None and (sequence.drawn is None or sequence.is_recomputing(cells.length(seq_id))):
            raise EngineError(f"sequence {seq_id} has drawn no token yet, or has not all of its cells back")
    for piece in plan.pieces:
        _check_piece(piece, sequences[piece.seq_id], cells.length(piece.seq_id))


def _check_piece(piece: PromptPiece, sequence: FakeSequence, n_held: int) -> None:
    if sequence.is_recomputing(n_held):
        if piece.is_last or n_held + len(piece.tokens) > sequence.n_recompute:
            raise EngineError(f"sequence {piece.seq_id} draws nothing before it has its cells back")
    elif sequence.drawn is not None:
        raise EngineError(f"sequence {piece.seq_id} has its prompt already")
    if not piece.tokens:
        raise EngineError(f"the piece of sequence {piece.seq_id} is empty")
    for token in piece.tokens:
        check_token(token)
    if piece.next_token is not None:
        if piece.is_last:
            raise EngineError(f"the piece of sequence {piece.seq_id} is the last and has a next token")
        check_token(piece.next_token)
