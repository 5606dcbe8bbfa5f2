"""What a run came to, in tables and sentences; the text and Markdown forms are made of these. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from llamaserve.loadtest.load import Load
from llamaserve.loadtest.outcome import KINDS, Outcome
from llamaserve.loadtest.plan import Plan
from llamaserve.loadtest.summary import Distribution, Goodput, Summary, summarise

PERCENTILE_COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")
UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Section:
    """A title, a table, and what there is to say about it."""

    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


class MeasuredPoint(Protocol):
    """``llamaserve.loadtest.run.Point``, which needs aiohttp."""

    load: Load
    warmup: list[Outcome]
    outcomes: list[Outcome]
    generator_cpu: float


def report(plan: Plan, model: str | None, points: Sequence[MeasuredPoint]) -> list[Section]:
    """Everything there is to show: the setting, each point, and the sweep if there is one."""
    sections = [_setting(plan, model)]
    summaries = []
    for point in points:
        if not point.outcomes:
            sections.append(Section(point.load.title, notes=("no request ended", *_warmup_notes(point.warmup))))
            continue
        summary = summarise(point.outcomes, slo=plan.slo)
        summaries.append((point.load, summary))
        sections.append(_point(point, summary, plan.n_requests))
    if len(summaries) > 1:
        sections.append(_sweep(summaries))
    return sections


def _setting(plan: Plan, model: str | None) -> Section:
    work = plan.workload
    length = "at most" if work.any_length else "exactly"
    shared = f", {work.shared_prefix_tokens} of them shared" if work.shared_prefix_tokens else ""
    return Section(
        f"llamaserve bench {plan.url}",
        notes=(
            f"model {model or 'not named'}, {work.endpoint}, temperature {work.temperature:g}, seed {work.seed}",
            f"about {work.input_tokens} tokens in{shared}, {length} {work.output_tokens} out; "
            f"{plan.n_requests} requests after {plan.n_warmup} to warm up",
        ),
    )


def _point(point: MeasuredPoint, summary: Summary, n_planned: int) -> Section:
    rows = tuple(
        (name, *_milliseconds(distribution))
        for name, distribution in (
            ("TTFT", summary.ttft),
            ("ITL", summary.itl),
            ("TPOT", summary.tpot),
            ("end to end", summary.e2e),
            ("client queue", summary.queue),
        )
    )
    return Section(
        point.load.title,
        ("ms", *PERCENTILE_COLUMNS),
        rows,
        tuple(_notes(point, summary, n_planned)),
    )


def _notes(point: MeasuredPoint, summary: Summary, n_planned: int) -> Iterator[str]:
    early = "" if summary.requests == n_planned else f" (interrupted: {n_planned} were planned)"
    yield f"{summary.requests} requests in {summary.duration:.2f} s{early}: {summary.ok} ok, {summary.n_failed} failed"
    yield from _failure_notes(point.outcomes)
    yield from _warmup_notes(point.warmup)
    if not summary.ok:
        return
    yield _rates(summary)
    yield f"{_tokens('prompt tokens', summary.prompt_tokens)}; {_tokens('of them cached', summary.cached_tokens)}"
    if summary.goodput is not None:
        yield _goodput(summary.goodput, summary.requests)
    share = point.generator_cpu / summary.duration
    yield f"the generator itself used {point.generator_cpu:.2f} s of processor time, {share:.1%} of one core"


def _failure_notes(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for kind in KINDS:
        failures = [outcome.failure for outcome in outcomes if outcome.failure and outcome.failure.kind == kind]
        if failures:
            yield f"failed, {kind}: {len(failures)}, the first: {failures[0].detail}"


def _warmup_notes(warmup: Sequence[Outcome]) -> Iterator[str]:
    for note in _failure_notes(warmup):
        yield f"warm-up {note}"


def _rates(summary: Summary) -> str:
    requests = f"{summary.requests_per_s:.2f} requests/s"
    if summary.without_usage:
        return (
            f"{requests}; tokens/s unknown: {summary.without_usage} of {summary.ok} answers came without token counts, "
            "and their lengths are not checked"
        )
    output, total = summary.output_tokens_per_s, summary.total_tokens_per_s
    both = UNKNOWN if total is None else f"{total:.1f}"
    return f"output {UNKNOWN if output is None else f'{output:.1f}'} tok/s, with prompts {both} tok/s, {requests}"


def _tokens(name: str, distribution: Distribution | None) -> str:
    if distribution is None:
        return f"{name} not reported"
    return f"{name} {distribution.min:.0f} / {distribution.mean:.1f} / {distribution.max:.0f} (min / mean / max)"


def _goodput(goodput: Goodput, n_requests: int) -> str:
    limits = ", ".join(f"{name} ≤ {limit * 1000:g} ms" for name, limit in goodput.slo.limits.items())
    return f"goodput ({limits}): {goodput.per_s:.2f} requests/s, {goodput.requests} of {n_requests} requests"


def _sweep(summaries: Sequence[tuple[Load, Summary]]) -> Section:
    has_goodput = summaries[0][1].goodput is not None
    rows = tuple(
        (
            load.short_title,
            f"{summary.requests_per_s:.2f}",
            UNKNOWN if summary.output_tokens_per_s is None else f"{summary.output_tokens_per_s:.1f}",
            *_two_milliseconds(summary.ttft),
            *_two_milliseconds(summary.itl),
            str(summary.n_failed),
            *((f"{summary.goodput.per_s:.2f}",) if summary.goodput is not None else ()),
        )
        for load, summary in summaries
    )
    header = ("load", "req/s", "tok/s", "TTFT p50", "p99", "ITL p50", "p99", "failed")
    return Section("sweep (times in ms, tok/s of output)", (*header, *(("goodput",) if has_goodput else ())), rows)


def _milliseconds(distribution: Distribution | None) -> tuple[str, ...]:
    if distribution is None:
        return (UNKNOWN,) * len(PERCENTILE_COLUMNS)
    return tuple(milliseconds(getattr(distribution, name)) for name in PERCENTILE_COLUMNS)


def _two_milliseconds(distribution: Distribution | None) -> tuple[str, str]:
    if distribution is None:
        return UNKNOWN, UNKNOWN
    return milliseconds(distribution.p50), milliseconds(distribution.p99)


def milliseconds(seconds: float) -> str:
    """A time with as many digits as it deserves."""
    value = seconds * 1000
    digits = 2 if value < 10 else 1 if value < 1000 else 0
    return f"{value:.{digits}f}"
