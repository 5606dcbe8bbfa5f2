"""Answers requests the model has nothing to do for: their answer is their prompt. Event loop only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llamaserve.api.sse import Take
from llamaserve.request import Finished, FinishReason, GenerationRequest, Timings


def answer_at_once(requests: Sequence[GenerationRequest], takes: Sequence[Take]) -> Callable[[], None]:
    """As ``Service.listen``, with the end of each request before it returns."""
    for request, take in zip(requests, takes, strict=True):
        take(Finished(FinishReason.LENGTH, None, len(request.prompt), 0, Timings(0.0, 0.0, 0.0)))
    return _nothing_runs


def _nothing_runs() -> None:
    """There is nothing to end."""
