"""How long requests and steps take: the histograms behind ``/metrics``, and the names of their parts.

Times between tokens are measured at engine steps, so a client that reads slowly changes none of them. The scheduler
thread observes; any thread takes a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from llamaserve.telemetry.histogram import Histogram, HistogramSnapshot

# vLLM's own bounds, in seconds: its dashboards ask for these. Ours below contain them all.
VLLM_FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
VLLM_GAP_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
VLLM_REQUEST_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)


def _with(bounds: tuple[float, ...], *more: float) -> tuple[float, ...]:
    return tuple(sorted({*bounds, *more}))


FIRST_TOKEN_BOUNDS = _with(VLLM_FIRST_TOKEN_BOUNDS, 0.002, 0.15, 0.35, 1.5)
GAP_BOUNDS = _with(VLLM_GAP_BOUNDS, 0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.0125, 0.015, 0.02, 0.03, 0.04)
"""Small models give a token in a few milliseconds, which vLLM's first bucket holds all."""
REQUEST_BOUNDS = _with(VLLM_REQUEST_BOUNDS, 0.01, 0.025, 0.05, 0.1, 0.2)
QUEUE_BOUNDS = _with(VLLM_REQUEST_BOUNDS, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2)
STEP_BOUNDS = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)

STEP_PARTS = ("build", "decode", "sample")
"""Filling the batch, the model, drawing tokens."""


@dataclass(frozen=True, slots=True)
class LatencySnapshot:
    """All histograms at one moment, in seconds."""

    queue_wait: HistogramSnapshot
    """Submission to a slot."""
    first_token: HistogramSnapshot
    """Submission to the first token."""
    token_gap: HistogramSnapshot
    """Between two tokens of one request, at engine steps."""
    request: HistogramSnapshot
    """Submission to the end, of requests that finished."""
    step_parts: Mapping[str, HistogramSnapshot]
    """A step's time by part."""


class Latencies:
    """The histograms of one scheduler. Scheduler thread; ``snapshot``: any thread."""

    __slots__ = ("_first_token", "_queue_wait", "_request", "_step_parts", "_token_gap")

    def __init__(self) -> None:
        self._queue_wait = Histogram(QUEUE_BOUNDS)
        self._first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self._token_gap = Histogram(GAP_BOUNDS)
        self._request = Histogram(REQUEST_BOUNDS)
        self._step_parts = tuple(Histogram(STEP_BOUNDS) for _ in STEP_PARTS)

    def observe_queue_wait(self, seconds: float) -> None:
        """A request got its first slot, so long after it was submitted."""
        self._queue_wait.observe(seconds)

    def observe_first_token(self, seconds: float) -> None:
        """A request's first token was drawn, so long after it was submitted."""
        self._first_token.observe(seconds)

    def observe_gap(self, seconds: float) -> None:
        """A request's token was drawn, so long after the one before."""
        self._token_gap.observe(seconds)

    def observe_end(self, seconds: float) -> None:
        """A request finished, so long after it was submitted."""
        self._request.observe(seconds)

    def observe_step(self, build_s: float, decode_s: float, sample_s: float) -> None:
        """A step came back; the parts in the order of ``STEP_PARTS``."""
        for histogram, seconds in zip(self._step_parts, (build_s, decode_s, sample_s), strict=True):
            histogram.observe(seconds)

    def snapshot(self) -> LatencySnapshot:
        """All histograms as they are now."""
        return LatencySnapshot(
            queue_wait=self._queue_wait.snapshot(),
            first_token=self._first_token.snapshot(),
            token_gap=self._token_gap.snapshot(),
            request=self._request.snapshot(),
            step_parts=MappingProxyType(
                {name: part.snapshot() for name, part in zip(STEP_PARTS, self._step_parts, strict=True)}
            ),
        )
