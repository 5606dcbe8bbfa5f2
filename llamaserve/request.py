"""What a request is and what comes back: plain values that cross every layer. Any thread; knows no HTTP, no engine."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from llamaserve.constraint import Constraint
from llamaserve.errors import BadRequest, BadSampler, LlamaServeError, shown

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024  # characters; text that could still become a stop string is held back, so it is bounded
SEED_MAX = 2**32 - 2  # 2**32 - 1 is llama.cpp's LLAMA_DEFAULT_SEED, "draw one"
MAX_NAME_LENGTH = 256  # characters of a session's name, of a salt and of an owner's name


class Lane(enum.Enum):
    """How urgent a request is; in the order of urgency."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    def at_most(self, limit: Lane) -> Lane:
        """This lane, or ``limit`` where it is more urgent than that."""
        return max(self, limit, key=list(Lane).index)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn from the logits. Defaults and order are llama.cpp's own (common/common.h).

    The chain: logit bias, penalties, top_k, top_p, min_p, temperature, draw. A temperature of 0 takes the
    most likely token after bias and penalties.

    Raises BadSampler when a value is of the wrong type or outside its range.
    """

    temperature: float = 0.8
    """0 to 100; 0 is greedy."""
    top_k: int = 40
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 0.95
    """Keep the smallest set of tokens with this much probability; 1 keeps all."""
    min_p: float = 0.05
    """Drop tokens less likely than this fraction of the most likely one; 0 drops none."""
    seed: int | None = None
    """0 to 2**32 - 2; None draws one for each request."""
    repeat_penalty: float = 1.0
    """Above 1 makes repeated tokens less likely; 1 is off."""
    repeat_last_n: int = 64
    """Tokens the penalties look back, prompt included; 0 turns the penalties off."""
    frequency_penalty: float = 0.0
    """-2 to 2, times the count of a token in the window."""
    presence_penalty: float = 0.0
    """-2 to 2, once for a token in the window."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id to a number added to its logit, -100 to 100; -inf forbids the token. HTTP's ``false`` is -inf here."""
    ignore_eos: bool = False
    """Forbid every end-of-generation token, so that the length alone ends the text."""

    def __post_init__(self) -> None:
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_p", self.top_p, 0.0, 1.0)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("repeat_penalty", self.repeat_penalty, 0.01, 100.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_int_range("top_k", self.top_k, 0, 2**31 - 1)
        _check_int_range("repeat_last_n", self.repeat_last_n, 0, 2**16)
        if self.seed is not None:
            _check_int_range("seed", self.seed, 0, SEED_MAX)
        if not isinstance(self.logit_bias, Mapping):
            raise BadSampler("logit_bias", self.logit_bias, "a mapping of token ids to numbers")
        for token, bias in self.logit_bias.items():
            if not _is_int(token):
                raise BadSampler("logit_bias", {token: bias}, "a mapping whose keys are token ids")
            if not _is_number(bias) or not (bias == -math.inf or -100.0 <= bias <= 100.0):
                raise BadSampler("logit_bias", {token: bias}, "a number from -100 to 100, or -inf")
        if not isinstance(self.ignore_eos, bool):
            raise BadSampler("ignore_eos", self.ignore_eos, "True or False")


def _check_range(name: str, value: object, low: float, high: float) -> None:
    if not _is_number(value) or not low <= value <= high:
        raise BadSampler(name, value, f"a number from {low:g} to {high:g}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_int_range(name: str, value: object, low: int, high: int) -> None:
    if not _is_int(value) or not low <= value <= high:
        raise BadSampler(name, value, f"a whole number from {low} to {high}")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue.

    Raises BadRequest when a field is of the wrong type, max_tokens is below 1, a stop string is empty or too long, the
    session, the salt or the owner is too long, or a boundary is outside the prompt.
    """

    request_id: str
    """Unique among the requests that run or wait."""
    prompt: tuple[int, ...]
    """Token ids; the scheduler checks them against the vocabulary and the context."""
    max_tokens: int | None = None
    """At least 1; None goes on until the model ends or the context is full."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; they are not part of it."""
    sampling: SamplingParams = SamplingParams()
    cache_prompt: bool = True
    """Whether computed prefixes are reused for it, and what it leaves may be reused by others."""
    cache_salt: str = ""
    """At most 256 characters; requests with different salts never reuse anything of each other."""
    session: str | None = None
    """The conversation it belongs to, 1 to 256 characters."""
    boundaries: tuple[int, ...] = ()
    """Positions of the prompt where a message ends, ascending, 1 to its length - 1."""
    return_progress: bool = False
    """Whether its events say how far its prompt is."""
    priority: Lane = Lane.NORMAL
    """How urgent it is among those that wait."""
    owner: str = ""
    """Whose it is, at most 256 characters: owners share the slots fairly. "" is one too."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens that end the text, at most 64; they are not part of it."""
    logprobs: int | None = None
    """How many of the likeliest tokens come with each token drawn, 0 to 100; None = not even its own probability."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt, which is then computed anew; None = none."""
    constraint: Constraint | None = None
    """What its tokens may be; None = any."""
    visible_tokens: Mapping[int, bytes] = field(default_factory=dict)
    """Control tokens that its text shows, with how they are written; no other is seen."""
    prompt_group: str = ""
    """A secret name: requests that have the same share what is computed of their prompt among themselves although
    ``cache_prompt`` is off. Nothing of it is left when the last of them ends. "" is none."""

    def __post_init__(self) -> None:
        if not isinstance(self.request_id, str):
            raise BadRequest("request_id must be a string", "request_id")
        if not isinstance(self.prompt, tuple) or not set(map(type, self.prompt)) <= {int}:
            raise BadRequest("prompt must be a tuple of token ids", "prompt")
        if not isinstance(self.stop, tuple) or not all(isinstance(text, str) for text in self.stop):
            raise BadRequest("stop must be a tuple of strings", "stop")
        if not isinstance(self.sampling, SamplingParams):
            raise BadRequest("sampling must be a SamplingParams", "sampling")
        if self.max_tokens is not None and (not _is_int(self.max_tokens) or self.max_tokens < 1):
            raise BadRequest(
                f"max_tokens is {shown(self.max_tokens)}: it must be a whole number of at least 1", "max_tokens"
            )
        if len(self.stop) > MAX_STOP_STRINGS:
            raise BadRequest(f"stop has {len(self.stop)} strings: at most {MAX_STOP_STRINGS} are allowed", "stop")
        for text in self.stop:
            if not text or len(text) > MAX_STOP_LENGTH:
                raise BadRequest(
                    f"a stop string has {len(text)} characters: it must have 1 to {MAX_STOP_LENGTH}", "stop"
                )
        if not isinstance(self.cache_prompt, bool):
            raise BadRequest(f"cache_prompt is {shown(self.cache_prompt)}: it must be True or False", "cache_prompt")
        _check_name("cache_salt", self.cache_salt, 0)
        if self.session is not None:
            _check_name("session", self.session, 1)
        _check_boundaries(self.boundaries, len(self.prompt))
        if not isinstance(self.return_progress, bool):
            raise BadRequest(
                f"return_progress is {shown(self.return_progress)}: it must be True or False", "return_progress"
            )
        if not isinstance(self.priority, Lane):
            raise BadRequest(f"priority is {shown(self.priority)}: it must be a Lane", "priority")
        _check_name("owner", self.owner, 0)
        _check_name("prompt_group", self.prompt_group, 0)


def _check_name(name: str, value: object, shortest: int) -> None:
    if not isinstance(value, str):
        raise BadRequest(f"{name} is {shown(value)}: it must be a string", name)
    if not shortest <= len(value) <= MAX_NAME_LENGTH:
        limit = f"{shortest} to {MAX_NAME_LENGTH}" if shortest else f"at most {MAX_NAME_LENGTH}"
        raise BadRequest(f"{name} has {len(value)} characters: it must have {limit}", name)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{name} is not valid Unicode: {error.reason} at character {error.start}", name) from None


def _check_boundaries(boundaries: object, n_prompt: int) -> None:
    if not isinstance(boundaries, tuple) or not all(map(_is_int, boundaries)):
        raise BadRequest("boundaries must be a tuple of positions", "boundaries")
    for before, position in zip((0, *boundaries), boundaries, strict=False):
        if not before < position < n_prompt:
            raise BadRequest(
                f"boundaries has {shown(position)} after {shown(before)}: they must ascend from 1 to {n_prompt - 1}, "
                "the last position before the prompt's end",
                "boundaries",
            )


class FinishReason(enum.Enum):
    """Why a request ended well (E8)."""

    EOS = "eos"
    STOP_SEQUENCE = "stop_sequence"
    LENGTH = "length"
    CONTEXT_EXHAUSTED = "context_exhausted"

    @property
    def openai(self) -> str:
        """The word OpenAI's API has for it: "stop" or "length"."""
        return "stop" if self in (FinishReason.EOS, FinishReason.STOP_SEQUENCE) else "length"


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds, measured on the scheduler thread from submission."""

    queue_s: float
    """Submission to a slot."""
    prefill_s: float
    """Slot to the first token."""
    decode_s: float
    """First to last token."""

    @property
    def ttft_s(self) -> float:
        """Submission to the first token."""
        return self.queue_s + self.prefill_s

    @property
    def total_s(self) -> float:
        """Submission to the last token."""
        return self.ttft_s + self.decode_s


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request's prompt is: once when it gets a slot, and after each piece (``return_progress``)."""

    total: int
    """Tokens of the prompt."""
    cached: int
    """Those of them that need not be computed for this request."""
    computed: int
    """Those that were computed for it."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was: natural logarithms of the model's own probabilities, before any sampler."""

    token: int
    piece: bytes
    """The bytes it stands for, control tokens written out; may be a part of a character."""
    logprob: float | None
    """None for the first token of a prompt, which nothing comes before."""
    top: tuple[tuple[int, bytes, float], ...] = ()
    """Token, bytes and logarithm of the likeliest, in falling order."""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """How likely the prompt was; once, before the first TextDelta, for a request that asked."""

    tokens: tuple[TokenLogprob, ...]
    """One for each token of the prompt, in order."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of a request, valid UTF-8; may be empty while text is held back for a stop string."""

    text: str
    tokens: tuple[int, ...]
    """The token ids behind this delta, in order."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of ``tokens``, for a request that asked; else none."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The request is done; always the last event of a request that did not fail."""

    reason: FinishReason
    stop_sequence: str | None
    """The stop string that ended the text."""
    prompt_tokens: int
    completion_tokens: int
    """Tokens drawn, without an end-of-generation token."""
    timings: Timings
    cached_tokens: int = 0
    """Of the prompt's tokens, those that were not computed for this request."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended with an error; always its last event."""

    error: LlamaServeError


Event = TextDelta | PromptLogprobs | Progress | Finished | Failed
