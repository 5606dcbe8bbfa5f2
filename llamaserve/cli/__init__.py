"""The ``llamaserve`` command: one more client of the engine the server runs on. Main thread.

Imports nothing heavy, so that a Ctrl-C finds the right handler from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from llamaserve.cli.interrupt import ended_by_ctrl_c

if TYPE_CHECKING:
    from llamaserve.cli.parts import Parts

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, parts: Parts | None = None) -> NoReturn:
    """Run a command line; ``parts`` None takes the real ones. Raises SystemExit, always."""
    with ended_by_ctrl_c():
        from llamaserve.cli.commands import run_command_line  # noqa: PLC0415 - see above

    run_command_line(arguments, parts)
