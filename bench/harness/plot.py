"""Plots without a display: one small PNG a scenario."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INCHES = (8.0, 4.5)
DOTS_PER_INCH = 100
MAX_BYTES = 100_000  # it is committed


def save_plot(draw: Callable[[Figure], None], path: Path) -> None:
    """Let ``draw`` fill a figure, and write it. Raises ValueError when the file is larger than is committed."""
    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    figure.savefig(path, metadata={"Software": None})
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes: at most {MAX_BYTES} are committed")
