"""When a request is done: the finish order E7, pure."""

from __future__ import annotations

from llamaserve.request import FinishReason


def finish_reason(
    *,
    is_eog: bool,
    is_stopped: bool,
    n_generated: int,
    max_tokens: int | None,
    n_prompt: int,
    n_ctx_seq: int,
    is_complete: bool = False,
    is_line_over: bool = False,
) -> FinishReason | None:
    """Why the request ends with the token just drawn; None if it goes on. The first rule that fires wins.

    An end-of-generation token is not part of ``n_generated`` nor of the text; any other token was added to both
    before this is asked. ``is_stopped`` says that the text reached a stop string, ``is_complete`` that its restriction
    allows only its end, ``is_line_over`` that the limits of its lines do. Prompt and generated tokens together never
    exceed ``n_ctx_seq``.
    """
    if is_eog:
        return FinishReason.EOS
    if is_stopped:
        return FinishReason.STOP_SEQUENCE
    if is_complete:
        return FinishReason.EOS
    if is_line_over or (max_tokens is not None and n_generated >= max_tokens):
        return FinishReason.LENGTH
    if n_prompt + n_generated >= n_ctx_seq:
        return FinishReason.CONTEXT_EXHAUSTED
    return None
