"""How deep and how wide JSON values are. Pure; any thread."""

from __future__ import annotations

MAX_LEVELS = 200
"""Objects and arrays in each other: what reads a body further on, in whatever language, recurses."""
MAX_WIDTH = 2**19
"""Objects and arrays at one level, in the whole value: each is checked and converted by itself, which takes a
microsecond. Twice as many as the largest vocabularies have tokens, since a bias may be a pair for each."""


def shape_fault(value: object, most_levels: int = MAX_LEVELS, most_wide: int = MAX_WIDTH) -> str | None:
    """What is wrong with the shape of a value, if anything. Never recurses, whatever the value."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(most_levels):
        if not level:
            return None
        if len(level) > most_wide:
            return f"{len(level)} objects and arrays stand side by side, at most {most_wide} may"
        level = [inner for outer in level for inner in _items(outer) if isinstance(inner, (dict, list))]
    return f"its JSON is nested more than {most_levels} levels deep" if level else None


def _items(container: dict[str, object] | list[object]) -> list[object]:
    return list(container.values()) if isinstance(container, dict) else container
