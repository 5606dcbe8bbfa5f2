"""Terminals that refer to each other: as deep as anybody needs, and never so deep that a stack ends."""

from __future__ import annotations

import pytest

from llamaserve.engine.fake_text import FakeVocabulary
from llamaserve.errors import BadGrammar
from llamaserve.grammar.compiler import GrammarCompiler
from llamaserve.grammar.lark_depth import MAX_DEPTH, check_depth
from llamaserve.grammar.spec import GrammarKind, GrammarSpec
from tests.unit.grammar.walk import takes


def chain(n: int, form: str = 'A{here}: A{next} "c"') -> str:
    return "\n".join(["start: A0", *(form.format(here=i, next=i + 1) for i in range(n)), f'A{n}: "b"'])


def test_a_chain_of_terminals_has_an_end() -> None:
    check_depth(chain(MAX_DEPTH - 1))
    with pytest.raises(BadGrammar, match="500 deep"):
        check_depth(chain(MAX_DEPTH))


def test_text_hides_no_references() -> None:
    with pytest.raises(BadGrammar, match="500 deep"):
        check_depth(chain(2000, 'A{here}: /"/ A{next} /"/'))


def test_brackets_count_as_references() -> None:
    with pytest.raises(BadGrammar, match="500 deep"):
        check_depth(chain(MAX_DEPTH // 3 + 1, 'A{here}: ((A{next} "c") | "a")'))


def test_many_terminals_beside_each_other_are_not_deep() -> None:
    names = [f"T{i}" for i in range(2000)]
    check_depth("\n".join([f"start: {' | '.join(names)}", *(f'{name}: "((((" | /\\(/' for name in names)]))


def test_terminals_that_refer_to_themselves_are_left_to_the_compiler() -> None:
    check_depth('start: A\nA: B "x"\nB: A | "y"')


FORMS = (
    'r{here} ::= r{next} "c" | "a"',
    'r{here} ::= r{next} r{next} | "a"',
    'r{here} ::= "a" r{next}',
    "r{here} ::= r{next}?",
)


@pytest.mark.parametrize("form", FORMS)
def test_rules_of_gbnf_that_refer_to_each_other_thousands_deep_are_refused(form: str) -> None:
    compiler = GrammarCompiler(FakeVocabulary())
    rules = [form.format(here=i, next=i + 1) for i in range(2000)]
    with pytest.raises(BadGrammar):
        compiler.compile(GrammarSpec(GrammarKind.GBNF, "\n".join(["root ::= r0", *rules, 'r2000 ::= "b"'])))


def test_a_hundred_deep_is_compiled() -> None:
    compiler = GrammarCompiler(FakeVocabulary())
    rules = [f'r{i} ::= "a" r{i + 1}' for i in range(100)]
    compiled = compiler.compile(GrammarSpec(GrammarKind.GBNF, "\n".join(["root ::= r0", *rules, 'r100 ::= "b"'])))
    assert takes(compiled, b"a" * 100 + b"b")


@pytest.mark.parametrize("form", ['r{here}: r{next} "c" | "a"', 'r{here}: "a" r{next}'])
def test_rules_are_no_terminals(form: str) -> None:
    rules = [form.format(here=i, next=i + 1) for i in range(2600)]
    check_depth("\n".join(["start: r0", *rules, 'r2600: "b"']))
