"""How deep the terminals of a Lark grammar refer to each other. Pure.

llguidance writes a terminal out with all that it refers to, recursing, so a long chain of them would take the stack of
the thread that compiles it or computes its masks.
"""

from __future__ import annotations

import re

from llamaserve.errors import BadGrammar

MAX_DEPTH = 500
"""References behind each other, and the brackets around them. 3,000 were seen to fit into a stack of 8 MiB."""

_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|\\.')
_TERMINAL = re.compile(r"^[ \t]*([A-Z_][A-Z0-9_]*)(?:\.-?\d+)?[ \t]*:", re.MULTILINE)
_NAME = re.compile(r"\b[A-Z_][A-Z0-9_]*\b")


def check_depth(source: str) -> None:
    """Raises BadGrammar for terminals that are too deep. What stands in a text or a regular expression may count as a
    name: that makes a grammar look deeper, never less deep."""
    bodies = _bodies(source)
    depths: dict[str, int] = {}
    begun: set[str] = set()
    for first in bodies:
        waiting = [first]
        while waiting:
            name = waiting[-1]
            if name in depths:
                waiting.pop()
                continue
            names = [other for other in _NAME.findall(bodies[name]) if other in bodies]
            if name not in begun:
                begun.add(name)
                # One that refers to itself is llguidance's to refuse.
                waiting += [other for other in names if other not in begun]
                continue
            waiting.pop()
            deepest = max((depths.get(other, 0) for other in names), default=0)
            depths[name] = 1 + _brackets(bodies[name]) + deepest
            if depths[name] > MAX_DEPTH:
                raise BadGrammar(f"the grammar's terminals refer to each other more than {MAX_DEPTH} deep")


def _bodies(source: str) -> dict[str, str]:
    """What follows each terminal, up to the next."""
    matches = list(_TERMINAL.finditer(source))
    ends = [*(match.start() for match in matches[1:]), len(source)]
    return {match[1]: source[match.end() : end] for match, end in zip(matches, ends[: len(matches)], strict=True)}


def _brackets(body: str) -> int:
    """How deep they are; llguidance itself refuses what goes very deep, so a text that hides some does no harm."""
    depth = deepest = 0
    for character in _LITERAL.sub("", body):
        if character in "([":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]":
            depth -= 1
    return deepest
