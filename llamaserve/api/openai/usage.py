"""What a request cost, in tokens and in time. Plain values; any thread."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from llamaserve.request import Finished, Progress


class PromptTokensDetails(msgspec.Struct):
    """Where the tokens of a prompt came from."""

    cached_tokens: int
    """Those that were not computed for this request."""


class Usage(msgspec.Struct):
    """Tokens a request cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, choices: Sequence[Finished], n_per_prompt: int = 1) -> Usage:
        """The usage of all choices, those of a prompt side by side: each prompt counts once, and as computed is counted
        what the choice that found least had to compute."""
        firsts = choices[::n_per_prompt]
        cached = [
            min(choice.cached_tokens for choice in choices[start : start + n_per_prompt])
            for start in range(0, len(choices), n_per_prompt)
        ]
        return cls.of_counts(
            prompt=sum(choice.prompt_tokens for choice in firsts),
            cached=sum(cached),
            completion=sum(choice.completion_tokens for choice in choices),
        )

    @classmethod
    def of_counts(cls, *, prompt: int, cached: int, completion: int) -> Usage:
        """The usage with its sum."""
        return cls(prompt, completion, prompt + completion, PromptTokensDetails(cached))


class Timings(msgspec.Struct):
    """How long a choice took, in llama-server's words: milliseconds from the slot on, and rates."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float

    @classmethod
    def of(cls, finished: Finished) -> Timings:
        """Those of a choice that is done."""
        return cls.of_counts(
            cached=finished.cached_tokens,
            computed=finished.prompt_tokens - finished.cached_tokens,
            prompt_ms=1000 * finished.timings.prefill_s,
            drawn=finished.completion_tokens,
            drawn_ms=1000 * finished.timings.decode_s,
        )

    @classmethod
    def of_counts(cls, *, cached: int, computed: int, prompt_ms: float, drawn: int, drawn_ms: float) -> Timings:
        """With the rates. The first token belongs to the prompt, so the rate of the text is that of the others."""
        n_decoded = max(0, drawn - 1)
        return cls(
            cached,
            computed,
            prompt_ms,
            _quotient(prompt_ms, computed),
            1000 * _quotient(computed, prompt_ms),
            drawn,
            drawn_ms,
            _quotient(drawn_ms, n_decoded),
            1000 * _quotient(n_decoded, drawn_ms),
        )


def _quotient(amount: float, divisor: float) -> float:
    return amount / divisor if divisor else 0.0


class RunningCounts:
    """How far a choice is, for a stream that says so in every chunk. One thread."""

    __slots__ = ("_first_at", "_n_cached", "_n_computed", "_n_drawn", "_n_prompt", "_prompt_ms")

    def __init__(self, n_prompt: int) -> None:
        self._n_prompt = n_prompt
        self._n_cached = 0
        self._n_computed = 0
        self._n_drawn = 0
        self._prompt_ms = 0.0
        self._first_at: float | None = None

    def note_progress(self, progress: Progress, time_ms: float) -> None:
        """The prompt is so far, that long after it was begun."""
        self._n_cached = progress.cached
        self._n_computed = progress.computed
        self._prompt_ms = time_ms

    def note_tokens(self, n_tokens: int, now_s: float) -> None:
        """So many tokens were drawn."""
        self._n_drawn += n_tokens
        if self._first_at is None:
            self._first_at = now_s

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage.of_counts(prompt=self._n_prompt, cached=self._n_cached, completion=self._n_drawn)

    def timings(self, now_s: float) -> Timings:
        """Times so far."""
        return Timings.of_counts(
            cached=self._n_cached,
            computed=self._n_computed,
            prompt_ms=self._prompt_ms,
            drawn=self._n_drawn,
            drawn_ms=0.0 if self._first_at is None else 1000 * (now_s - self._first_at),
        )
