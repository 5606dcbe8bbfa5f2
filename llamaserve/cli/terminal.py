"""What comes in from the terminal or a pipe. Main thread."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import TextIO

import typer


def read_prompt(stdin: TextIO) -> str:
    """All of standard input, which must be UTF-8 whatever the locale. Raises typer.BadParameter."""
    try:
        return stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(
            f"standard input is not UTF-8: {error.reason} at byte {error.start}", param_hint="PROMPT"
        ) from error


def reader_of_lines(stdin: TextIO) -> Callable[[], str]:
    """Reads the user's lines: with editing and history on a terminal, plain from a pipe. Raises EOFError at the end."""
    if stdin.isatty():
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")  # gives input() editing; some Pythons have none
        return lambda: input("> ")
    return lambda: _next_line(stdin)


def _next_line(stdin: TextIO) -> str:
    line = stdin.readline()
    if not line:
        raise EOFError
    return line
