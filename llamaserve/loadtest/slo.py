"""Limits that a good answer keeps. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

from llamaserve.errors import ConfigError
from llamaserve.loadtest.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits a request must keep, in seconds; None sets no limit."""

    ttft: float | None = None
    itl: float | None = None
    """For the longest gap of the request."""
    tpot: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Slo:
        """Limits from texts like "ttft:500", in milliseconds. Raises ConfigError."""
        names = [field.name for field in fields(cls)]
        limits: dict[str, float] = {}
        for text in texts:
            name, _, number = text.partition(":")
            if name not in names:
                raise ConfigError(f"{text!r} limits {name!r}: it must be one of {', '.join(names)}, as in ttft:500")
            if name in limits:
                raise ConfigError(f"{text!r} is the second limit for {name}: there may be one")
            try:
                milliseconds = float(number)
            except ValueError:
                milliseconds = math.nan
            if not 0 < milliseconds < math.inf:
                raise ConfigError(f"{text!r} has the limit {number!r}: it must be a number of milliseconds above 0")
            limits[name] = milliseconds / 1000
        return cls(**limits)

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def is_met_by(self, outcome: Outcome) -> bool:
        """Whether a request that ended well kept every limit.

        Gaps and tokens that do not exist break no limit; figures that are unknown do: without text no TTFT is kept, and
        without the server's token count no TPOT.
        """
        has_one_token = outcome.completion_tokens is not None and outcome.completion_tokens < 2
        values = {
            "ttft": outcome.ttft,
            "itl": max(outcome.itl, default=0.0),
            "tpot": 0.0 if has_one_token else outcome.tpot,
            "e2e": outcome.e2e,
        }
        for name, limit in self.limits.items():
            value = values[name]
            if value is None or value > limit:
                return False
        return True
