"""From SamplingParams to the native module's. Any thread."""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve import _engine
from llamaserve.sampling import SamplingParams

_DRAWN_SEED = 2**32 - 1  # LLAMA_DEFAULT_SEED
_DEFAULTS = SamplingParams()
_SAME_NAMES = tuple(
    name for name in SamplingParams.__slots__ if name not in ("seed", "logit_bias", "allowed_token_ids")
)


def sampler_spec(sampling: SamplingParams, stop_tokens: Sequence[int] = ()) -> _engine.SamplerSpec:
    """The same for llama.cpp; both have its defaults, so only what differs is set."""
    spec = _engine.SamplerSpec()
    for name in _SAME_NAMES:
        value = getattr(sampling, name)
        if value != getattr(_DEFAULTS, name):
            setattr(spec, name, value)
    spec.seed = _DRAWN_SEED if sampling.seed is None else sampling.seed
    if sampling.logit_bias:
        spec.logit_bias = list(sampling.logit_bias.items())
    if sampling.allowed_token_ids is not None:
        spec.allowed_token_ids = sampling.allowed_token_ids
    if stop_tokens:
        spec.stop_tokens = stop_tokens
    return spec
