"""The command line all scenarios share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llamaserve.config import usable_cores
from llamaserve.models import DEFAULT_MODEL, resolve

RESULTS = Path("bench") / "results"


@dataclass(frozen=True)
class Options:
    """What the command line said."""

    model: Path
    rounds: int
    threads: int
    results: Path
    is_quick: bool
    """Fewer tokens and requests, to see that the scenario runs; what it measures is printed and never published."""
    command: str
    """The command line, for the report."""


def read_options(
    description: str | None,
    *,
    rounds: int,
    default_model: Callable[[], Path] = lambda: resolve(DEFAULT_MODEL),
) -> Options:
    """Read ``sys.argv``; ``rounds`` is the scenario's default, ``default_model`` finds the model without ``-m``.

    Exits with 2 for bad options. Raises ModelLoad.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="a .gguf file or a known model (default: the scenario's)")
    parser.add_argument("--rounds", type=_positive, default=rounds, help="rounds of every arm (default: %(default)s)")
    parser.add_argument(
        "-t", "--threads", type=_positive, default=usable_cores(), help="of every server (default: %(default)s)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of results (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a short run to see that it works; publishes nothing")
    given = parser.parse_args()
    model = default_model() if given.model is None else resolve(given.model)
    command = shown_command(Path(sys.argv[0]).stem, sys.argv[1:])
    return Options(model, given.rounds, given.threads, given.results, given.quick, command)


def shown_command(scenario: str, arguments: Sequence[str]) -> str:
    """A command line for others to repeat: of paths only the last part, since theirs are elsewhere."""
    return " ".join([f"python -m bench.{scenario}", *(Path(a).name if "/" in a else a for a in arguments)])


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value
