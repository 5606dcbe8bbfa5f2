"""From a request to what engine and prefix memory need to know of it. Pure; any thread."""

from __future__ import annotations

from llamaserve.cache.prompt import Prompt, token_array
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
        boundaries=request.boundaries,
        is_private=is_private,
    )


def penalty_history(request: GenerationRequest) -> tuple[int, ...]:
    """The end of the prompt that penalties look back on; nothing without penalties."""
    sampling = request.sampling
    has_penalties = sampling.repeat_penalty != 1.0 or sampling.frequency_penalty or sampling.presence_penalty
    return request.prompt[-sampling.repeat_last_n :] if has_penalties and sampling.repeat_last_n else ()
