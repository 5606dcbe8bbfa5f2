"""Structured output: from the fields of a body, in the words of several servers, to a restriction. Preparing threads
only: compiling takes its time.

One field at most may ask for something. The errors of a schema name the field and the place in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from llamaserve.api.openai.body import GenerationBody
from llamaserve.chat.prepared import PreparedChat
from llamaserve.chat.restriction import chat_restriction
from llamaserve.constraint import Constraint
from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadGrammar, BadRequest, shown
from llamaserve.grammar.compiler import GrammarCompiler
from llamaserve.grammar.spec import GrammarKind, GrammarSpec

RESPONSE_FORMATS = ("text", "json_object", "json_schema", "regex", "grammar")
_LARK = re.compile(r"(?m)^\s*(?:%llguidance\b|\??start\s*:(?!:=))")
_ANY_OBJECT = GrammarSpec(GrammarKind.JSON_OBJECT, "")
_IGNORED_OUTPUTS = frozenset({"disable_fallback", "backend", "_backend"})
"""Of ``structured_outputs``, how vLLM shall do it."""


class WantedGrammar(NamedTuple):
    """What a body asks for."""

    spec: GrammarSpec
    param: str
    """The field that asks."""


def structured_constraint(body: GenerationBody, compiler: GrammarCompiler) -> Constraint | None:
    """The restriction a body asks for, compiled. Raises BadRequest, BadGrammar."""
    wanted = wanted_grammar(body)
    return None if wanted is None else compiled(wanted, compiler)


def chat_constraint(
    chat: PreparedChat, wanted: WantedGrammar | None, compiler: GrammarCompiler, vocab: Vocabulary
) -> Constraint | None:
    """What the answer of a chat is restricted to: by its tools, by what the body asks for, by its reasoning's budget.
    Raises BadRequest, BadGrammar."""
    return chat_restriction(
        chat,
        None if wanted is None else wanted.spec,
        lambda spec, param: compiled(WantedGrammar(spec, param), compiler),
        vocab,
        param="" if wanted is None else wanted.param,
    )


def compiled(wanted: WantedGrammar, compiler: GrammarCompiler) -> Constraint:
    """Raises BadGrammar, which names the field and, in a schema, the place."""
    try:
        return compiler.compile(wanted.spec)
    except BadGrammar as error:
        place = f"{wanted.param}.{error.param}" if error.param else wanted.param
        raise BadGrammar(f"{wanted.param}: {error}", place) from error


def wanted_grammar(body: GenerationBody) -> WantedGrammar | None:
    """What a body asks for; None = any text. Raises BadRequest when several fields ask, or one of them wrongly."""
    wanted = list(_all_wanted(body))
    if len(wanted) > 1:
        names = " and ".join(one.param.partition(".")[0] for one in wanted[:2])
        raise BadRequest(f"{names} both restrict the answer: give one of them", wanted[1].param)
    return wanted[0] if wanted else None


def _all_wanted(body: GenerationBody) -> Iterator[WantedGrammar]:
    if body.response_format:
        yield from _response_format(body.response_format)
    for name, read in _FIELDS.items():
        value = getattr(body, name)
        if value is not None and value not in ("", []):
            yield WantedGrammar(read(value, name), name)
    if body.structured_outputs:
        yield from _structured_outputs(body.structured_outputs)


def _response_format(given: Mapping[str, object]) -> Iterator[WantedGrammar]:
    kind = given.get("type")
    if kind not in RESPONSE_FORMATS:
        raise BadRequest(
            f"response_format.type is {shown(kind)}: it must be one of {', '.join(RESPONSE_FORMATS)}",
            "response_format.type",
        )
    if kind == "json_object":
        schema = given.get("schema")
        param = "response_format.schema"
        yield WantedGrammar(_schema(schema, param) if schema else _ANY_OBJECT, param)
    elif kind == "json_schema":
        yield _named_schema(given)
    elif kind == "regex":
        param = "response_format.value"
        yield WantedGrammar(_regex(given.get("value"), param), param)
    elif kind == "grammar":
        param = "response_format.grammar"
        yield WantedGrammar(_grammar(given.get("grammar"), param), param)


def _named_schema(given: Mapping[str, object]) -> WantedGrammar:
    """OpenAI has the schema within ``json_schema``, beside its name; llama-server also takes it as ``schema``."""
    inner = given.get("json_schema")
    if inner is not None and not isinstance(inner, dict):
        raise BadRequest(
            f"response_format.json_schema is {shown(inner)}: it must be an object", "response_format.json_schema"
        )
    if inner is not None:
        schema, param = inner.get("schema"), "response_format.json_schema.schema"
    else:
        schema, param = given.get("schema"), "response_format.schema"
    return WantedGrammar(_ANY_OBJECT if schema is None else _schema(schema, param), param)


def _structured_outputs(given: Mapping[str, object]) -> Iterator[WantedGrammar]:
    for name, value in given.items():
        param = f"structured_outputs.{name}"
        if value is None or value is False or value == "" or name in _IGNORED_OUTPUTS:
            continue
        read = _OUTPUTS.get(name)
        if read is None:
            raise BadRequest(f"{param} is {shown(value)}: this server does not support it; leave it out", param)
        yield WantedGrammar(read(value, param), param)


def _schema(value: object, param: str) -> GrammarSpec:
    if isinstance(value, str):
        return GrammarSpec(GrammarKind.JSON_SCHEMA, value)
    if not isinstance(value, (dict, bool)):
        raise BadRequest(f"{param} is {shown(value)}: it must be a JSON Schema", param)
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(value, ensure_ascii=False))


def _regex(value: object, param: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.REGEX, _text(value, param, "a regular expression"))


def _grammar(value: object, param: str) -> GrammarSpec:
    """GBNF, or Lark if it looks like that."""
    source = _text(value, param, "a grammar")
    return GrammarSpec(GrammarKind.LARK if _LARK.search(source) else GrammarKind.GBNF, source)


def _choice(value: object, param: str) -> GrammarSpec:
    if not isinstance(value, list):
        raise BadRequest(f"{param} is {shown(value)}: it must be an array of strings", param)
    return GrammarSpec(GrammarKind.CHOICE, json.dumps(value, ensure_ascii=False))


def _object(value: object, param: str) -> GrammarSpec:
    if value is not True:
        raise BadRequest(f"{param} is {shown(value)}: it must be true or false", param)
    return _ANY_OBJECT


def _text(value: object, param: str, what: str) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"{param} is {shown(value)}: it must be {what}", param)
    return value


_Read = Callable[[object, str], GrammarSpec]
_FIELDS: Mapping[str, _Read] = {
    "json_schema": _schema,
    "grammar": _grammar,
    "regex": _regex,
    "ebnf": _grammar,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
}
_OUTPUTS: Mapping[str, _Read] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _object,
}
