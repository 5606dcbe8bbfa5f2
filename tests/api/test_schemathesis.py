"""Requests made from the OpenAPI document, good and bad, against the server: every answer is one that the document has,
and none is a failure of the server's."""

from __future__ import annotations

import time
from collections.abc import Generator

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from llamaserve.engine.fake import FakeEngine, scripted
from llamaserve.engine.port import FimTokens
from llamaserve.server.openapi.operations import OPERATIONS
from tests.api.conftest import REPLIES
from tests.api.served import LineTemplate, Served, serving

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
N_EXAMPLES = 100
TIMEOUT_ASKED_FOR = 504
GOOD, BAD = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
CASES = [(operation.method, operation.paths[0], GOOD) for operation in OPERATIONS]
CASES += [
    (operation.method, operation.paths[0], BAD)
    for operation in OPERATIONS
    if operation.body or any(parameter.place == "query" for parameter in operation.parameters)
]


@pytest.fixture(scope="module")
def fuzzed() -> Generator[Served, None, None]:
    engine = FakeEngine(n_slots=8, n_ctx=512, continuation=scripted(REPLIES), fim_tokens=FimTokens(1, 2, 3, 4, 5))
    with serving(engine, template=LineTemplate()) as running:
        yield running


@pytest.mark.parametrize(("method", "path", "mode"), CASES, ids=str)
def test_every_answer_is_documented_and_no_failure_of_the_server(
    fuzzed: Served, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    load_all_checks()
    url = str(fuzzed.client.base_url)
    schema = schemathesis.openapi.from_dict(fuzzed.client.get("/openapi.json").json())
    schema.config.update(base_url=url)
    operation = schema[path][method]

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=N_EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def run(case: schemathesis.Case) -> None:
        begun = time.monotonic()
        response = case.call()
        assert response.status_code < 500 or response.status_code == TIMEOUT_ASKED_FOR, response.text
        assert time.monotonic() - begun < 10
        case.validate_response(response, checks=CHECKS)

    run()
    assert fuzzed.client.get("/health").status_code == 200
