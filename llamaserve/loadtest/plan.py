"""A whole benchmark before it runs: where, what, how hard, how often. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from llamaserve.errors import ConfigError
from llamaserve.loadtest.arrivals import poisson
from llamaserve.loadtest.call import DEFAULT_STALL_TIMEOUT, Call
from llamaserve.loadtest.load import ClosedLoad, Load
from llamaserve.loadtest.prompts import most_prompts
from llamaserve.loadtest.slo import Slo
from llamaserve.loadtest.workload import Workload


def server_url(text: str) -> str:
    """The server's URL as requests are added to it: without slash and ``/v1`` at its end. Raises ConfigError."""
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if (
        not is_good
        or parts.username is not None
        or parts.query
        or parts.fragment
        or not text.isprintable()
        or " " in text
    ):
        raise ConfigError(f"{text!r} is no server's URL: it must be like http://127.0.0.1:8080")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a benchmark does. Raises ConfigError for values that cannot work."""

    url: str
    workload: Workload = field(default_factory=Workload)
    loads: tuple[Load, ...] = (ClosedLoad(1),)
    """The points of the sweep, run one after another."""
    n_requests: int = 32
    """Measured requests of each point."""
    n_warmup: int = 1
    """Requests before each point, at its concurrency (one at a time before an open loop); not in the figures."""
    model: str | None = None
    """None asks the server for the first model it lists."""
    slo: Slo | None = None
    stall_timeout: float = DEFAULT_STALL_TIMEOUT
    """Seconds without an event after which a request has failed."""
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.loads:
            raise ConfigError("the sweep has 0 points: there must be at least 1")
        if self.n_requests < 1:
            raise ConfigError(f"requests are {self.n_requests}: there must be at least 1")
        if self.n_warmup < 0:
            raise ConfigError(f"warm-up requests are {self.n_warmup}: there must be at least 0")
        if not 0 < self.stall_timeout < math.inf:
            raise ConfigError(f"the stall timeout is {self.stall_timeout}: it must be a number of seconds above 0")
        n_prompts, limit = self._stride * len(self.loads), most_prompts(self.workload.own_tokens)
        if n_prompts > limit:
            raise ConfigError(
                f"{n_prompts} requests need {n_prompts} different prompts: with {self.workload.own_tokens} tokens that "
                f"are not shared there are {limit}"
            )

    @property
    def _stride(self) -> int:
        return self.n_warmup + self.n_requests

    def warmup_calls(self, point: int, model: str | None) -> list[Call]:
        """The requests before a point; no prompt comes twice in a run."""
        start = point * self._stride
        return [self.workload.call(number, model) for number in range(start, start + self.n_warmup)]

    def calls(self, point: int, model: str | None) -> list[Call]:
        """The measured requests of a point, with their times if its loop is open."""
        load = self.loads[point]
        numbers = range(point * self._stride + self.n_warmup, (point + 1) * self._stride)
        if isinstance(load, ClosedLoad):
            return [self.workload.call(number, model) for number in numbers]
        arrivals = poisson(load.rate, self.n_requests, self.workload.seed + point)
        return [self.workload.call(number, model, at) for number, at in zip(numbers, arrivals, strict=True)]
