"""Figures over many outcomes. Pure; seconds and tokens throughout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llamaserve.loadtest.outcome import KINDS, Outcome
from llamaserve.loadtest.slo import Slo


@dataclass(frozen=True, slots=True)
class Distribution:
    """A list of values in nine numbers. Percentiles interpolate linearly between the two nearest values; ``std`` is
    that of the whole list, not of a sample."""

    count: int
    mean: float
    std: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution:
        """The distribution of some values. Raises ValueError if there are none."""
        ordered = sorted(values)
        if not ordered:
            raise ValueError("a distribution needs at least 1 value")
        mean = math.fsum(ordered) / len(ordered)
        return cls(
            count=len(ordered),
            mean=mean,
            std=math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)),
            min=ordered[0],
            p50=_percentile(ordered, 0.50),
            p90=_percentile(ordered, 0.90),
            p95=_percentile(ordered, 0.95),
            p99=_percentile(ordered, 0.99),
            max=ordered[-1],
        )


def _percentile(ordered: Sequence[float], fraction: float) -> float:
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that ended well within the limits."""

    slo: Slo
    requests: int
    per_s: float
    fraction: float
    """Of all requests, failed ones included."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to. Latencies are of the requests that did not fail; TPOT, end-to-end and token counts leave out
    abandoned ones too. None stands for "no such value" and for counts the server did not report."""

    duration: float
    """First submission to last end, of failed requests too."""
    requests: int
    ok: int
    """Answered in full, as asked."""
    abandoned: int
    failed: Mapping[str, int]
    """Counts by kind; kinds that did not occur are left out."""
    without_usage: int
    """Of ``ok``, those whose server sent no ``completion_tokens``: their length is not checked, no rate is given."""
    ttft: Distribution | None
    itl: Distribution | None
    """All gaps of all requests in one list."""
    tpot: Distribution | None
    e2e: Distribution | None
    queue: Distribution | None
    """The generator's own lag. How long the server let a request wait is not visible from outside; it is in TTFT."""
    prompt_tokens: Distribution | None
    cached_tokens: Distribution | None
    completion_tokens: Distribution | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    """Prompt and output tokens together."""
    requests_per_s: float
    goodput: Goodput | None

    @property
    def n_failed(self) -> int:
        """Failed requests of all kinds."""
        return sum(self.failed.values())


def summarise(outcomes: Sequence[Outcome], *, slo: Slo | None = None) -> Summary:
    """Figures over a run's outcomes. Raises ValueError if there are none."""
    if not outcomes:
        raise ValueError("a summary needs at least 1 outcome")
    duration = max(outcome.finished for outcome in outcomes) - min(outcome.submitted for outcome in outcomes)
    duration = max(duration, 1e-9)
    timed = [outcome for outcome in outcomes if outcome.failure is None]
    ok = [outcome for outcome in timed if not outcome.is_abandoned]
    counts = Counter(outcome.failure.kind for outcome in outcomes if outcome.failure is not None)
    n_prompt, n_output = _total(o.prompt_tokens for o in ok), _total(o.completion_tokens for o in ok)
    return Summary(
        duration=duration,
        requests=len(outcomes),
        ok=len(ok),
        abandoned=len(timed) - len(ok),
        failed={kind: counts[kind] for kind in KINDS if kind in counts},
        without_usage=sum(outcome.completion_tokens is None for outcome in ok),
        ttft=_known(outcome.ttft for outcome in timed),
        itl=_known(gap for outcome in timed for gap in outcome.itl),
        tpot=_known(outcome.tpot for outcome in ok),
        e2e=_known(outcome.e2e for outcome in ok),
        queue=_known(outcome.queue for outcome in timed),
        prompt_tokens=_known(outcome.prompt_tokens for outcome in ok),
        cached_tokens=_known(outcome.cached_tokens for outcome in ok),
        completion_tokens=_known(outcome.completion_tokens for outcome in ok),
        output_tokens_per_s=None if n_output is None else n_output / duration,
        total_tokens_per_s=None if n_output is None or n_prompt is None else (n_prompt + n_output) / duration,
        requests_per_s=len(ok) / duration,
        goodput=None if slo is None else _goodput(ok, len(outcomes), duration, slo),
    )


def _known(values: Iterable[float | None]) -> Distribution | None:
    known = [value for value in values if value is not None]
    return Distribution.of(known) if known else None


def _total(values: Iterable[int | None]) -> int | None:
    """The sum, or None if one value is unknown: a sum of the others would look like a slower server."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _goodput(ok: Sequence[Outcome], n_requests: int, duration: float, slo: Slo) -> Goodput:
    n_good = sum(slo.is_met_by(outcome) for outcome in ok)
    return Goodput(slo, n_good, n_good / duration, n_good / n_requests)
