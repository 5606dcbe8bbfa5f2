"""``llamaserve bench``: runs a plan against a server, shows it, writes it down. Main thread.

Ends with 0 if every request was answered as asked, 1 if one failed, 2 for wrong usage and without aiohttp, 130 after
Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from llamaserve import __version__
from llamaserve.cli.bench_flags import LoadFlags, OutputFlags, RequestFlags, ServerFlags, plan_of
from llamaserve.cli.flag_groups import with_flag_groups
from llamaserve.cli.interrupt import ended_by_ctrl_c
from llamaserve.errors import ConfigError
from llamaserve.loadtest.event_loop import run as run_on_loop
from llamaserve.loadtest.plan import Plan
from llamaserve.loadtest.record import record
from llamaserve.loadtest.render import markdown, print_sections
from llamaserve.loadtest.report import report
from llamaserve.loadtest.view import BarView, LineView, NoView, View

if TYPE_CHECKING:
    from llamaserve.loadtest.run import Point, Run

ENDED_BY_CTRL_C = 128 + 2  # what a shell reports of a program that SIGINT ended


@with_flag_groups
def bench(
    *,
    url: Annotated[str, typer.Argument(metavar="URL", help="A server with OpenAI's API: http://127.0.0.1:8080.")],
    load: LoadFlags,
    request: RequestFlags,
    server: ServerFlags,
    output: OutputFlags,
) -> None:
    """Measure a server: latency and throughput under a load."""
    try:
        plan = plan_of(url, load, request, server, output)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    run_class = _run_class()
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    with _view(output.quiet) as view:
        run = run_class(plan, view)
        was_interrupted = _ended_by_ctrl_c(run)
    _show(plan, run, output, started=started, was_interrupted=was_interrupted)
    if was_interrupted:
        raise typer.Exit(ENDED_BY_CTRL_C)
    if _has_failures(run.points):
        raise typer.Exit(1)


def _run_class() -> type[Run]:
    """The part that sends. Raises typer.Exit without the HTTP client, which is an extra."""
    try:
        with ended_by_ctrl_c():
            from llamaserve.loadtest.run import Run  # noqa: PLC0415 - needs aiohttp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "aiohttp":
            raise
        print('llamaserve: error: bench needs aiohttp: pip install "llamaserve[bench]"', file=sys.stderr)
        raise typer.Exit(2) from error
    return Run


def _ended_by_ctrl_c(run: Run) -> bool:
    """Run to the end or to a Ctrl-C; whether it was the latter."""
    try:
        run_on_loop(run.run())
    except KeyboardInterrupt:
        return True
    return False


@contextmanager
def _view(is_quiet: bool) -> Iterator[View]:
    console = Console(stderr=True)
    if is_quiet:
        yield NoView()
    elif console.is_terminal:
        with BarView(console) as view:
            yield view
    else:
        yield LineView(console)


def _show(plan: Plan, run: Run, output: OutputFlags, *, started: str, was_interrupted: bool) -> None:
    """Files first: they must not be lost to a closed pipe. Raises ConfigError, when all was shown, for a file that
    could not be written."""
    sections = report(plan, run.model, run.points)
    unwritten: list[OSError] = []
    if output.json_path is not None:
        document = record(
            plan, run.model, run.points, version=__version__, started=started, interrupted=was_interrupted
        )
        unwritten += _write(output.json_path, document)
    if output.markdown_path is not None:
        unwritten += _write(output.markdown_path, markdown(sections).encode())
    print_sections(Console(), sections)
    if unwritten:
        raise ConfigError(f"not written: {'; '.join(str(error) for error in unwritten)}")


def _write(path: Path, data: bytes) -> list[OSError]:
    try:
        path.write_bytes(data)
    except OSError as error:
        return [error]
    return []


def _has_failures(points: Sequence[Point]) -> bool:
    return any(outcome.failure for point in points for outcome in (*point.warmup, *point.outcomes))
