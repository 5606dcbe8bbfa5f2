"""From what the caller wrote to a grammar of llguidance. Pure; any thread.

Every grammar is put behind a first one whose options are ours: nothing is forced. llguidance would otherwise run ahead
of a text that can only go on in one way, however long that is, and ask the tokenizer for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from llguidance import regex_to_lark

from llamaserve.errors import BadGrammar, shown
from llamaserve.grammar.gbnf import read_gbnf
from llamaserve.grammar.gbnf_lark import lark_of_gbnf
from llamaserve.grammar.json_schema import MAX_PATTERN_LENGTH, read_schema
from llamaserve.grammar.lark_depth import check_depth
from llamaserve.grammar.schema_parts import Schema
from llamaserve.grammar.spec import GrammarKind, GrammarSpec
from llamaserve.grammar.tokens import GrammarTokens

MAX_SOURCE_LENGTH = 2**16
"""Characters of a schema or a grammar."""
MAX_CHOICES = 1000
JSON_SPACE = r" |\n{1,2}[ \t]{0,20}"
"""White space where JSON may have some: as llama.cpp's, bounded, so that no model writes lines without end."""

_OPTIONS = '%llguidance {"no_forcing": true}'
_FORCING = "no_forcing"


def grammar_of(spec: GrammarSpec, tokens: GrammarTokens) -> str:
    """The grammar for llguidance. Raises BadGrammar."""
    start = _part(spec, tokens)
    if "json_schema" in start:
        return _behind_options(start)
    inner = [] if spec.content is None else [{"name": "content", **_part(spec.content, tokens)}]
    return json.dumps({"grammars": [start, *inner]})


def _part(spec: GrammarSpec, tokens: GrammarTokens) -> Mapping[str, object]:
    """A source as one of llguidance's grammars."""
    n_characters = len(spec.source)
    if n_characters > MAX_SOURCE_LENGTH:
        raise BadGrammar(f"the {_word(spec)} has {n_characters} characters: at most {MAX_SOURCE_LENGTH} are allowed")
    try:
        spec.source.encode()
    except UnicodeEncodeError as error:
        raise BadGrammar(f"the {_word(spec)} is not valid Unicode: {error.reason} at {error.start}") from None
    if spec.kind is GrammarKind.JSON_OBJECT:
        return _json_schema({"type": "object"})
    if spec.kind is GrammarKind.JSON_SCHEMA:
        return _json_schema(read_schema(spec.source))
    if spec.kind is GrammarKind.REGEX:
        return _regex(spec.source)
    if spec.kind is GrammarKind.CHOICE:
        return _choice(spec.source)
    if spec.kind is GrammarKind.GBNF:
        return _lark(lark_of_gbnf(read_gbnf(spec.source), tokens.special))
    if _FORCING in spec.source:
        raise BadGrammar(f"the grammar sets {_FORCING}: that is not supported; leave it out")
    return _lark(spec.source)


def schema_grammar(schema: Schema) -> str:
    """The grammar of a schema that was read."""
    return _behind_options(_json_schema(schema))


def _behind_options(schema: Mapping[str, object]) -> str:
    start = {"lark_grammar": f"{_OPTIONS}\nstart: @schema"}
    return json.dumps({"grammars": [start, {"name": "schema", **schema}]})


def _json_schema(schema: Schema) -> Mapping[str, object]:
    options = {"whitespace_pattern": JSON_SPACE, "lenient": False}
    if isinstance(schema, Mapping):
        return {"json_schema": {**schema, "x-guidance": options}}
    return {"json_schema": {"x-guidance": options} if schema else schema}


def _lark(source: str) -> Mapping[str, object]:
    check_depth(source)
    # The last of several lines of options counts.
    return {"lark_grammar": f"{source}\n{_OPTIONS}\n"}


def _regex(source: str) -> Mapping[str, object]:
    if len(source) > MAX_PATTERN_LENGTH:
        raise BadGrammar(
            f"the regular expression has {len(source)} characters: at most {MAX_PATTERN_LENGTH} are allowed"
        )
    if not source:
        raise BadGrammar("the regular expression is empty: it would allow no text")
    return _lark(f"start: /{regex_to_lark(source, use_ascii='')}/")


def _choice(source: str) -> Mapping[str, object]:
    choices = json.loads(source)
    if not choices:
        raise BadGrammar("there is nothing to choose from: at least 1 text is needed")
    if len(choices) > MAX_CHOICES:
        raise BadGrammar(f"there are {len(choices)} choices: at most {MAX_CHOICES} are allowed")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice:
            raise BadGrammar(f"choice {index} is {shown(choice)}: it must be a text that is not empty")
    return _lark("start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices))


def _word(spec: GrammarSpec) -> str:
    return {GrammarKind.JSON_SCHEMA: "schema", GrammarKind.REGEX: "regular expression"}.get(spec.kind, "grammar")
