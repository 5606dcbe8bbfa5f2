"""How a text is made, in llama-server's words: ``generation_settings`` of an answer, the defaults in ``/props``. Pure.

llama-server's names are those of the request's fields, and so are ours: every sampling parameter there is shows under
its own name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from llamaserve.request import GenerationRequest
from llamaserve.sampling import SamplingParams

DRAWN_SEED = 2**32 - 1
"""llama-server's way of writing that a seed is drawn."""
NO_LIMIT = -1


def sampling_settings(sampling: SamplingParams) -> dict[str, object]:
    """Every sampling parameter."""
    settings = {field.name: getattr(sampling, field.name) for field in dataclasses.fields(sampling)}
    settings["seed"] = DRAWN_SEED if sampling.seed is None else sampling.seed
    settings["logit_bias"] = _bias_list(sampling.logit_bias)
    return settings


def generation_settings(request: GenerationRequest, *, is_streamed: bool) -> dict[str, object]:
    """All that decides about the text of a request."""
    limit = NO_LIMIT if request.max_tokens is None else request.max_tokens
    return {
        **sampling_settings(request.sampling),
        "stop": list(request.stop),
        "max_tokens": limit,
        "n_predict": limit,
        "stream": is_streamed,
        "n_probs": request.logprobs or 0,
        "cache_prompt": request.cache_prompt,
    }


def _bias_list(biases: Mapping[int, float]) -> list[dict[str, object]]:
    return [{"token": token, "bias": False if bias == -math.inf else bias} for token, bias in biases.items()]
