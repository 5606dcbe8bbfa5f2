"""From a request to what engine and prefix memory need to know of it. Pure; any thread."""

from __future__ import annotations

from llamaserve.cache.prompt import Prompt, token_array
from llamaserve.engine.port import SequenceSpec
from llamaserve.request import GenerationRequest

NO_PROMPT = Prompt(token_array(()), is_cached=False)
"""For a request that brings its cells along."""


def prompt_of(request: GenerationRequest) -> Prompt:
    """The request's prompt as the prefix memory sees it."""
    is_private = not request.cache_prompt and bool(request.prompt_group)
    return Prompt(
        token_array(request.prompt),
        scope=request.prompt_group if is_private else request.cache_salt,
        is_cached=request.cache_prompt or is_private,
        session=None if is_private else request.session,
        is_computed_anew=request.prompt_logprobs is not None,
        boundaries=request.boundaries,
        is_private=is_private,
    )


def sequence_spec(seq_id: int, request: GenerationRequest) -> SequenceSpec:
    """What the engine opens the request's sequence with."""
    n_looked_back = request.sampling.n_looked_back
    return SequenceSpec(
        seq_id,
        request.sampling,
        history=request.prompt[-n_looked_back:] if n_looked_back else (),
        stop_tokens=request.stop_tokens,
        n_top=request.logprobs,
    )
