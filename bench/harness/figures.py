"""Figures of one run of requests. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from llamaserve.loadtest.outcome import Outcome


def require_complete(outcomes: Sequence[Outcome], who: str) -> None:
    """Raises RuntimeError, counting failures by kind, unless every answer came whole and with the expected length.

    An answer without a token count fails too: its length is not known.
    """
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    if failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(f.kind for f in failures).items())
        raise RuntimeError(f"{who}: {len(failures)} of {len(outcomes)} requests failed ({kinds}): {failures[0].detail}")
    if any(outcome.completion_tokens is None or not outcome.token_times for outcome in outcomes):
        raise RuntimeError(f"{who}: an answer has no text or no usage, so its length cannot be checked")


def decode_rate(outcomes: Sequence[Outcome]) -> float:
    """Tokens a second of all streams, while all of them run: from the last first token to the first last one.

    Before, some prompts may still be computed, which is no decoding; after, the step has fewer rows. A piece of text
    counts as as many tokens as its stream's pieces have on average. The outcomes must have run together.
    """
    first = max(outcome.token_times[0] for outcome in outcomes)
    last = min(outcome.token_times[-1] for outcome in outcomes)
    return sum(_n_tokens_within(outcome, first, last) for outcome in outcomes) / (last - first)


def _n_tokens_within(outcome: Outcome, first: float, last: float) -> float:
    times = outcome.token_times
    n_pieces = sum(first < time <= last for time in times)
    return n_pieces * ((outcome.completion_tokens or 0) - 1) / (len(times) - 1)


def ran_together(outcomes: Sequence[Outcome]) -> bool:
    """Whether there was a moment at which every stream had begun and none had ended."""
    return max(outcome.token_times[0] for outcome in outcomes) < min(outcome.token_times[-1] for outcome in outcomes)


def pooled_itl(outcomes: Sequence[Outcome]) -> list[float]:
    """The gaps between tokens of all streams, in seconds."""
    return [gap for outcome in outcomes for gap in outcome.itl]


def computed_prompt_tokens(outcomes: Sequence[Outcome]) -> int:
    """Prompt tokens that were computed, over all requests."""
    return sum((outcome.prompt_tokens or 0) - (outcome.cached_tokens or 0) for outcome in outcomes)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Median, smallest and largest, for a table."""
    low, middle, high = (f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low}..{high})"


def milliseconds(values: Sequence[float], digits: int = 1) -> str:
    """``spread`` of seconds, in ms."""
    return spread([value * 1000 for value in values], digits)
