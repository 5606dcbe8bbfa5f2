"""From a request to what engine and prefix memory need to know of it. Pure; any thread."""

from __future__ import annotations

from llamaserve.cache.prompt import Prompt, token_array
from llamaserve.engine.port import SequenceSpec
from llamaserve.request import GenerationRequest

NO_PROMPT = Prompt(token_array(()), is_cached=False)
"""For a request that brings its cells along."""


def prompt_of(request: GenerationRequest) -> Prompt:
    """The request's prompt as the prefix memory sees it."""
    return Prompt(
        token_array(request.prompt),
        scope=request.cache_salt,
        is_cached=request.cache_prompt,
        is_computed_anew=request.prompt_logprobs is not None,
        session=request.session,
        boundaries=request.boundaries,
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
