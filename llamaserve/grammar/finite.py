"""Finds the parts of a JSON Schema that no text of finite length is an instance of, such as a list node whose next node
is required. A parser would go into them and never come out. Pure; any thread.

A part counts as endless only where that is certain: what is not understood here is taken to have instances.

Each object of the schema needs some of certain others to have finite instances. What needs none has them; from there
the news goes to whatever needed that, once along each need, so the work grows with the schema and no faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llamaserve.grammar.schema_parts import LISTS_OF_SCHEMAS, MAPS_OF_SCHEMAS, SCHEMAS, Schema, referred


def without_endless(root: Schema) -> Schema:
    """The schema with ``false`` where a part is endless, which it may itself be."""
    finite = _Finite(root)
    return finite.pruned(root)


class _Finite:
    """One schema, and which of its objects have finite instances, by their identity."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._finite: set[int] = set()
        self._n_unmet: dict[int, int] = {}
        """How many needs of an object are not met yet."""
        self._users: dict[int, list[tuple[int, int]]] = {}
        """Objects that need this one, and the number of the need."""
        self._learn()

    def pruned(self, schema: Schema) -> Schema:
        """A part with ``false`` for what is endless in it."""
        if not isinstance(schema, Mapping):
            return schema
        if id(schema) not in self._finite:
            return False
        return {key: self._pruned_value(key, value) for key, value in schema.items()}

    def _pruned_value(self, key: str, value: object) -> object:
        if key in MAPS_OF_SCHEMAS and isinstance(value, dict):
            return {name: self._pruned_part(part) for name, part in value.items()}
        if isinstance(value, list) and (key in LISTS_OF_SCHEMAS or key == "items"):
            return [self._pruned_part(part) for part in value]
        return self._pruned_part(value) if key in SCHEMAS else value

    def _pruned_part(self, part: object) -> object:
        return self.pruned(part) if isinstance(part, dict) else part

    def _learn(self) -> None:
        """Find what needs nothing, then what needs that."""
        found = [id(part) for part in _objects(self._root) if self._note_needs(part) == 0]
        met: set[tuple[int, int]] = set()
        for part in found:  # grows on the way, by each object once
            self._finite.add(part)
            for need in self._users.get(part, ()):
                if need in met:
                    continue
                met.add(need)
                self._n_unmet[need[0]] -= 1
                if self._n_unmet[need[0]] == 0:
                    found.append(need[0])

    def _note_needs(self, part: Mapping[str, object]) -> int:
        """How many needs an object has that are not met by what is no object."""
        n_unmet = 0
        for options in self._needs(part):
            if any(not isinstance(option, dict) and option is not False for option in options):
                continue
            for option in options:
                self._users.setdefault(id(option), []).append((id(part), n_unmet))
            n_unmet += 1
        self._n_unmet[id(part)] = n_unmet
        return n_unmet

    def _needs(self, schema: Mapping[str, object]) -> Iterator[Sequence[object]]:
        """Of each of these, one at least must have finite instances."""
        pointer = schema.get("$ref")
        if isinstance(pointer, str):
            yield (referred(self._root, pointer),)
        for key in ("anyOf", "oneOf"):
            parts = schema.get(key)
            if isinstance(parts, list) and parts:
                yield parts
        parts = schema.get("allOf")
        if isinstance(parts, list):
            yield from ((part,) for part in parts)
        if "const" in schema or "enum" in schema:
            return
        kind = schema.get("type")
        if kind == "object":
            yield from ((part,) for part in _required_parts(schema))
        elif kind == "array":
            yield from ((part,) for part in _first_parts(schema))


def _objects(root: object) -> Iterator[Mapping[str, object]]:
    """Every object in the schema, wherever it stands: a reference may point to any."""
    waiting = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _required_parts(schema: Mapping[str, object]) -> Iterator[object]:
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict) and isinstance(required, list):
        names = dict.fromkeys(name for name in required if isinstance(name, str))
        yield from (properties[name] for name in names if name in properties)


def _first_parts(schema: Mapping[str, object]) -> Sequence[object]:
    """Of an array, those it must have."""
    least = schema.get("minItems")
    if not isinstance(least, int) or least < 1:
        return ()
    first = schema.get("prefixItems")
    items = schema.get("items", True)
    parts = [*(first if isinstance(first, list) else []), *(items if isinstance(items, list) else [])]
    if len(parts) < least and not isinstance(items, list):
        parts.append(items)
    return parts[:least]
