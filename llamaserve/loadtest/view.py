"""What is shown while a benchmark runs: a bar where someone looks, a line now and then where nobody does.

The generator shares its cores with the server, so a view only counts; the bar is drawn twice a second.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from llamaserve.loadtest.outcome import Outcome

if TYPE_CHECKING:
    from typing_extensions import Self

LINES_A_PART = 10


class View(Protocol):
    """Is told what happens."""

    def part(self, title: str, n_requests: int) -> None:
        """A part of the run begins: so many requests."""

    def tokens(self, n_events: int) -> None:
        """So many events with text have come."""

    def outcome(self, outcome: Outcome) -> None:
        """A request is over."""


class NoView:
    """Shows nothing."""

    def part(self, title: str, n_requests: int) -> None:
        """See View."""

    def tokens(self, n_events: int) -> None:
        """See View."""

    def outcome(self, outcome: Outcome) -> None:
        """See View."""


class _Counts:
    """Where a part of the run stands."""

    def __init__(self, title: str, n_requests: int) -> None:
        self.title = title
        self.n_requests = n_requests
        self.n_done = 0
        self.n_failed = 0
        self.n_events = 0
        self._started = time.perf_counter()

    def outcome(self, outcome: Outcome) -> None:
        self.n_done += 1
        self.n_failed += outcome.failure is not None

    @property
    def figures(self) -> str:
        """Rate and failures so far. An event is nearly always one token; the report counts tokens."""
        elapsed = max(time.perf_counter() - self._started, 1e-9)
        return f"{self.n_events / elapsed:.1f} tok/s, {self.n_failed} failed"


class LineView:
    """A line each tenth of a part's requests."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._counts = _Counts("", 0)

    def part(self, title: str, n_requests: int) -> None:
        """See View."""
        self._counts = _Counts(title, n_requests)

    def tokens(self, n_events: int) -> None:
        """See View."""
        self._counts.n_events += n_events

    def outcome(self, outcome: Outcome) -> None:
        """See View."""
        counts = self._counts
        tenths_before = counts.n_done * LINES_A_PART // counts.n_requests
        counts.outcome(outcome)
        if counts.n_done * LINES_A_PART // counts.n_requests > tenths_before:
            line = f"llamaserve: {counts.title}: {counts.n_done}/{counts.n_requests} done, {counts.figures}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class BarView:
    """A bar for the part that runs, on a terminal."""

    def __init__(self, console: Console) -> None:
        self._counts = _Counts("", 0)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _Figures(self),
            console=console,
            transient=True,
            refresh_per_second=2,
        )
        self._task = self._progress.add_task("", visible=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @property
    def figures(self) -> str:
        """Rate and failures so far."""
        return self._counts.figures

    def refresh(self) -> None:
        """Draw now."""
        self._progress.refresh()

    def part(self, title: str, n_requests: int) -> None:
        """See View."""
        self._counts = _Counts(title, n_requests)
        self._progress.reset(self._task, total=n_requests, description=title, visible=True)

    def tokens(self, n_events: int) -> None:
        """See View."""
        self._counts.n_events += n_events

    def outcome(self, outcome: Outcome) -> None:
        """See View."""
        self._counts.outcome(outcome)
        self._progress.update(self._task, completed=self._counts.n_done)


class _Figures(TextColumn):
    """Asks the view when it is drawn, so that a token costs no drawing."""

    def __init__(self, view: BarView) -> None:
        super().__init__("")
        self._view = view

    def render(self, task: Task) -> Text:
        """The figures as they stand."""
        return Text(self._view.figures)
