"""What the fake engine makes of masks, and of what a request forbids. Pure; any thread."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llamaserve.engine.fake_text import EOS, N_VOCAB
from llamaserve.engine.port import SequenceSpec, StepPlan
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


def forbidden_tokens(spec: SequenceSpec, drawn: Sequence[int]) -> set[int]:
    """What the sampling parameters forbid to draw next, after the tokens drawn so far."""
    sampling = spec.sampling
    forbidden = {token for token, bias in sampling.logit_bias.items() if bias == -math.inf}
    if sampling.ignore_eos:
        forbidden.add(EOS)
    if len(drawn) < sampling.min_tokens:
        forbidden |= {EOS, *spec.stop_tokens}
    if sampling.allowed_token_ids is not None:
        forbidden |= set(range(N_VOCAB)).difference(sampling.allowed_token_ids)
    for word in sampling.bad_words:
        n_before = len(word) - 1
        if len(drawn) >= n_before and tuple(drawn[len(drawn) - n_before :]) == word[:-1]:
            forbidden.add(word[-1])
    return forbidden


def next_token(wanted: int, mask: bytes | None, forbidden: set[int], n_cells: int) -> int | None:
    """The wanted token if it may be drawn; else "." for EOS without a mask; else EOS, else one that changes with the
    length: so texts come to an end. None where the mask and the rest leave none."""
    allowed = range(N_VOCAB) if mask is None else allowed_tokens(mask)
    left = [token for token in allowed if token not in forbidden] if mask is not None or forbidden else allowed
    if wanted in left:
        return wanted
    if not left:
        return None
    if mask is None and wanted == EOS and ord(".") in left:
        return ord(".")
    return EOS if EOS in left else left[n_cells % len(left)]
