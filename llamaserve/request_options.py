"""The keyword arguments of the Python API's calls, and how they are read. Any thread."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from llamaserve.errors import BadRequest, UnknownOption, shown
from llamaserve.grammar.spec import GrammarKind, GrammarSpec
from llamaserve.sampling import SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_MAX_TOKENS = 256


class SamplingOptions(TypedDict, total=False):
    """How tokens are drawn: the fields of ``SamplingParams``."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    repeat_penalty: float
    repeat_last_n: int
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float] | None
    """None as if it were not given."""
    ignore_eos: bool
    dynatemp_range: float
    dynatemp_exponent: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: tuple[str, ...]
    samplers: tuple[str, ...]
    min_tokens: int
    bad_words: tuple[tuple[int, ...], ...]
    allowed_token_ids: tuple[int, ...] | None


class RequestOptions(SamplingOptions, total=False):
    """Keyword arguments of every call that computes."""

    max_tokens: int | None
    """Most tokens, 256 if not given; None goes on until the model ends or the context is full."""
    stop: str | Sequence[str] | None
    """Strings that end the text; they are not part of it. None as if it were not given."""
    stop_token_ids: Sequence[int] | None
    """Tokens that end it, at most 64."""
    logprobs: int | None
    """How many of the likeliest tokens come with each token, 0 to 100; None = no logarithms of probabilities at all."""
    prompt_logprobs: int | None
    """The same for the tokens of the prompt, which is then computed anew. ``max_tokens`` may be 0."""
    timeout_s: float | None
    """Seconds from the queue to the last token, at most 30 days; None is without limit."""
    cache_prompt: bool | None
    """Whether computed prefixes are reused and left for others; None as the server was told (``CacheConfig``)."""
    cache_salt: str | None
    """Requests with different salts reuse nothing of each other; at most 256 characters. None is no salt, as ""."""
    session: str | None
    """The conversation the request belongs to, 1 to 256 characters: what its last request left is kept longer."""
    schema: Mapping[str, object] | bool | str | None
    """A JSON Schema that the text is an instance of; as Python values, or as JSON."""
    grammar: str | GrammarSpec | None
    """What else restricts the text: a grammar in GBNF, or a ``GrammarSpec``. Not together with a schema."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """``RequestOptions`` with defaults and checked."""

    max_tokens: int | None
    stop: tuple[str, ...]
    timeout_s: float | None
    sampling: SamplingParams
    cache_prompt: bool | None
    """None is the server's default."""
    cache_salt: str
    session: str | None
    grammar: GrammarSpec | None
    stop_tokens: tuple[int, ...]
    logprobs: int | None
    prompt_logprobs: int | None


def read_options(options: RequestOptions) -> ReadOptions:
    """Raises UnknownOption for a keyword of no call, with the closest one (K33); BadSampler and BadRequest for a bad
    value."""
    sampling: dict[str, object] = {}
    for name, value in options.items():
        if name in SamplingOptions.__annotations__:
            sampling[name] = value
        elif name not in RequestOptions.__annotations__:
            close = difflib.get_close_matches(name, RequestOptions.__annotations__, n=1)
            raise UnknownOption(name, close[0] if close else None)
    if sampling.get("logit_bias") is None:
        sampling.pop("logit_bias", None)
    return ReadOptions(
        max_tokens=options.get("max_tokens", DEFAULT_MAX_TOKENS),
        stop=_stops(options.get("stop")),
        timeout_s=options.get("timeout_s"),
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]  # it checks its fields itself
        cache_prompt=options.get("cache_prompt"),
        cache_salt=_salt(options.get("cache_salt")),
        session=options.get("session"),
        grammar=_grammar(options.get("schema"), options.get("grammar")),
        stop_tokens=_stop_tokens(options.get("stop_token_ids")),
        logprobs=options.get("logprobs"),
        prompt_logprobs=options.get("prompt_logprobs"),
    )


def check_options(**options: Unpack[RequestOptions]) -> None:
    """Raises what ``read_options`` raises."""
    read_options(options)


def _stop_tokens(tokens: object) -> tuple[int, ...]:
    if tokens is None:
        return ()
    if not isinstance(tokens, Sequence):
        raise BadRequest(f"stop_token_ids is {shown(tokens)}: it must be a sequence of token ids", "stop_token_ids")
    return tuple(tokens)


def _grammar(schema: object, grammar: object) -> GrammarSpec | None:
    if schema is not None and grammar is not None:
        raise BadRequest("schema and grammar both restrict the text: give one of them", "grammar")
    if schema is not None:
        return GrammarSpec(GrammarKind.JSON_SCHEMA, schema if isinstance(schema, str) else _json(schema))
    if grammar is None or isinstance(grammar, GrammarSpec):
        return grammar
    if not isinstance(grammar, str):
        raise BadRequest(f"grammar is {shown(grammar)}: it must be a string or a GrammarSpec", "grammar")
    return GrammarSpec(GrammarKind.GBNF, grammar)


def _json(schema: object) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"schema is {shown(schema)}: it cannot be written as JSON: {error}", "schema") from error


def _salt(salt: str | None) -> str:
    return "" if salt is None else salt


def _stops(stop: object) -> tuple[str, ...]:
    if stop is None:
        return ()
    if isinstance(stop, str):
        return (stop,)
    if not isinstance(stop, Sequence):
        raise BadRequest(f"stop is {shown(stop)}: it must be a string or a sequence of strings", "stop")
    for text in stop:
        if not isinstance(text, str):
            raise BadRequest(f"stop holds {shown(text)}: it must hold strings", "stop")
    return tuple(stop)
