"""From the sampling fields of a body to SamplingParams. Any thread.

An absent field takes SamplingParams' default. Values other servers use for "off" mean the same here: a ``seed`` of -1
or 2**32 - 1 draws one, a ``top_k`` below 0 keeps all tokens, ``max_tokens`` -1 goes on until the context ends.
"""

from __future__ import annotations

import math
import re

from llamaserve.api.openai.body import GenerationBody
from llamaserve.errors import BadRequest, BadSampler, BadToken
from llamaserve.sampling import SamplingParams

RANDOM_SEEDS = (-1, 2**32 - 1)
UNTIL_CONTEXT_ENDS = -1
_TOKEN_ID = re.compile(r"-?[0-9]{1,20}")


def sampling_params(body: GenerationBody, n_vocab: int) -> SamplingParams:
    """How the body wants tokens drawn.

    Raises BadSampler for a value outside its range, BadToken for a bias on a token outside the vocabulary.
    """
    values = {
        "temperature": body.temperature,
        "top_k": None if body.top_k is None else max(body.top_k, 0),
        "top_p": body.top_p,
        "min_p": body.min_p,
        "seed": None if body.seed in RANDOM_SEEDS else body.seed,
        "repeat_penalty": body.repetition_penalty if body.repeat_penalty is None else body.repeat_penalty,
        "repeat_last_n": body.repeat_last_n,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "logit_bias": _logit_bias(body, n_vocab),
        "ignore_eos": body.ignore_eos,
    }
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return SamplingParams(**given)  # type: ignore[arg-type]  # each value has its field's type, mypy sees the union
    except BadSampler as error:
        if error.param == "repeat_penalty" and body.repeat_penalty is None:
            raise BadRequest(f"repetition_penalty: {error}", "repetition_penalty") from error
        raise


def max_new_tokens(body: GenerationBody) -> int | None:
    """The most tokens to generate; None for as many as the context holds.

    Of several spellings the first of n_predict, max_completion_tokens and max_tokens counts, as in llama-server.
    Raises BadRequest, under the name the client used, for a value below 1.
    """
    for name in ("n_predict", "max_completion_tokens", "max_tokens"):
        value: int | None = getattr(body, name)
        if value is None:
            continue
        if value == UNTIL_CONTEXT_ENDS:
            return None
        if value < 1:
            raise BadRequest(f"{name} is {value}: it must be at least 1, or -1 for no limit", name)
        return value
    return None


def stop_strings(body: GenerationBody) -> tuple[str, ...]:
    """The strings that end the text."""
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)


def _logit_bias(body: GenerationBody, n_vocab: int) -> dict[int, float] | None:
    if body.logit_bias is None:
        return None
    pairs = body.logit_bias.items() if isinstance(body.logit_bias, dict) else body.logit_bias
    return {_bias_token(token, n_vocab): _bias_value(token, bias) for token, bias in pairs}


def _bias_token(token: str | int, n_vocab: int) -> int:
    # int() alone would also take " 1 ", "1_0" and the digits of other scripts.
    if isinstance(token, str) and not _TOKEN_ID.fullmatch(token):
        raise BadSampler("logit_bias", token, "an object whose names are token ids")
    token_id = int(token)
    if not 0 <= token_id < n_vocab:
        raise BadToken(token_id, n_vocab, "logit_bias")
    return token_id


def _bias_value(token: str | int, bias: float | bool) -> float:
    if bias is True:
        raise BadSampler("logit_bias", {token: bias}, "a number from -100 to 100, or false to forbid the token")
    return -math.inf if bias is False else bias
