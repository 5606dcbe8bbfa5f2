"""The JSON bodies of /v1/completions and /v1/chat/completions as types, and how bytes become them. Any thread.

An explicit null means the same as an absent field, everywhere. A field of the wrong JSON type is a BadRequest that
names the field, what was expected and what came.
"""

from __future__ import annotations

import re
from typing import TypeVar, cast

import msgspec

from llamaserve.api.openai.fields import UnknownFieldLog, refuse_unhonoured
from llamaserve.api.openai.json_shape import MAX_CONTAINERS, MAX_LEVELS, has_too_many_containers, is_nested_deeper
from llamaserve.api.openai.sampling_fields import SamplingFields
from llamaserve.errors import BadRequest


class StreamOptions(msgspec.Struct):
    """``stream_options``."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(SamplingFields, kw_only=True):
    """The fields both endpoints share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n_predict: int | None = None
    n_indent: int | None = None
    t_max_predict_ms: int | None = None
    cache_prompt: bool | None = None
    cache_salt: str | None = None
    session: str | None = None
    timeout: float | None = None
    sse_ping_interval: int | None = None
    priority: str | int | None = None
    return_progress: bool | None = None
    n: int | None = None
    n_cmpl: int | None = None
    best_of: int | None = None
    n_probs: int | None = None
    prompt_logprobs: int | bool | None = None
    return_token_ids: bool | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    response_format: dict[str, object] | None = None
    json_schema: dict[str, object] | str | bool | None = None
    grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    guided_json: dict[str, object] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, object] | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether the answer comes as server-sent events."""
        return bool(self.stream)


class CompletionBody(GenerationBody, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[int | str | list[int]]
    echo: bool | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    logprobs: int | bool | None = None


class ContentPart(msgspec.Struct):
    """One part of a message's content; only parts of type ``text`` are supported, and an assistant's refusals."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct):
    """The function of a tool call."""

    name: str
    arguments: str | dict[str, object] | None = None
    """A JSON object, as text or as it is."""


class ToolCall(msgspec.Struct):
    """A call in an assistant's message."""

    function: FunctionCall
    id: str | None = None
    type: str | None = None


class ChatMessage(msgspec.Struct):
    """One message; what a chat template does not read is left out."""

    role: str
    content: str | list[ContentPart | str] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    function_call: object = None


class ChatBody(GenerationBody, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[ChatMessage]
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_format: str | None = None
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    reasoning_budget_tokens: int | None = None
    thinking_budget_tokens: int | None = None
    thinking_token_budget: int | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None


BodyT = TypeVar("BodyT", bound=msgspec.Struct)

_FIELD_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING_FIELD = re.compile(r"^Object missing required field `(?P<name>.*)`$")
_TYPE_WORDS = {  # msgspec's and Python's names of JSON types
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "object": "object",
    "array": "array",
    "list": "array",
    "null": "null",
}
_TYPE_NAME = re.compile(r"\b(" + "|".join(_TYPE_WORDS) + r")\b")


def decode_body(body: bytes, body_type: type[BodyT], unknown_fields: UnknownFieldLog) -> BodyT:
    """Read a request body.

    Raises BadRequest for malformed JSON, invalid UTF-8, wrong types, and fields we must not ignore.
    """
    fields = _decode_object(body)
    refuse_unhonoured(fields, body_type.__struct_fields__)
    try:
        decoded = msgspec.convert(fields, body_type)
    except msgspec.ValidationError as error:
        raise _type_error(str(error)) from error
    unknown_fields.note(fields, body_type.__struct_fields__)
    stream_options = fields.get("stream_options")
    if isinstance(stream_options, dict):
        unknown_fields.note(stream_options, StreamOptions.__struct_fields__, "stream_options.")
    return decoded


def _decode_object(body: bytes) -> dict[str, object]:
    if not body.strip():
        raise BadRequest("the request body is empty: it must be a JSON object")
    if has_too_many_containers(body):
        raise BadRequest(f"the request body has too many objects and arrays: at most {MAX_CONTAINERS} are allowed")
    try:
        value: object = msgspec.json.decode(body)
    except RecursionError as error:
        raise BadRequest("the request body is not valid: its JSON is nested too deeply") from error
    except msgspec.ValidationError as error:  # a number that fits no type of ours
        raise BadRequest(f"the request body is not valid: {_split_path(str(error))[0]}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the request body is not valid JSON in UTF-8: {error}") from error
    if is_nested_deeper(value):
        raise BadRequest(f"the request body is not valid: its JSON is nested more than {MAX_LEVELS} levels deep")
    if not isinstance(value, dict):
        raise BadRequest(f"the request body must be a JSON object, not {_json_type(value)}")
    return cast("dict[str, object]", value)


def _type_error(message: str) -> BadRequest:
    what, path = _split_path(message)
    missing = _MISSING_FIELD.match(what)
    if missing:
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return BadRequest(f"{path}: this field is required", path)
    words = _TYPE_NAME.sub(lambda match: _TYPE_WORDS[match[0]], what.replace("`", "").replace(" | ", " or "))
    return BadRequest(f"{path}: {words[:1].lower()}{words[1:]}", path or None)


def _split_path(message: str) -> tuple[str, str]:
    match = _FIELD_PATH.match(message)
    if match is None:
        return message, ""
    return match["what"], match["path"] or ""


def _json_type(value: object) -> str:
    return "null" if value is None else _TYPE_WORDS[type(value).__name__]
