"""What a request is and what comes back: plain values that cross every layer. Any thread; knows no HTTP, no engine."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from llamaserve.constraint import Constraint
from llamaserve.errors import BadRequest, LlamaServeError, shown
from llamaserve.sampling import SamplingParams, is_int

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024  # characters; text that could still become a stop string is held back, so it is bounded
MAX_STOP_TOKENS = 64
MAX_LOGPROBS = 100
MAX_PROMPT_LOGPROBS = 2**20  # probabilities of a prompt in all; each is an object that waits for the client
_DEFAULT_SAMPLING = SamplingParams()
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
class GenerationRequest:
    """One prompt to continue.

    Raises BadRequest when a field is of the wrong type, max_tokens is below 0 or min_tokens, a stop string is empty or
    too long, there are too many stops, the session, the salt or the owner is too long, a boundary is outside the
    prompt, a limit of its lines is none, or more probabilities are asked for than one answer has.
    """

    request_id: str
    """Unique among the requests that run or wait."""
    prompt: tuple[int, ...]
    """Token ids; the scheduler checks them against the vocabulary and the context."""
    max_tokens: int | None = None
    """0 or more; 0 computes the prompt and draws nothing, None goes on until the model ends or the context is full."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; they are not part of it."""
    sampling: SamplingParams = _DEFAULT_SAMPLING
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
    min_indent: int = 0
    """Blanks and tabs that every line of its text but the first begins with, at least: the text ends before one with
    fewer. 0 is any number."""
    max_decode_s: float | None = None
    """Seconds from the first token, above 0, after which the text ends with its next line; None = it goes on."""
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
        _check_max_tokens(self.max_tokens, self.sampling.min_tokens)
        _check_stop(self.stop)
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
        _check_stop_tokens(self.stop_tokens)
        _check_line_limits(self.min_indent, self.max_decode_s)
        _check_logprobs("logprobs", self.logprobs, 1)
        _check_logprobs("prompt_logprobs", self.prompt_logprobs, len(self.prompt))


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


def _check_max_tokens(max_tokens: object, min_tokens: int) -> None:
    if max_tokens is None:
        return
    if not is_int(max_tokens) or max_tokens < 0:
        raise BadRequest(f"max_tokens is {shown(max_tokens)}: it must be a whole number of at least 0", "max_tokens")
    if min_tokens > max_tokens:
        raise BadRequest(f"min_tokens is {min_tokens}: it must be at most max_tokens, {max_tokens}", "min_tokens")


def _check_stop(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise BadRequest(f"stop has {len(stop)} strings: at most {MAX_STOP_STRINGS} are allowed", "stop")
    for text in stop:
        if not text or len(text) > MAX_STOP_LENGTH:
            raise BadRequest(f"a stop string has {len(text)} characters: it must have 1 to {MAX_STOP_LENGTH}", "stop")


def _check_stop_tokens(tokens: object) -> None:
    if not isinstance(tokens, tuple) or not all(map(is_int, tokens)):
        raise BadRequest("stop_token_ids must be a tuple of token ids", "stop_token_ids")
    if len(tokens) > MAX_STOP_TOKENS:
        raise BadRequest(
            f"stop_token_ids has {len(tokens)} tokens: at most {MAX_STOP_TOKENS} are allowed", "stop_token_ids"
        )


def _check_line_limits(min_indent: object, max_decode_s: object) -> None:
    if not is_int(min_indent) or min_indent < 0:
        raise BadRequest(f"min_indent is {shown(min_indent)}: it must be a whole number of at least 0", "min_indent")
    if max_decode_s is None:
        return
    if not isinstance(max_decode_s, (int, float)) or isinstance(max_decode_s, bool) or not max_decode_s > 0:
        raise BadRequest(f"max_decode_s is {shown(max_decode_s)}: it must be a number above 0", "max_decode_s")


def _check_logprobs(name: str, n_top: object, n_tokens: int) -> None:
    if n_top is None:
        return
    if not is_int(n_top) or not 0 <= n_top <= MAX_LOGPROBS:
        raise BadRequest(f"{name} is {shown(n_top)}: it must be a whole number from 0 to {MAX_LOGPROBS}", name)
    if n_tokens * (n_top + 1) > MAX_PROMPT_LOGPROBS:
        most = MAX_PROMPT_LOGPROBS // n_tokens - 1
        raise BadRequest(f"{name} is {n_top}: for a prompt of {n_tokens} tokens it must be at most {most}", name)


def _check_boundaries(boundaries: object, n_prompt: int) -> None:
    if not isinstance(boundaries, tuple) or not all(map(is_int, boundaries)):
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
