"""What the fake engine makes of masks. Pure; any thread."""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.engine.fake_text import EOS, N_VOCAB
from llamaserve.engine.port import StepPlan
from llamaserve.errors import EngineError

N_MASK_BYTES = (N_VOCAB + 31) // 32 * 4


def allowed_tokens(mask: bytes) -> Sequence[int]:
    """The tokens a mask allows, ascending."""
    return [token for token in range(N_VOCAB) if mask[token // 8] >> token % 8 & 1]


def check_masks(plan: StepPlan) -> None:
    """Raise EngineError for a mask of the wrong size, without a bit or of no row that draws."""
    drawing = {*plan.decode, *(piece.seq_id for piece in plan.pieces if piece.is_last)}
    for seq_id, mask in plan.masks.items():
        if seq_id not in drawing:
            raise EngineError(f"sequence {seq_id} has a mask and draws no token")
        if len(mask) != N_MASK_BYTES:
            raise EngineError(f"the mask of sequence {seq_id} has {len(mask)} bytes: it must have {N_MASK_BYTES}")
        if not allowed_tokens(mask):
            raise EngineError(f"the mask of sequence {seq_id} allows no token")


def masked(token: int, mask: bytes | None, n_cells: int) -> int:
    """The token if the mask allows it, else EOS, else one that changes with the length: so texts come to an end."""
    if mask is None:
        return token
    allowed = allowed_tokens(mask)
    if token in allowed:
        return token
    return EOS if EOS in allowed else allowed[n_cells % len(allowed)]
