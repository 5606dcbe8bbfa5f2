"""A run as JSON: exact parameters, figures, and every request. Pure; all times in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from llamaserve.loadtest.load import ClosedLoad, Load
from llamaserve.loadtest.outcome import Outcome
from llamaserve.loadtest.plan import Plan
from llamaserve.loadtest.report import MeasuredPoint
from llamaserve.loadtest.summary import summarise

FORMAT = 1


def record(
    plan: Plan,
    model: str | None,
    points: Sequence[MeasuredPoint],
    *,
    version: str,
    started: str,
    interrupted: bool,
) -> bytes:
    """The JSON document. ``started`` is a date in ISO form."""
    document = {
        "format": FORMAT,
        "command": "llamaserve bench",
        "version": version,
        "started": started,
        "interrupted": interrupted,
        "parameters": _parameters(plan, model),
        "points": [_point(plan, point) for point in points],
    }
    return msgspec.json.encode(document) + b"\n"


def _parameters(plan: Plan, model: str | None) -> dict[str, Any]:
    """Everything that makes the run again, but no header's value: it may be a key."""
    return {
        "url": plan.url,
        "model": model,
        **asdict(plan.workload),
        "requests": plan.n_requests,
        "warmup": plan.n_warmup,
        "loads": [_load(load) for load in plan.loads],
        "slo": None if plan.slo is None else plan.slo.limits,
        "stall_timeout": plan.stall_timeout,
        "headers": sorted(plan.headers),
    }


def _load(load: Load) -> dict[str, Any]:
    if isinstance(load, ClosedLoad):
        return {"loop": "closed", "concurrency": load.concurrency}
    return {"loop": "open", "request_rate": load.rate}


def _point(plan: Plan, point: MeasuredPoint) -> dict[str, Any]:
    outcomes = point.outcomes
    start = min((outcome.submitted for outcome in outcomes), default=0.0)
    return {
        "load": _load(point.load),
        "summary": asdict(summarise(outcomes, slo=plan.slo)) if outcomes else None,
        "generator_cpu": point.generator_cpu,
        "warmup_failures": [asdict(outcome.failure) for outcome in point.warmup if outcome.failure],
        "requests": [_request(outcome, start) for outcome in outcomes],
    }


def _request(outcome: Outcome, start: float) -> dict[str, Any]:
    """One request: ``submitted`` after the point's start, all else after its own submission."""
    submitted = outcome.submitted
    return {
        "submitted": _rounded(submitted - start),
        "queue": _rounded(outcome.queue),
        "ttft": _rounded(outcome.ttft),
        "tpot": _rounded(outcome.tpot),
        "e2e": _rounded(outcome.e2e),
        "finished": _rounded(outcome.finished - submitted),
        "token_times": [_rounded(time - submitted) for time in outcome.token_times],
        "prompt_tokens": outcome.prompt_tokens,
        "cached_tokens": outcome.cached_tokens,
        "completion_tokens": outcome.completion_tokens,
        "failure": None if outcome.failure is None else asdict(outcome.failure),
        "text": outcome.text,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 7)
