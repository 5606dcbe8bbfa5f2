"""How a token is drawn: one request's sampling parameters, which check themselves. Pure values; any thread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from llamaserve.errors import BadSampler

SEED_MAX = 2**32 - 2  # 2**32 - 1 is llama.cpp's LLAMA_DEFAULT_SEED, "draw one"
DEFAULT_SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""llama.cpp's order."""
SAMPLERS = (*DEFAULT_SAMPLERS, "adaptive_p")
DEFAULT_BREAKERS = ("\n", ":", '"', "*")
MAX_SAMPLERS = 32
MAX_LOOK_BACK = 2**16  # tokens
MAX_BREAKERS = 32
MAX_BREAKER_BYTES = 40  # llama.cpp cuts longer ones off without a word
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_TOKENS = 64
_INT_MAX = 2**31 - 1
RANGES = {  # of the ranges of numbers, both inside
    "temperature": (0.0, 100.0),
    "dynatemp_range": (0.0, 100.0),
    "dynatemp_exponent": (0.0, 10.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "top_n_sigma": (-1.0, 100.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "mirostat_tau": (0.0, 100.0),
    "mirostat_eta": (0.0, 1.0),
    "adaptive_target": (-1.0, 1.0),
    "adaptive_decay": (0.0, 0.99),
    "repeat_penalty": (0.01, 100.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (1.0, 100.0),
}
INT_RANGES = {
    "top_k": (0, _INT_MAX),
    "min_keep": (0, _INT_MAX),
    "mirostat": (0, 2),
    "repeat_last_n": (0, MAX_LOOK_BACK),
    "dry_allowed_length": (0, MAX_LOOK_BACK),
    "dry_penalty_last_n": (0, MAX_LOOK_BACK),
    "min_tokens": (0, _INT_MAX),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn from the logits. Defaults and order are llama.cpp's own (common/common.h).

    First the logit bias, and what may not be drawn at all; then the samplers in the order of ``samplers``; then the
    draw. A temperature of 0 takes the most likely token that the samplers before it leave.

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
    dynatemp_range: float = 0.0
    """Above 0 the temperature is up to this much lower where the model is sure, and higher where it is not."""
    dynatemp_exponent: float = 1.0
    """0 to 10: how the entropy moves it."""
    typical_p: float = 1.0
    """Keep the tokens whose surprise is closest to what is expected, with this much probability; 1 keeps all."""
    top_n_sigma: float = -1.0
    """Keep tokens whose logits are at most so many standard deviations below the largest; 0 or less keeps all."""
    xtc_probability: float = 0.0
    """How often the likeliest tokens are dropped, but for the last of those above ``xtc_threshold``; 0 is never."""
    xtc_threshold: float = 0.1
    """Above 0.5 nothing is dropped."""
    min_keep: int = 0
    """Tokens that top_p, min_p, typ_p and xtc leave at least."""
    mirostat: int = 0
    """1 or 2 draws by mirostat, which holds the surprise; of the samplers only the temperature counts then."""
    mirostat_tau: float = 5.0
    """0 to 100: the surprise, in bits."""
    mirostat_eta: float = 0.1
    """0 to 1: how fast it is held."""
    adaptive_target: float = -1.0
    """0 to 1 draws tokens that have been about so likely on average, by adaptive_p; below 0 is off."""
    adaptive_decay: float = 0.9
    """0 to 0.99: how much of the average an older token keeps."""
    dry_multiplier: float = 0.0
    """Above 0 makes a token less likely that would go on with a repetition, by this times ``dry_base`` to the power of
    how much longer than ``dry_allowed_length`` that is; 0 is off."""
    dry_base: float = 1.75
    """1 to 100."""
    dry_allowed_length: int = 2
    """Tokens that may repeat freely."""
    dry_penalty_last_n: int = 64
    """Tokens it looks back, prompt included; 0 turns it off."""
    dry_sequence_breakers: tuple[str, ...] = DEFAULT_BREAKERS
    """Texts no repetition goes across; at most 32, of 1 to 40 bytes."""
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS
    """Which samplers work, of ``SAMPLERS``, in their order; those left out do nothing. At most 32."""
    min_tokens: int = 0
    """Tokens to draw before one may end the text."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that are not drawn; at most 1024, of 1 to 64 tokens."""
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that may be drawn; None is all."""

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            _check_range(name, getattr(self, name), low, high)
        for name, (least, most) in INT_RANGES.items():
            _check_int_range(name, getattr(self, name), least, most)
        if self.seed is not None:
            _check_int_range("seed", self.seed, 0, SEED_MAX)
        if not isinstance(self.ignore_eos, bool):
            raise BadSampler("ignore_eos", self.ignore_eos, "True or False")
        _check_bias(self.logit_bias)
        _check_samplers(self.samplers)
        _check_breakers(self.dry_sequence_breakers)
        _check_bad_words(self.bad_words)
        if self.allowed_token_ids is not None:
            _check_tokens("allowed_token_ids", self.allowed_token_ids)

    @property
    def has_dry(self) -> bool:
        """Whether DRY changes anything."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n > 0 and "dry" in self.samplers and not self.mirostat

    @property
    def has_penalties(self) -> bool:
        """Whether one of the three penalties does."""
        is_one_set = self.repeat_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0
        return is_one_set and self.repeat_last_n > 0 and "penalties" in self.samplers and not self.mirostat

    @property
    def n_looked_back(self) -> int:
        """Tokens before the first one drawn that the samplers look back on."""
        return max(
            self.repeat_last_n if self.has_penalties else 0,
            self.dry_penalty_last_n if self.has_dry else 0,
        )


def _check_range(name: str, value: object, low: float, high: float) -> None:
    if not _is_number(value) or not low <= value <= high:
        raise BadSampler(name, value, f"a number from {low:g} to {high:g}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_int(value: object) -> TypeGuard[int]:
    """Whether it is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _check_int_range(name: str, value: object, low: int, high: int) -> None:
    if not is_int(value) or not low <= value <= high:
        raise BadSampler(name, value, f"a whole number from {low} to {high}")


def _check_bias(biases: object) -> None:
    if not isinstance(biases, Mapping):
        raise BadSampler("logit_bias", biases, "a mapping of token ids to numbers")
    for token, bias in biases.items():
        if not is_int(token):
            raise BadSampler("logit_bias", {token: bias}, "a mapping whose keys are token ids")
        if not _is_number(bias) or not (bias == -math.inf or -100.0 <= bias <= 100.0):
            raise BadSampler("logit_bias", {token: bias}, "a number from -100 to 100, or -inf")


def _check_samplers(samplers: object) -> None:
    if not isinstance(samplers, tuple) or len(samplers) > MAX_SAMPLERS:
        raise BadSampler("samplers", samplers, f"a tuple of at most {MAX_SAMPLERS} names")
    for name in samplers:
        if name not in SAMPLERS:
            raise BadSampler("samplers", name, f"one of {', '.join(SAMPLERS)}")


def _check_breakers(breakers: object) -> None:
    if not isinstance(breakers, tuple) or len(breakers) > MAX_BREAKERS:
        raise BadSampler("dry_sequence_breakers", breakers, f"a tuple of at most {MAX_BREAKERS} texts")
    for text in breakers:
        if not isinstance(text, str) or not 1 <= len(text.encode("utf-8", "surrogatepass")) <= MAX_BREAKER_BYTES:
            raise BadSampler("dry_sequence_breakers", text, f"a text of 1 to {MAX_BREAKER_BYTES} bytes")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise BadSampler("dry_sequence_breakers", text, "valid Unicode, without a lone surrogate")


def _check_bad_words(words: object) -> None:
    if not isinstance(words, tuple) or len(words) > MAX_BAD_WORDS:
        n_words = len(words) if isinstance(words, tuple) else words
        raise BadSampler("bad_words", n_words, f"a tuple of at most {MAX_BAD_WORDS} token sequences")
    for word in words:
        _check_tokens("bad_words", word)
        if len(word) > MAX_BAD_WORD_TOKENS:
            raise BadSampler("bad_words", word, f"sequences of at most {MAX_BAD_WORD_TOKENS} tokens")


def _check_tokens(name: str, tokens: object) -> None:
    if not isinstance(tokens, tuple) or not tokens or not all(map(is_int, tokens)):
        raise BadSampler(name, tokens, "a tuple of at least 1 token id")
