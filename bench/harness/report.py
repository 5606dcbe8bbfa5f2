"""What a scenario found: printed, written as Markdown, JSON and a plot, joined with the other scenarios' results."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.machine import commit, description, result_key
from bench.harness.machine_load import LoadSnapshot, others_text
from bench.harness.options import RESULTS
from llamaserve import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_AT_START = LoadSnapshot.now()


@dataclass(frozen=True)
class Table:
    """Rows of cells that are text already; the first column is left-aligned, the others right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Raises ValueError for a row that has another number of cells than there are columns."""
        wrong = [row for row in self.rows if len(row) != len(self.columns)]
        if wrong:
            raise ValueError(f"a row of {self.title!r} has {len(wrong[0])} cells, not {len(self.columns)}: {wrong[0]}")
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.columns, rule, *self.rows)]
        return "\n".join([f"{self.title}:", "", *lines])


@dataclass
class Report:
    """One run of a scenario."""

    scenario: str
    question: str
    """One sentence: what the figures show."""
    command: str
    setting: str
    tables: list[Table] = field(default_factory=list)
    raw: Mapping[str, Any] = field(default_factory=dict)
    """What the tables were made of, for JSON."""
    notes: list[str] = field(default_factory=list)
    not_engaged: list[str] = field(default_factory=list)
    """Arms without a figure: "name: why"."""
    results: Path = RESULTS
    is_quick: bool = False
    """A short run: printed, never written."""

    def markdown(self, *, has_plot: bool) -> str:
        """The scenario's own page."""
        parts = [f"# {self.scenario}", self.question, f"`{self.command}`: {self.setting}."]
        parts += [table.markdown() for table in self.tables]
        parts += [f"**Did not engage:** {arm}." for arm in self.not_engaged]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        if has_plot:
            parts.append(f"![{self.scenario}]({self.scenario}.png)")
        return "\n\n".join(parts) + "\n"

    def json(self) -> str:
        """Everything, with the machine."""
        facts = {
            "scenario": self.scenario,
            "version": __version__,
            "commit": commit(),
            "machine": description(),
            "command": self.command,
            "setting": self.setting,
            "not_engaged": self.not_engaged,
            "notes": self.notes,
            "tables": [{"title": t.title, "columns": list(t.columns), "rows": list(t.rows)} for t in self.tables],
            "raw": self.raw,
        }
        return json.dumps(facts, indent=1, ensure_ascii=False) + "\n"


def publish(report: Report, draw: Callable[[Figure], None] | None) -> Path:
    """Print the report; unless the run was quick, write it with its plot and rebuild the joined page.

    ``draw`` fills an empty figure; None makes no plot. Returns the scenario's page (of a quick run: where it would
    be). Exits with 1, after all that, when an arm did not engage.
    """
    others = others_text(_AT_START, LoadSnapshot.now())
    if others is not None:
        report.notes.append(others)
    page = report.results / result_key() / f"{report.scenario}.md"
    print(report.markdown(has_plot=False))
    if report.is_quick:
        print("a quick run: nothing is published", file=sys.stderr)
    else:
        _write(report, page, draw)
        print(f"written: {page}", file=sys.stderr)
    if report.not_engaged:
        print(f"did not engage: {'; '.join(report.not_engaged)}", file=sys.stderr)
        sys.exit(1)
    return page


def joined(title: str, facts: Mapping[str, str], pages: Mapping[str, str], folder: str) -> str:
    """One page of all scenarios' pages, by name; headings move down, plots are found in ``folder``."""
    machine = "\n".join(f"- {name}: {fact}" for name, fact in facts.items())
    parts = [f"# {title}", machine]
    for text in pages.values():
        moved = re.sub(r"^(#+ )", r"#\1", text, flags=re.MULTILINE)
        parts.append(re.sub(r"\]\(([\w.-]+\.png)\)", rf"]({folder}/\1)", moved).strip())
    return "\n\n".join(parts) + "\n"


def _write(report: Report, page: Path, draw: Callable[[Figure], None] | None) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    if draw is not None:
        from bench.harness.plot import save_plot  # noqa: PLC0415 - matplotlib takes a second, and tests have none

        save_plot(draw, page.with_suffix(".png"))
    page.with_suffix(".json").write_text(report.json(), encoding="utf-8")
    page.write_text(report.markdown(has_plot=draw is not None), encoding="utf-8")
    key = page.parent.name
    pages = {path.stem: path.read_text(encoding="utf-8") for path in sorted(page.parent.glob("*.md"))}
    title = f"{__version__} at {commit()}"
    page.parent.with_name(f"{key}.md").write_text(joined(title, description(), pages, key), encoding="utf-8")
