"""How deep JSON is, and how many objects and arrays it has. Pure; any thread."""

from __future__ import annotations

import re

MAX_LEVELS = 200
"""Objects and arrays in each other: what reads a body further on, in whatever language, recurses."""
MAX_CONTAINERS = 2**19
"""Objects and arrays in all: Python needs a microsecond and more for each. The largest vocabularies have half as many
tokens, and a bias may be a pair for each."""
_STRING = re.compile(rb'"[^"]*"')


def has_too_many_containers(body: bytes, most: int = MAX_CONTAINERS) -> bool:
    """Whether JSON has more objects and arrays than that; said without decoding it."""
    if _n_opened(body) <= most:
        return False
    # Those in texts do not count. What is escaped in a text goes first, so that every quote left begins one or ends it.
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return _n_opened(_STRING.sub(b"", unescaped)) > most


def is_nested_deeper(value: object, most: int = MAX_LEVELS) -> bool:
    """Whether there are more than so many objects and arrays in each other. Never recurses, whatever the value."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(most):
        level = [inner for outer in level for inner in _items(outer) if isinstance(inner, (dict, list))]
        if not level:
            return False
    return bool(level)


def _n_opened(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


def _items(container: dict[str, object] | list[object]) -> list[object]:
    return list(container.values()) if isinstance(container, dict) else container
