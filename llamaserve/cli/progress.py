"""Downloads and loading on the terminal: a bar where someone looks, a line each where nobody does. On stderr only."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class _Bar:
    """A Rich bar that exists while its ``with`` block runs, on a terminal only."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()


class DownloadBar(_Bar):
    """Size, rate and time left of a download; a ``DownloadProgress``. One thread."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        super().__init__(console, Progress(*columns, console=console, transient=True))
        self._task = self._progress.add_task("", total=None, visible=False)
        self._is_counting = False

    def note(self, text: str) -> None:
        """Say what happens now."""
        self._is_counting = False
        self._progress.update(self._task, description=text, visible=False)
        self._console.print(f"llamaserve: {text}", highlight=False, markup=False, soft_wrap=True)

    def advance(self, done_bytes: int, total_bytes: int | None) -> None:
        """Move the bar."""
        if not self._is_counting:
            # What an earlier run brought is no part of the rate.
            self._progress.reset(self._task, total=total_bytes, completed=done_bytes, visible=True)
            self._is_counting = True
        self._progress.update(self._task, completed=done_bytes, total=total_bytes)


class LoadBar(_Bar):
    """How much of a model is loaded. ``advance`` on the loading thread, ``cancel`` from any."""

    def __init__(self, console: Console, model_name: str) -> None:
        columns = (TextColumn("loading {task.description}"), BarColumn(), TaskProgressColumn())
        super().__init__(console, Progress(*columns, console=console, transient=True))
        self._task = self._progress.add_task(model_name, total=1.0)
        self._cancelled = threading.Event()

    def advance(self, fraction: float) -> bool:
        """Move the bar; whether to go on."""
        self._progress.update(self._task, completed=fraction)
        return not self._cancelled.is_set()

    def cancel(self) -> None:
        """Make the load end soon."""
        self._cancelled.set()
