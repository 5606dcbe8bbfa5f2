"""Which HTTP status, type and code each of our exceptions has in OpenAI's shape. Any thread.

The body is ``{"error": {"message", "type", "param", "code"}}``. The OpenAI SDK retries 408, 409, 429 and every 5xx
unless ``x-should-retry: false`` says otherwise: answers that would cost the same work again say so. ``true`` says that
a retry costs nothing and may well succeed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from llamaserve import errors

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
UNAVAILABLE = "unavailable_error"


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """What a client sees of an exception type."""

    status: int
    type: str
    code: str | None = None
    retry_after_s: int | None = None
    """Seconds after which a retry makes sense."""
    is_retry_wasteful: bool = False
    """Whether a retry would compute the same again and fail the same way."""
    is_retry_right: bool = False
    """Whether a retry is what the client should do."""


ERROR_SHAPES: Mapping[type[errors.LlamaServeError], ErrorShape] = {
    errors.LlamaServeError: ErrorShape(500, SERVER_ERROR, "internal_error"),
    errors.ConfigError: ErrorShape(500, SERVER_ERROR, "internal_error"),
    errors.UnknownOption: ErrorShape(500, SERVER_ERROR, "internal_error"),
    errors.RequestError: ErrorShape(400, INVALID_REQUEST),
    errors.BadRequest: ErrorShape(400, INVALID_REQUEST),
    errors.EmptyPrompt: ErrorShape(400, INVALID_REQUEST, "empty_prompt"),
    errors.PromptTooLong: ErrorShape(400, INVALID_REQUEST, "context_length_exceeded"),
    errors.BadToken: ErrorShape(400, INVALID_REQUEST, "invalid_token"),
    errors.BadSampler: ErrorShape(400, INVALID_REQUEST, "invalid_value"),
    errors.BadTemplate: ErrorShape(400, INVALID_REQUEST, "invalid_messages"),
    errors.BadGrammar: ErrorShape(400, INVALID_REQUEST, "invalid_grammar"),
    errors.NoTokenLeft: ErrorShape(400, INVALID_REQUEST, "no_token"),
    errors.ModelNotFound: ErrorShape(404, INVALID_REQUEST, "model_not_found"),
    errors.CapacityError: ErrorShape(503, SERVER_ERROR, "no_capacity"),
    errors.QueueFull: ErrorShape(429, "rate_limit_exceeded", "queue_full", is_retry_right=True),
    errors.QueueTokensFull: ErrorShape(429, "rate_limit_exceeded", "queue_full", is_retry_right=True),
    errors.CompilerBusy: ErrorShape(503, SERVER_ERROR, "compiler_busy", is_retry_right=True),
    errors.ContextFull: ErrorShape(503, SERVER_ERROR, "context_full"),
    errors.DeadlineExceeded: ErrorShape(504, SERVER_ERROR, "timeout", is_retry_wasteful=True),
    errors.EngineError: ErrorShape(500, SERVER_ERROR, "engine_error"),
    errors.ModelLoad: ErrorShape(500, SERVER_ERROR, "model_load_failed"),
    errors.RewindFailed: ErrorShape(500, SERVER_ERROR, "rewind_failed", is_retry_wasteful=True),
    errors.DecodeFailed: ErrorShape(500, SERVER_ERROR, "decode_failed", is_retry_wasteful=True),
    errors.GrammarFailed: ErrorShape(500, SERVER_ERROR, "grammar_failed", is_retry_wasteful=True),
    errors.EngineDown: ErrorShape(503, UNAVAILABLE, "unavailable"),
    # Nobody is left to read it; the status is for the log.
    errors.Cancelled: ErrorShape(499, INVALID_REQUEST, "cancelled"),
}

HTTP_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "body_timeout",
    413: "body_too_large",
    431: "head_too_large",
    501: "not_supported",
}
"""What errors of HTTP itself are called; others have no code."""

_INTERNAL = ErrorShape(500, SERVER_ERROR, "internal_error")


class ErrorDetail(msgspec.Struct, omit_defaults=True):
    """The inner object of an error body; the numbers only come with ``context_length_exceeded``."""

    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class ErrorBody(msgspec.Struct):
    """The whole error body."""

    error: ErrorDetail


def error_shape(error: Exception) -> ErrorShape:
    """The row of the table for this exception, or for the closest of its base classes that has one."""
    for base in type(error).__mro__:
        shape = ERROR_SHAPES.get(base)
        if shape is not None:
            return shape
    return _INTERNAL


def error_json(error: Exception) -> bytes:
    """The JSON body for this exception. One that is not ours shows nothing of its text."""
    if not isinstance(error, errors.LlamaServeError):
        return plain_error_json("internal error", _INTERNAL.type, _INTERNAL.code)
    shape = error_shape(error)
    param = error.param if isinstance(error, errors.RequestError) else None
    detail = ErrorDetail(str(error), shape.type, param, shape.code)
    if isinstance(error, errors.PromptTooLong):
        detail.n_prompt_tokens = error.n_prompt
        detail.n_ctx = error.n_ctx
    return msgspec.json.encode(ErrorBody(detail))


def plain_error_json(message: str, type_: str, code: str | None) -> bytes:
    """A JSON body for what has no exception type, such as an unknown route."""
    return msgspec.json.encode(ErrorBody(ErrorDetail(message, type_, None, code)))


def error_response(error: Exception, *, has_spent_tokens: bool = False) -> Response:
    """The answer for this exception; ``has_spent_tokens`` says that tokens were already generated for the request."""
    shape = error_shape(error)
    headers: dict[str, str] = {}
    # An error that knows better than the table when to come back says so itself.
    retry_after_s = getattr(error, "retry_after_s", shape.retry_after_s)
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    if shape.is_retry_wasteful or (has_spent_tokens and shape.status >= 500):
        headers["x-should-retry"] = "false"
    elif shape.is_retry_right:
        headers["x-should-retry"] = "true"
    return Response(error_json(error), shape.status, headers, media_type="application/json")


def http_error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer for an error of HTTP itself: no key, no such route, wrong method, body too large or too slow, a head
    too large, a route turned off."""
    type_ = INVALID_REQUEST if status < 500 else SERVER_ERROR
    body = plain_error_json(message, type_, HTTP_CODES.get(status))
    return Response(body, status, headers, media_type="application/json")


def internal_error_response(request_id: str) -> Response:
    """The answer for an exception nobody expected; the traceback is in the log under the same id."""
    message = f"internal error; the server's log has more under request id {request_id}"
    return Response(
        plain_error_json(message, _INTERNAL.type, _INTERNAL.code), _INTERNAL.status, media_type="application/json"
    )
