"""Report sections as text for a terminal or a pipe, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llamaserve.loadtest.report import Section


def print_sections(console: Console, sections: Sequence[Section]) -> None:
    """Print the sections; long sentences are not broken, so that a script finds them whole."""
    for index, section in enumerate(sections):
        if index:
            console.print()
        console.print(Text(section.title, style="bold"), soft_wrap=True)
        if section.rows:
            console.print(_table(section))
        for note in section.notes:
            console.print(Text(note), soft_wrap=True)


def _table(section: Section) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for index, name in enumerate(section.header):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for row in section.rows:
        table.add_row(*map(Text, row))
    return table


def markdown(sections: Sequence[Section]) -> str:
    """The sections as a Markdown document."""
    return "\n".join(line for section in sections for line in _markdown_lines(section))


def _markdown_lines(section: Section) -> Iterator[str]:
    yield f"## {_escaped(section.title)}"
    yield ""
    if section.rows:
        yield _markdown_row(section.header)
        yield "|---|" + "---:|" * (len(section.header) - 1)
        yield from map(_markdown_row, section.rows)
        yield ""
    for note in section.notes:
        yield f"- {_escaped(note)}"
    if section.notes:
        yield ""


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    """Text that a server or a file name cannot turn into markup."""
    for character in "\\`*_<>|[]":
        text = text.replace(character, "\\" + character)
    return text
