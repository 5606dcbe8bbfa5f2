"""How deep JSON values are nested. Pure; any thread."""

from __future__ import annotations


def is_nested_deeper(value: object, limit: int) -> bool:
    """Whether there are more than so many objects and arrays in each other. Never recurses, whatever the value."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        level = [inner for outer in level for inner in _items(outer) if isinstance(inner, (dict, list))]
        if not level:
            return False
    return bool(level)


def _items(container: dict[str, object] | list[object]) -> list[object]:
    return list(container.values()) if isinstance(container, dict) else container
