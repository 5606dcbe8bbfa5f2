"""From the sampling fields of a body to SamplingParams. Preparing threads: texts are tokenised.

An absent field takes SamplingParams' default. Values other servers use for "off" mean the same here: a ``seed`` of -1
or 2**32 - 1 draws one, a ``top_k``, ``top_n_sigma`` or ``adaptive_target`` below 0 is off, ``max_tokens`` -1 goes on
until the context ends.
"""

from __future__ import annotations

from llamaserve.api.openai.body import GenerationBody
from llamaserve.api.openai.sampler_names import sampler_names
from llamaserve.api.openai.sampling_fields import SamplingFields
from llamaserve.api.openai.token_texts import bad_words, logit_bias
from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadRequest, BadSampler
from llamaserve.request import MAX_STOP_TOKENS
from llamaserve.sampling import SEED_MAX, SamplingParams

RANDOM_SEEDS = (-1, 2**32 - 1)
SEED_RANGE = (-(2**63), 2**64 - 1)
UNTIL_CONTEXT_ENDS = -1
SAMPLING_ALIASES = {"repeat_penalty": "repetition_penalty", "typical_p": "typ_p", "mirostat": "mirostat_mode"}
"""Other names of fields, which count where the first is not given."""
OFF_BELOW_0 = {"top_k": 0, "top_n_sigma": -1.0, "adaptive_target": -1.0}
"""Fields that any value below 0 turns off, and the value that does here."""
_SAME = (
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_p",
    "min_p",
    "xtc_probability",
    "xtc_threshold",
    "min_keep",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_decay",
    "repeat_last_n",
    "frequency_penalty",
    "presence_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "ignore_eos",
    "min_tokens",
)
"""Fields that mean what they say."""


def sampling_params(body: SamplingFields, vocab: Vocabulary) -> SamplingParams:
    """How the body wants tokens drawn.

    Raises BadSampler for a value outside its range, BadToken for a bias on a token outside the vocabulary.
    """
    values: dict[str, object] = {name: getattr(body, name) for name in _SAME}
    for name, alias in SAMPLING_ALIASES.items():
        value = getattr(body, name)
        values[name] = getattr(body, alias) if value is None else value
    for name, off in OFF_BELOW_0.items():
        value = getattr(body, name)
        values[name] = off if value is not None and value < 0 else value
    values["seed"] = _seed(body.seed)
    values["samplers"] = None if body.samplers is None else sampler_names(body.samplers)
    values["dry_sequence_breakers"] = None if body.dry_sequence_breakers is None else tuple(body.dry_sequence_breakers)
    values["logit_bias"] = None if body.logit_bias is None else logit_bias(body.logit_bias, vocab)
    values["bad_words"] = None if body.bad_words is None else bad_words(body.bad_words, vocab)
    values["allowed_token_ids"] = None if body.allowed_token_ids is None else tuple(body.allowed_token_ids)
    given = {name: value for name, value in values.items() if value is not None}
    try:
        params = SamplingParams(**given)  # type: ignore[arg-type]  # each value has its field's type, mypy sees objects
    except BadSampler as error:
        alias = SAMPLING_ALIASES.get(error.param or "", "")
        if alias and getattr(body, error.param or "") is None:
            raise BadRequest(f"{alias}: {error}", alias) from error
        raise
    if params.has_dry:
        vocab.find_breakers(params.dry_sequence_breakers)
    return params


def _seed(seed: int | None) -> int | None:
    """OpenAI's and vLLM's seeds have 64 bits, llama.cpp's 32: each stands for one of those, the same every time."""
    if seed is None or seed in RANDOM_SEEDS:
        return None
    if not SEED_RANGE[0] <= seed <= SEED_RANGE[1]:
        raise BadSampler("seed", seed, "a whole number of 64 bits")
    return seed % (SEED_MAX + 1)


def max_new_tokens(body: GenerationBody, *, least: int = 1) -> int | None:
    """The most tokens to generate; None for as many as the context holds.

    Of several spellings the first of n_predict, max_completion_tokens and max_tokens counts, as in llama-server.
    Raises BadRequest, under the name the client used, for a value below ``least``.
    """
    for name in ("n_predict", "max_completion_tokens", "max_tokens"):
        value: int | None = getattr(body, name)
        if value is None:
            continue
        if value == UNTIL_CONTEXT_ENDS:
            return None
        if value < least:
            raise BadRequest(f"{name} is {value}: it must be at least {least}, or -1 for no limit", name)
        return value
    return None


def stop_strings(body: SamplingFields) -> tuple[str, ...]:
    """The strings that end the text."""
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(text for text in body.stop if isinstance(text, str))


def stop_tokens(body: SamplingFields) -> tuple[int, ...]:
    """The tokens that end the text, of both fields that may have them. Raises BadRequest for too many in ``stop``."""
    in_stop = [token for token in body.stop or () if isinstance(token, int)]
    if len(in_stop) > MAX_STOP_TOKENS:
        raise BadRequest(f"stop has {len(in_stop)} tokens: at most {MAX_STOP_TOKENS} are allowed", "stop")
    return tuple(dict.fromkeys((*in_stop, *(body.stop_token_ids or ()))))
