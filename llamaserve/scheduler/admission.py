"""Which requests may come in: pure checks on a prompt. Any thread."""

from __future__ import annotations

from collections.abc import Iterable

from llamaserve.engine.port import ModelInfo
from llamaserve.errors import BadToken, EmptyPrompt, PromptTooLong
from llamaserve.request import GenerationRequest


def check_request(request: GenerationRequest, info: ModelInfo) -> None:
    """Refuse a request the model cannot serve, before it takes a place in the queue.

    Raises EmptyPrompt (S67), PromptTooLong when no generated token would fit after the prompt, and BadToken when
    the prompt, the stop tokens or the sampling parameters name a token outside the vocabulary (K26).
    """
    prompt = request.prompt
    if not prompt:
        raise EmptyPrompt
    if len(prompt) >= info.n_ctx_seq:
        raise PromptTooLong(len(prompt), info.n_ctx_seq)
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < info.n_vocab:
            raise BadToken(token, info.n_vocab)
    sampling = request.sampling
    _check_tokens("logit_bias", sampling.logit_bias, info.n_vocab)
    _check_tokens("stop_token_ids", request.stop_tokens, info.n_vocab)
    _check_tokens("allowed_token_ids", sampling.allowed_token_ids or (), info.n_vocab)
    for word in sampling.bad_words:
        _check_tokens("bad_words", word, info.n_vocab)


def _check_tokens(name: str, tokens: Iterable[int], n_vocab: int) -> None:
    for token in tokens:
        if not 0 <= token < n_vocab:
            raise BadToken(token, n_vocab, name)
