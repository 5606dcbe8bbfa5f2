"""How hard the server is asked: one point of a sweep, and a sweep out of a flag's text. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llamaserve.errors import ConfigError

MAX_CONCURRENCY = 10_000

LEAST_RATE = 0.001  # a request in a quarter of an hour: who asks for less means something else
MOST_RATE = 100_000


@dataclass(frozen=True, slots=True)
class ClosedLoad:
    """So many requests at any time: a new one starts when one ends."""

    concurrency: int

    @property
    def title(self) -> str:
        """As reports show it."""
        return f"concurrency {self.concurrency}"

    @property
    def short_title(self) -> str:
        """As tables show it."""
        return f"{self.concurrency} at once"


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """Requests that arrive by themselves, so many a second on average, whether or not the server keeps up."""

    rate: float

    @property
    def title(self) -> str:
        """As reports show it."""
        return f"{self.rate:g} requests/s"

    @property
    def short_title(self) -> str:
        """As tables show it."""
        return f"{self.rate:g}/s"


Load = ClosedLoad | OpenLoad


def parse_concurrencies(text: str) -> tuple[ClosedLoad, ...]:
    """A sweep like "1,2,4". Raises ConfigError."""
    loads = []
    for part in text.split(","):
        number = part.strip()
        # The digits are counted first: Python refuses to convert thousands of them.
        value = int(number) if number.isdecimal() and len(number) <= 9 else 0
        if not 1 <= value <= MAX_CONCURRENCY:
            raise ConfigError(f"{text!r} has {number!r}: a concurrency is a whole number from 1 to {MAX_CONCURRENCY}")
        loads.append(ClosedLoad(value))
    return tuple(loads)


def parse_rates(text: str) -> tuple[OpenLoad, ...]:
    """A sweep like "0.5,1,2". Raises ConfigError."""
    loads = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not LEAST_RATE <= value <= MOST_RATE:
            raise ConfigError(
                f"{text!r} has {part.strip()!r}: a rate is a number of requests a second "
                f"from {LEAST_RATE} to {MOST_RATE}"
            )
        loads.append(OpenLoad(value))
    return tuple(loads)
