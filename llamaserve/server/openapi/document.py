"""The OpenAPI document, from the table of operations and the types of bodies and answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from llamaserve.api.openai.errors import ErrorBody
from llamaserve.server.openapi.limits import with_limits
from llamaserve.server.openapi.operation import JSON, REASONS, Operation, Parameter

_REFERENCE = "#/components/schemas/{name}"
_REQUEST_SCHEMAS = frozenset(
    {"ChatBody", "ChatMessage", "CompletionBody", "InfillBody", "NativeCompletionBody", "TemplateBody"}
)
_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def openapi_document(operations: Iterable[Operation], *, version: str, needs_key: bool) -> dict[str, Any]:
    """The document as JSON values."""
    operations = tuple(operations)
    types = _types(operations)
    schemas, components = msgspec.json.schema_components(types, schema_hook=_anything, ref_template=_REFERENCE)
    writer = _Writer(dict(zip(map(repr, types), schemas, strict=True)), needs_key=needs_key)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        for path in operation.paths:
            paths.setdefault(path, {})[operation.method.lower()] = writer.operation(operation, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "llamaserve", "version": version, "license": {"name": "MIT", "identifier": "MIT"}},
        "paths": paths,
        "components": {
            "schemas": with_limits(components, _REQUEST_SCHEMAS),
            **({"securitySchemes": _SECURITY_SCHEMES} if needs_key else {}),
        },
    }


def _anything(type_: type) -> dict[str, Any]:
    """The schema of ``object``: a value of a client's that is only passed on or refused."""
    if type_ is object:
        return {"description": "Any value."}
    raise NotImplementedError


def _types(operations: Iterable[Operation]) -> list[Any]:
    """Every type that has a schema, once."""
    found: dict[str, Any] = {repr(ErrorBody): ErrorBody}
    for operation in operations:
        for value in (operation.body, *operation.answers.values()):
            if value is not None and not isinstance(value, Mapping):
                found[repr(value)] = value
    return list(found.values())


class _Writer:
    def __init__(self, schemas: Mapping[str, Mapping[str, Any]], *, needs_key: bool) -> None:
        self._schemas = schemas
        self._needs_key = needs_key

    def operation(self, operation: Operation, path: str) -> dict[str, Any]:
        """One method of one path."""
        written: dict[str, Any] = {
            "operationId": _identifier(operation.method, path),
            "summary": operation.summary,
            "tags": [operation.tag],
            "responses": self._responses(operation),
        }
        if operation.parameters:
            written["parameters"] = [_parameter(parameter) for parameter in operation.parameters]
        if operation.body is not None:
            written["requestBody"] = {"required": True, "content": {JSON: {"schema": self._schema(operation.body)}}}
        if self._needs_key and not operation.is_open:
            written["security"] = [{name: []} for name in _SECURITY_SCHEMES]
        return written

    def _responses(self, operation: Operation) -> dict[str, Any]:
        content = {media_type: {"schema": self._schema(answer)} for media_type, answer in operation.answers.items()}
        failure = {JSON: {"schema": self._schema(ErrorBody)}}
        return {
            "200": {"description": operation.summary + ".", "content": content},
            **{
                str(status): {"description": REASONS[status], "content": failure}
                for status in sorted(operation.failures)
            },
        }

    def _schema(self, value: type | Mapping[str, Any]) -> Mapping[str, Any]:
        return value if isinstance(value, Mapping) else self._schemas[repr(value)]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.description,
        "schema": parameter.schema,
    }


def _identifier(method: str, path: str) -> str:
    words = "".join(letter if letter.isalnum() else " " for letter in path).split()
    return "_".join([method.lower(), *words])
