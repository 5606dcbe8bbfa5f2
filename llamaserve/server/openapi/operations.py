"""Every route of the server, as its document describes them; a test holds them against the application."""

from __future__ import annotations

from llamaserve.api.native.completion_bodies import InfillBody, NativeCompletionBody
from llamaserve.api.native.props import Props
from llamaserve.api.native.token_bodies import (
    DetokenizeAnswer,
    DetokenizeBody,
    InputTokensAnswer,
    TemplateAnswer,
    TemplateBody,
    TokenizeAnswer,
    TokenizeBody,
    TokenizerInfo,
)
from llamaserve.api.openai.answers import ChatChoice, Completion, TextChoice
from llamaserve.api.openai.body import ChatBody, CompletionBody
from llamaserve.api.openai.limits import PRIORITY_HEADER, TIMEOUT_HEADER
from llamaserve.api.openai.model_card import ModelCard, ModelList
from llamaserve.api.openai.preparing import SESSION_HEADER
from llamaserve.server.metrics import METRICS_PATH
from llamaserve.server.openapi.operation import EVENTS, JSON, TEXT, Operation, Parameter
from llamaserve.server.probes import HEALTH_PATHS, READY_PATH
from llamaserve.server.slots import SLOTS_PATH, SequenceItem

ALWAYS = frozenset({401, 431, 500})
ASKS_THE_MODEL = ALWAYS | {503}
HAS_A_BODY = ASKS_THE_MODEL | {400, 404, 408, 413}
COMPUTES = HAS_A_BODY | {429, 504}

OPENAI = "OpenAI"
NATIVE = "llama-server"
SERVER = "server"

STATUS = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}
OBJECT = {"type": "object"}
CHUNKS = {"description": "Server-sent events, each with a part of the answer as JSON."}
NATIVE_ANSWER = {"type": ["object", "array"]}
"""An object, with the fields a body asks for, or one for each choice."""
YES_OR_NO = {"type": "string", "enum": ["1", "true", "0", "false"]}

HEADERS = (
    Parameter(SESSION_HEADER, "header", "The conversation, where the body names none."),
    Parameter(TIMEOUT_HEADER, "header", "Seconds the request may take, where the body says nothing."),
    Parameter(PRIORITY_HEADER, "header", "high, normal or low, where the body says nothing."),
)

OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", ("/",), "What this is", SERVER, {"text/plain": TEXT}, ALWAYS),
    Operation("GET", ("/openapi.json",), "This document", SERVER, {JSON: OBJECT}, ALWAYS),
    Operation("GET", HEALTH_PATHS, "Whether the server works", SERVER, {JSON: STATUS}, ASKS_THE_MODEL, is_open=True),
    Operation("GET", (READY_PATH,), "Whether it wants requests", SERVER, {JSON: STATUS}, ASKS_THE_MODEL, is_open=True),
    Operation("GET", (METRICS_PATH,), "Its numbers for Prometheus", SERVER, {"text/plain": TEXT}, ASKS_THE_MODEL),
    Operation(
        "GET",
        (SLOTS_PATH,),
        "What each slot does",
        NATIVE,
        {JSON: list[SequenceItem]},
        ASKS_THE_MODEL | {400, 501},
        parameters=(
            Parameter("parked", "query", "Whether prefixes without a slot are listed too.", YES_OR_NO),
            Parameter("fail_on_no_slot", "query", "Whether it is a 503 that no slot is idle.", YES_OR_NO),
        ),
    ),
    Operation("GET", ("/v1/models", "/models"), "The model", OPENAI, {JSON: ModelList}, ASKS_THE_MODEL),
    Operation(
        "GET",
        ("/v1/models/{model_id}",),
        "The model, by its name",
        OPENAI,
        {JSON: ModelCard},
        ASKS_THE_MODEL | {404},
        parameters=(Parameter("model_id", "path", "Its name."),),
    ),
    Operation(
        "POST",
        ("/v1/completions",),
        "Continue a text",
        OPENAI,
        {JSON: Completion[TextChoice], EVENTS: CHUNKS},
        COMPUTES,
        body=CompletionBody,
        parameters=HEADERS,
    ),
    Operation(
        "POST",
        ("/v1/chat/completions", "/chat/completions"),
        "Answer a conversation",
        OPENAI,
        {JSON: Completion[ChatChoice], EVENTS: CHUNKS},
        COMPUTES,
        body=ChatBody,
        parameters=HEADERS,
    ),
    Operation(
        "POST",
        ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"),
        "Count a conversation's tokens",
        NATIVE,
        {JSON: InputTokensAnswer},
        HAS_A_BODY,
        body=TemplateBody,
    ),
    Operation(
        "POST",
        ("/apply-template",),
        "Write a conversation as the model reads it",
        NATIVE,
        {JSON: TemplateAnswer},
        HAS_A_BODY,
        body=TemplateBody,
    ),
    Operation("POST", ("/tokenize",), "Text to tokens", NATIVE, {JSON: TokenizeAnswer}, HAS_A_BODY, body=TokenizeBody),
    Operation(
        "POST",
        ("/detokenize",),
        "Tokens to text",
        NATIVE,
        {JSON: DetokenizeAnswer},
        HAS_A_BODY,
        body=DetokenizeBody,
    ),
    Operation(
        "POST",
        ("/completion", "/completions"),
        "Continue a text, or several",
        NATIVE,
        {JSON: NATIVE_ANSWER, EVENTS: CHUNKS},
        COMPUTES,
        body=NativeCompletionBody,
        parameters=HEADERS,
    ),
    Operation(
        "POST",
        ("/infill",),
        "Fill in the middle of a file",
        NATIVE,
        {JSON: NATIVE_ANSWER, EVENTS: CHUNKS},
        COMPUTES | {501},
        body=InfillBody,
        parameters=HEADERS,
    ),
    Operation("GET", ("/props",), "The model and how it is served", NATIVE, {JSON: Props}, ASKS_THE_MODEL),
    Operation("GET", ("/tokenizer_info",), "The tokenizer", NATIVE, {JSON: TokenizerInfo}, ASKS_THE_MODEL),
)
