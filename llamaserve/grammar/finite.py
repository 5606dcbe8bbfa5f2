"""Finds the parts of a JSON Schema that no text of finite length is an instance of, such as a list node whose next node
is required. A parser would go into them and never come out. Pure; any thread.

A part counts as endless only where that is certain: what is not understood here is taken to have instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from llamaserve.grammar.schema_parts import LISTS_OF_SCHEMAS, MAPS_OF_SCHEMAS, SCHEMAS, Schema


def without_endless(root: Schema) -> Schema:
    """The schema with ``false`` where a part is endless, which it may itself be."""
    finite = _Finite(root)
    return finite.pruned(root)


class _Finite:
    """One schema, and which of the places it refers to have finite instances: none, until that is seen."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._targets: dict[str, object] = {}
        self._find_targets(root)
        self._known: set[str] = {pointer for pointer, target in self._targets.items() if target is None}
        self._learn()

    def pruned(self, schema: Schema) -> Schema:
        """A part with ``false`` for what is endless in it."""
        if not isinstance(schema, Mapping):
            return schema
        if not self._is_finite(schema):
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

    def _find_targets(self, value: object) -> None:
        waiting = [value]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                pointer = part.get("$ref")
                if isinstance(pointer, str) and pointer not in self._targets:
                    self._targets[pointer] = self._resolved(pointer)
                waiting += part.values()
            elif isinstance(part, list):
                waiting += part

    def _resolved(self, pointer: str) -> object:
        """What a reference points to in this schema; None = it is not understood."""
        if pointer != "#" and not pointer.startswith("#/"):
            return None
        part: object = self._root
        for step in pointer.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(part, dict) and name in part:
                part = part[name]
            elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
                part = part[int(name)]
            else:
                return None
        return part

    def _learn(self) -> None:
        """What has finite instances if others have."""
        has_learned = True
        while has_learned:
            has_learned = False
            for pointer, target in self._targets.items():
                if pointer not in self._known and self._is_finite(target):
                    self._known.add(pointer)
                    has_learned = True

    def _is_finite(self, schema: object) -> bool:
        if not isinstance(schema, dict):
            return schema is not False
        pointer = schema.get("$ref")
        if isinstance(pointer, str) and pointer not in self._known:
            return False
        for key in ("anyOf", "oneOf"):
            parts = schema.get(key)
            if isinstance(parts, list) and parts and not any(map(self._is_finite, parts)):
                return False
        parts = schema.get("allOf")
        if isinstance(parts, list) and not all(map(self._is_finite, parts)):
            return False
        if "const" in schema or "enum" in schema:
            return True
        kind = schema.get("type")
        if kind == "object":
            return self._is_finite_object(schema)
        return self._is_finite_array(schema) if kind == "array" else True

    def _is_finite_object(self, schema: Mapping[str, object]) -> bool:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict) or not isinstance(required, list):
            return True
        return all(
            self._is_finite(properties[name]) for name in required if isinstance(name, str) and name in properties
        )

    def _is_finite_array(self, schema: Mapping[str, object]) -> bool:
        least = schema.get("minItems")
        if not isinstance(least, int) or least < 1:
            return True
        first = schema.get("prefixItems")
        items = schema.get("items", True)
        parts = [*(first if isinstance(first, list) else []), *(items if isinstance(items, list) else [])]
        if len(parts) < least and not isinstance(items, list):
            parts.append(items)
        return all(map(self._is_finite, parts[:least]))
