"""Whatever a schema allows is an instance of it; a schema that cannot be held to is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from llamaserve.engine.fake_text import FakeVocabulary
from llamaserve.errors import BadGrammar
from llamaserve.grammar.compiler import GrammarCompiler
from llamaserve.grammar.spec import GrammarKind, GrammarSpec
from tests.unit.grammar.schema_corpus import Schema, corpus
from tests.unit.grammar.walk import walk

N_WALKS = 3
MOST_REFUSED = 45
SCHEMAS = list(corpus())


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(FakeVocabulary())
    yield compiler
    compiler.close()


def compiled_walks(compiler: GrammarCompiler, schema: Schema, seed: int) -> Iterator[tuple[bytes, bool]]:
    constraint = compiler.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
    for index in range(N_WALKS):
        one = walk(constraint, Random(seed * N_WALKS + index))
        yield one.text, one.is_whole


def check(schema: Schema, text: bytes) -> None:
    """Raise unless the text is JSON and an instance of the schema."""
    kind = validator_for(schema, default=Draft202012Validator)
    kind(schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(text))


def test_every_answer_is_an_instance_of_its_schema_or_the_schema_is_refused(compiler: GrammarCompiler) -> None:
    """300 schemas and more; texts that came to no end are those whose schema has none but very long ones."""
    assert len(SCHEMAS) >= 300
    refused: list[str] = []
    n_whole = 0
    n_cut = 0
    for index, schema in enumerate(SCHEMAS):
        try:
            for text, is_whole in compiled_walks(compiler, schema, index):
                if is_whole:
                    check(schema, text)
                    n_whole += 1
                else:
                    n_cut += 1
        except BadGrammar as error:
            refused.append(str(error))
    assert all(len(reason) > 10 for reason in refused)
    assert len(refused) <= MOST_REFUSED, refused
    assert n_cut <= n_whole // 50
