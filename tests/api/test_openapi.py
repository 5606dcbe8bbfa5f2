"""The OpenAPI document: it says what the server does, no more and no less."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route

from llamaserve import __version__
from llamaserve.api_key import ApiKey
from llamaserve.config import HttpConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine, scripted
from llamaserve.server.openapi.limits import FIELD_LIMITS
from llamaserve.server.probes import PROBE_PATHS
from tests.api.conftest import REPLIES
from tests.api.served import LineTemplate, Served, app_loading, serving
from tests.api.test_lifecycle import fake_service


def document_of(served: Served) -> dict[str, dict[str, dict[str, object]]]:
    response = served.client.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert isinstance(document, dict)
    return document


def routes_of_the_application() -> Iterator[tuple[str, str]]:
    for route in app_loading(fake_service).routes:
        assert isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}:
            yield method, route.path.replace(":path", "")


def test_every_route_is_documented_and_nothing_else(served: Served) -> None:
    paths = document_of(served)["paths"]
    documented = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert documented == set(routes_of_the_application())


def test_the_document_refers_only_to_what_is_in_it(served: Served) -> None:
    document = document_of(served)
    text = json.dumps(document)
    schemas = document["components"]["schemas"]
    for name in {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in schemas
    identifiers = [
        operation["operationId"]  # type: ignore[index]  # an object of the document
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert len(set(identifiers)) == len(identifiers)
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)


def test_keys_are_asked_for_where_there_are_some_but_for_the_probes(served: Served) -> None:
    assert "security" not in json.dumps(document_of(served))
    with serving(FakeEngine(), http=HttpConfig(api_keys=(ApiKey.of("k"),))) as locked:
        locked.client.headers["x-api-key"] = "k"
        document = document_of(locked)
    assert set(document["components"]["securitySchemes"]) == {"bearer", "apiKey"}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert isinstance(operation, dict)
            assert ("security" in operation) is (path not in PROBE_PATHS)


def test_a_failure_is_as_documented(served: Served) -> None:
    schema = {**document_of(served), "$ref": "#/components/schemas/ErrorBody"}
    for response in (served.complete(max_tokens=-5), served.client.get("/v1/models/other"), served.complete(stop=5)):
        assert response.status_code in (400, 404)
        Draft202012Validator(schema).validate(response.json())


@pytest.mark.parametrize("path", ["/", "/openapi.json"])
def test_both_are_there_before_the_model(path: str) -> None:
    app = app_loading(fake_service)

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return await client.get(path)  # the lifespan, which loads, has not begun

    response = asyncio.run(get())
    assert response.status_code == 200
    assert __version__ in response.text


def test_the_limits_of_fields_are_those_that_are_refused() -> None:
    """Just inside is taken, just outside is not."""
    engine = FakeEngine(n_ctx=16_384, n_slots=8, continuation=scripted(REPLIES))
    with serving(engine, template=LineTemplate(), scheduler=SchedulerConfig(max_queue=0)) as served:
        _check_limits(served)


def _check_limits(served: Served) -> None:
    schemas = document_of(served)["components"]["schemas"]
    for name, limits in FIELD_LIMITS.items():
        assert any(
            name in schemas[body].get("properties", {}) for body in ("ChatBody", "CompletionBody", "ChatMessage")
        )
        for keyword, value in limits.items():
            inside, outside = _around(keyword, value)
            for given, statuses in ((inside, (200, 504)), (outside, (400,))):
                fields = {"logprobs": True} if name == "top_logprobs" else {}
                messages = [{"role": given if name == "role" else "user", "content": "hi"}]
                body = {"messages": messages, **fields, **({} if name == "role" else {name: given})}
                response = served.client.post("/v1/chat/completions", json=body)
                assert response.status_code in statuses, (name, given, response.text)


def _around(keyword: str, value: object) -> tuple[object, object]:
    """A value that a keyword allows and one that it does not."""
    if keyword == "enum":
        assert isinstance(value, list)
        return value[0], "wizard"
    assert isinstance(value, (int, float))
    if keyword in ("minLength", "maxLength"):
        step = -1 if keyword == "minLength" else 1
        return "x" * int(value), "x" * int(value + step)
    if keyword == "exclusiveMinimum":
        return value + 0.001, value
    return value, value + (-1 if keyword == "minimum" else 1)
