"""What comes in from the terminal or a pipe. Main thread."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import TextIO

import typer


def read_prompt(stdin: TextIO) -> str:
    """All of standard input, which must be UTF-8 whatever the locale. Raises typer.BadParameter."""
    return _decoded(stdin.buffer.read(), "standard input")


def reader_of_lines(stdin: TextIO) -> Callable[[], str]:
    """Reads the user's lines: with editing and history on a terminal, plain from a pipe, which must be
    UTF-8 whatever the locale. What is returned raises EOFError at the end, and typer.BadParameter."""
    if stdin.isatty():
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")  # gives input() editing; some Pythons have none
        return lambda: input("> ")
    return lambda: _next_line(stdin)


def _next_line(stdin: TextIO) -> str:
    line = stdin.buffer.readline()
    if not line:
        raise EOFError
    return _decoded(line, "a line of standard input")


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from error
