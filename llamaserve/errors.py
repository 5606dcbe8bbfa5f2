"""Every error llamaserve raises. Imports nothing of the package; any thread.

    LlamaServeError
    ├── ConfigError            wrong options, before anything runs
    │   └── UnknownOption
    ├── RequestError           the caller's input; nothing was computed for it
    │   ├── BadRequest         a field of the wrong type or value
    │   ├── EmptyPrompt
    │   ├── PromptTooLong
    │   ├── BadToken
    │   ├── BadSampler
    │   ├── BadTemplate
    │   ├── BadGrammar
    │   ├── NoTokenLeft
    │   └── ModelNotFound
    ├── CapacityError          the input is fine, the room or the time is not
    │   ├── QueueFull
    │   │   └── QueueTokensFull
    │   ├── CompilerBusy
    │   ├── ContextFull
    │   └── DeadlineExceeded
    ├── EngineError            the model or llama.cpp failed
    │   ├── ModelLoad
    │   ├── DecodeFailed
    │   ├── RewindFailed
    │   ├── GrammarFailed
    │   └── EngineDown
    └── Cancelled              the caller asked for it

A message names the wrong value, shortened if it is long, and the limit. Each API maps types to its own status and code
in one table.
"""

from __future__ import annotations

import reprlib


class _Shortened(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python does not write out thousands of digits
            return f"<a number of {x.bit_length()} bits>"


_shortened = _Shortened()


def shown(value: object) -> str:
    """Any value as a message shows it: shortened if it is long. Never fails."""
    return _shortened.repr(value)


class LlamaServeError(Exception):
    """Base of every error of this package."""


class ConfigError(LlamaServeError):
    """An option has a value that cannot work."""


class UnknownOption(ConfigError):
    """An option nobody reads; ``suggestion`` is the closest real name, if any."""

    def __init__(self, name: str, suggestion: str | None) -> None:
        self.name = name
        self.suggestion = suggestion
        hint = f"; did you mean {suggestion!r}?" if suggestion else ""
        super().__init__(f"unknown option {name!r}{hint}")


class RequestError(LlamaServeError):
    """The request cannot be served as it is; ``param`` names the field at fault."""

    param: str | None = None


class BadRequest(RequestError):
    """A field has the wrong type or value."""

    def __init__(self, message: str, param: str | None = None) -> None:
        self.param = param
        super().__init__(message)


class EmptyPrompt(RequestError):
    """The prompt has no token."""

    param = "prompt"

    def __init__(self) -> None:
        super().__init__("the prompt is empty: it must have at least 1 token")


class PromptTooLong(RequestError):
    """The prompt does not fit into a sequence, with room for one generated token."""

    param = "prompt"

    def __init__(self, n_prompt: int, n_ctx: int, *, is_at_least: bool = False) -> None:
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx
        size = f"at least {n_prompt}" if is_at_least else f"{n_prompt}"
        # It begins as OpenAI's does: litellm and others know a full context by these words, not by the code.
        super().__init__(
            f"this model's maximum context length is {n_ctx} tokens, the first one of the answer included; "
            f"the prompt has {size} tokens: shorten it or start the server with a larger --ctx-size"
        )


class BadToken(RequestError):
    """A token id outside the vocabulary."""

    def __init__(self, token: int, n_vocab: int, param: str = "prompt") -> None:
        self.param = param
        super().__init__(f"token id {shown(token)} is outside the vocabulary (0..{n_vocab - 1})")


class BadSampler(RequestError):
    """A sampling parameter outside its range."""

    def __init__(self, param: str, value: object, limit: str) -> None:
        self.param = param
        super().__init__(f"{param} is {shown(value)}: it must be {limit}")


class BadTemplate(RequestError):
    """The chat template cannot render these messages."""

    param = "messages"


class BadGrammar(RequestError):
    """A schema, grammar or pattern that cannot restrict an answer; ``param`` may be a path into it."""

    def __init__(self, message: str, param: str | None = None) -> None:
        self.param = param
        super().__init__(message)


class NoTokenLeft(RequestError):
    """What a restriction allows next, the request's sampling parameters forbid; seen when the token is drawn."""

    def __init__(self) -> None:
        super().__init__(
            "no token is left to draw: each one that the restriction of the answer allows next is forbidden by "
            "logit_bias, ignore_eos, min_tokens, bad_words or allowed_token_ids"
        )


class ModelNotFound(RequestError):
    """The request names a model this server does not serve."""

    param = "model"

    def __init__(self, name: str, served: str) -> None:
        super().__init__(f"the model {name!r} does not exist here; this server serves {served!r}")


class CapacityError(LlamaServeError):
    """No room or no time left for a sound request."""


class QueueFull(CapacityError):
    """The admission queue is at its limit."""

    retry_after_s: int = 1
    """Seconds until a place may be free, at least 1."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"the request queue is full ({limit} waiting); try again later")


class QueueTokensFull(QueueFull):
    """The prompts that wait have as many tokens as may wait."""

    def __init__(self, n_tokens: int, n_waiting: int, limit: int) -> None:
        super().__init__(limit)
        self.args = (
            f"the request queue is full: {n_waiting} prompt tokens wait, {n_tokens} more would pass its limit of "
            f"{limit}; try again later",
        )


class CompilerBusy(CapacityError):
    """The threads that compile grammars had no time for this one."""

    retry_after_s: int = 1

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"other requests' grammars are being compiled, and this one's was not begun within {timeout_s:g} s; try "
            "again later"
        )


class ContextFull(CapacityError):
    """The KV cache has no cell left for this request's next token."""


class DeadlineExceeded(CapacityError):
    """The request's time ran out before it finished."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        super().__init__(f"the request did not finish within its timeout of {timeout_s:g} s")


class EngineError(LlamaServeError):
    """The model or llama.cpp failed."""


class ModelLoad(EngineError):
    """The model file cannot be used."""


class DecodeFailed(EngineError):
    """llama.cpp could not compute a step; its return code or exception is in the message."""


class RewindFailed(EngineError):
    """A sequence could not go back to where it was before a step that ran ahead; its text cannot go on."""


class GrammarFailed(EngineError):
    """A restriction cannot go on in the middle of an answer: it became too large, or a token it forbids was drawn."""


class EngineDown(EngineError):
    """The engine is not running: still loading, shutting down, or stopped after repeated failures."""


class Cancelled(LlamaServeError):
    """The request was cancelled by its caller."""

    def __init__(self) -> None:
        super().__init__("the request was cancelled")
