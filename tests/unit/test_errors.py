"""The error tree: what to catch, and messages that name value and limit."""

from __future__ import annotations

import inspect

import pytest

from llamaserve import errors


def test_every_error_is_of_one_kind() -> None:
    """§6: a caller can catch by kind."""
    kinds = (errors.ConfigError, errors.RequestError, errors.CapacityError, errors.EngineError, errors.Cancelled)
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.LlamaServeError) and kind is not errors.LlamaServeError:
            assert sum(issubclass(kind, root) for root in kinds) == 1, kind


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.PromptTooLong(9000, 8192), ["9000 tokens", "8192"]),
        (errors.BadToken(99999, 49152), ["99999", "0..49151"]),
        (errors.BadSampler("temperature", -1, "a number from 0 to 100"), ["temperature", "-1", "0 to 100"]),
        (errors.ModelNotFound("gpt-4", "smollm2"), ["'gpt-4'", "'smollm2'"]),
        (errors.QueueFull(64), ["64 waiting"]),
        (errors.DeadlineExceeded(2.5), ["2.5 s"]),
        (errors.UnknownOption("n_cxt", "n_ctx"), ["'n_cxt'", "did you mean 'n_ctx'"]),
        (errors.EmptyPrompt(), ["empty", "at least 1 token"]),
    ],
)
def test_a_message_names_the_value_and_the_limit(error: errors.LlamaServeError, words: list[str]) -> None:
    for word in words:
        assert word in str(error)


def test_a_request_error_names_the_field_at_fault() -> None:
    assert errors.BadRequest("wrong", "stop").param == "stop"
    assert errors.BadRequest("wrong").param is None
    assert errors.PromptTooLong(2, 1).param == errors.EmptyPrompt().param == errors.BadToken(1, 1).param == "prompt"
    assert errors.BadTemplate("no").param == "messages"
    assert errors.ModelNotFound("a", "b").param == "model"
