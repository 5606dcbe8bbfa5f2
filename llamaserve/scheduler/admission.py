"""Which requests may come in: pure checks on a prompt. Any thread."""

from __future__ import annotations

from llamaserve.engine.port import ModelInfo
from llamaserve.errors import BadToken, EmptyPrompt, PromptTooLong
from llamaserve.request import GenerationRequest


def check_request(request: GenerationRequest, info: ModelInfo) -> None:
    """Refuse a request the model cannot serve, before it takes a place in the queue.

    Raises EmptyPrompt (S67), PromptTooLong when no generated token would fit after the prompt, and BadToken when
    the prompt or the logit bias names a token outside the vocabulary (K26).
    """
    prompt = request.prompt
    if not prompt:
        raise EmptyPrompt
    if len(prompt) >= info.n_ctx_seq:
        raise PromptTooLong(len(prompt), info.n_ctx_seq)
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < info.n_vocab:
            raise BadToken(token, info.n_vocab)
    for token in request.sampling.logit_bias:
        if not 0 <= token < info.n_vocab:
            raise BadToken(token, info.n_vocab, "logit_bias")
