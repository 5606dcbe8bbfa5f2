"""The table from our exceptions to OpenAI's errors."""

from __future__ import annotations

import inspect
import json

import pytest

from llamaserve import errors
from llamaserve.api.drain import Draining
from llamaserve.api.openai.errors import ERROR_SHAPES, error_response, error_shape, internal_error_response

EVERY_ERROR = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, errors.LlamaServeError) and value.__module__ == errors.__name__
]


@pytest.mark.parametrize("error_type", EVERY_ERROR, ids=lambda value: value.__name__)
def test_every_error_of_the_package_has_a_row_of_its_own(error_type: type[errors.LlamaServeError]) -> None:
    assert error_type in ERROR_SHAPES


@pytest.mark.parametrize(
    ("error", "status", "type_", "code"),
    [
        (errors.BadRequest("no", "stop"), 400, "invalid_request_error", None),
        (errors.BadSampler("top_p", 2, "at most 1"), 400, "invalid_request_error", "invalid_value"),
        (errors.BadToken(7, 5), 400, "invalid_request_error", "invalid_token"),
        (errors.EmptyPrompt(), 400, "invalid_request_error", "empty_prompt"),
        (errors.BadTemplate("no"), 400, "invalid_request_error", "invalid_messages"),
        (errors.BadGrammar("no", "$defs.a"), 400, "invalid_request_error", "invalid_grammar"),
        (errors.NoTokenLeft(), 400, "invalid_request_error", "no_token"),
        (errors.PromptTooLong(9, 8), 400, "invalid_request_error", "context_length_exceeded"),
        (errors.ModelNotFound("a", "b"), 404, "invalid_request_error", "model_not_found"),
        (errors.QueueFull(64), 429, "rate_limit_exceeded", "queue_full"),
        (errors.QueueTokensFull(5, 90, 92), 429, "rate_limit_exceeded", "queue_full"),
        (errors.CompilerBusy(3), 503, "server_error", "compiler_busy"),
        (errors.ContextFull("full"), 503, "server_error", "context_full"),
        (errors.DeadlineExceeded(3), 504, "server_error", "timeout"),
        (errors.EngineDown("loading"), 503, "unavailable_error", "unavailable"),
        (errors.DecodeFailed("rc 2"), 500, "server_error", "decode_failed"),
        (errors.RewindFailed("stuck"), 500, "server_error", "rewind_failed"),
        (errors.GrammarFailed("too complex"), 500, "server_error", "grammar_failed"),
        (errors.EngineError("odd"), 500, "server_error", "engine_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_has_the_status_and_code_clients_act_on(
    error: Exception, status: int, type_: str, code: str | None
) -> None:
    response = error_response(error)
    detail = json.loads(bytes(response.body))["error"]
    assert (response.status_code, detail["type"], detail["code"]) == (status, type_, code)
    assert detail["message"] == str(error)


def test_a_request_error_names_its_field() -> None:
    detail = json.loads(bytes(error_response(errors.BadSampler("top_p", 2, "at most 1")).body))["error"]
    assert detail["param"] == "top_p"
    assert detail["message"] == "top_p is 2: it must be at most 1"


def test_a_prompt_too_long_carries_both_numbers() -> None:
    detail = json.loads(bytes(error_response(errors.PromptTooLong(9000, 8192)).body))["error"]
    assert (detail["n_prompt_tokens"], detail["n_ctx"]) == (9000, 8192)
    assert "n_ctx" not in json.loads(bytes(error_response(errors.EmptyPrompt()).body))["error"]


@pytest.mark.parametrize("error", [errors.QueueFull(64), errors.CompilerBusy(3)])
def test_a_full_queue_says_that_and_when_to_come_back(error: Exception) -> None:
    """S48"""
    headers = error_response(error).headers
    assert (headers["retry-after"], headers["x-should-retry"]) == ("1", "true")


def test_an_error_that_knows_when_to_come_back_says_so() -> None:
    response = error_response(Draining(17))
    assert (response.status_code, response.headers["retry-after"]) == (503, "17")
    assert json.loads(bytes(response.body))["error"]["code"] == "unavailable"


@pytest.mark.parametrize(
    ("error", "has_spent_tokens", "should_retry"),
    [
        (errors.ContextFull("full"), False, None),
        (errors.ContextFull("full"), True, "false"),
        (errors.EngineDown("stopped"), False, None),
        (errors.EngineDown("stopped"), True, "false"),
        (errors.DecodeFailed("rc"), False, "false"),
        (errors.DeadlineExceeded(1), False, "false"),
        (errors.QueueFull(1), False, "true"),
        (errors.BadRequest("no"), True, None),
    ],
)
def test_work_already_paid_for_is_not_retried_by_clients(
    error: Exception, has_spent_tokens: bool, should_retry: str | None
) -> None:
    headers = error_response(error, has_spent_tokens=has_spent_tokens).headers
    assert headers.get("x-should-retry") == should_retry


def test_a_new_subclass_takes_the_row_of_its_base() -> None:
    class Odd(errors.QueueFull):
        pass

    assert error_shape(Odd(3)).status == 429


def test_a_foreign_exception_shows_nothing_of_itself() -> None:
    response = error_response(ValueError("a secret path"))
    assert response.status_code == 500
    assert b"secret" not in bytes(response.body)


def test_an_internal_error_names_the_request_id() -> None:
    assert b"req-7" in bytes(internal_error_response("req-7").body)
