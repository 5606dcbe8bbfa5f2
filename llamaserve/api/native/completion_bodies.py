"""What llama-server's ``/completion`` and ``/infill`` take, as types. Any thread."""

from __future__ import annotations

import msgspec

from llamaserve.api.openai.body import GenerationBody


class PromptObject(msgspec.Struct):
    """A prompt with what belongs to it; this server reads text only."""

    prompt_string: str
    multimodal_data: list[str] | None = None


class NativeBody(GenerationBody, kw_only=True):
    """What both take beside a prompt."""

    logprobs: int | None = None
    """``n_probs``, where that is not given."""
    response_fields: list[str] | None = None
    """Names of the answer's fields to send, ``a/b`` for one inside another; none = all."""


class NativeCompletionBody(NativeBody, kw_only=True):
    """``POST /completion``."""

    prompt: str | PromptObject | list[str | int | list[str | int] | PromptObject]
    """A text; token ids and texts in their order; or a list of prompts."""
    add_special_tokens: bool | None = None
    """vLLM's: whether what belongs in front of a text is put there; true."""


class ExtraText(msgspec.Struct):
    """A piece of another file."""

    text: str
    filename: str | None = None


class InfillBody(NativeBody, kw_only=True):
    """``POST /infill``."""

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraText] | None = None
    """Put before the file as far as it fits, the last ones first."""
    prompt: str | None = None
    """Put behind the prefix."""
