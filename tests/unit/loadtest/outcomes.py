"""Outcomes made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.loadtest.call import Call
from llamaserve.loadtest.outcome import Failure, Kind, Outcome


def outcome(
    *gaps: float,
    submitted: float = 100.0,
    queue: float = 0.0,
    tokens: int | None = None,
    prompt: int | None = 10,
    cached: int | None = None,
    finished: float | None = None,
    failure: Kind | None = None,
    stop_after: int | None = None,
    text: str = "text",
) -> Outcome:
    """``gaps`` are the time to the first event and then the gaps between events; ``tokens`` None counts the events."""
    times: list[float] = []
    for gap in gaps:
        times.append((times[-1] if times else submitted) + gap)
    return Outcome(
        call=Call({"prompt": "x"}, stop_after=stop_after),
        submitted=submitted,
        sent=submitted + queue,
        token_times=tuple(times),
        finished=finished if finished is not None else (times[-1] if times else submitted),
        text=text,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=len(gaps) if tokens is None else tokens,
        failure=None if failure is None else Failure(failure, "why"),
    )


def without_usage(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The same from a server that reports no counts."""
    return [
        Outcome(o.call, o.submitted, o.sent, o.token_times, o.finished, o.text, None, None, None, o.failure)
        for o in outcomes
    ]
