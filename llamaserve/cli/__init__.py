"""The ``llamaserve`` command: one more client of the engine the server runs on. Main thread."""

from llamaserve.cli.commands import main

__all__ = ["main"]
