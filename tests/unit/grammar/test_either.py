"""An answer under one of two restrictions: both hold until it follows one only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llamaserve.constraint import TokenConstraint
from llamaserve.engine.fake_masks import allowed_tokens
from llamaserve.engine.fake_text import EOS, FakeVocabulary
from llamaserve.errors import GrammarFailed
from llamaserve.grammar.compiler import GrammarCompiler
from llamaserve.grammar.either import Either
from llamaserve.grammar.spec import GrammarKind, GrammarSpec, Trigger, TriggerKind
from tests.unit.grammar.walk import takes


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(FakeVocabulary())
    yield compiler
    compiler.close()


def either(compiler: GrammarCompiler, *patterns: str) -> Either:
    return Either(*(compiler.compile(GrammarSpec(GrammarKind.REGEX, pattern)) for pattern in patterns))


def allowed(state: TokenConstraint) -> list[int]:
    mask = state.mask()
    assert mask is not None
    return list(allowed_tokens(mask))


def test_it_takes_the_texts_of_both_and_no_mixture(compiler: GrammarCompiler) -> None:
    constraint = either(compiler, "abc", "abd+e")
    assert all(takes(constraint, text) for text in (b"abc", b"abde", b"abdde"))
    assert not any(takes(constraint, text) for text in (b"ab", b"abce", b"abd", b"x"))


def test_its_mask_is_of_both_until_one_is_out(compiler: GrammarCompiler) -> None:
    state = either(compiler, "ab", "ac+").begin()
    state.accept(ord("a"))
    assert allowed(state) == [ord("b"), ord("c")]
    state.accept(ord("c"))
    assert allowed(state) == [ord("c"), EOS]


def test_it_is_complete_when_neither_can_go_on(compiler: GrammarCompiler) -> None:
    state = either(compiler, "a", "ab").begin()
    state.accept(ord("a"))
    assert not state.is_complete
    assert allowed(state) == [ord("b"), EOS]
    state.accept(ord("b"))
    assert state.is_complete


def test_a_token_that_neither_allows_fails_the_answer(compiler: GrammarCompiler) -> None:
    for patterns in (("a", "b"), ("a", "ab")):
        state = either(compiler, *patterns).begin()
        state.accept(ord("a"))
        with pytest.raises(GrammarFailed, match="does not allow token"):
            state.accept(ord("z"))


def test_one_that_waits_for_its_trigger_lets_any_token_come(compiler: GrammarCompiler) -> None:
    trigger = Trigger(TriggerKind.WORD, "<c>")
    lazy = compiler.compile(GrammarSpec(GrammarKind.GBNF, 'root ::= "<c>" [0-9]', (trigger,)))
    state = Either(lazy, compiler.compile(GrammarSpec(GrammarKind.REGEX, "ab"))).begin()
    assert state.mask() is None
    for token in b"abx<c>":
        state.accept(token)
    assert allowed(state) == list(b"0123456789")


def test_a_grammar_that_becomes_too_large_leaves_the_other(compiler: GrammarCompiler) -> None:
    names = [f"r{index}" for index in range(2_100)]  # more than the parser takes at once
    bomb = f'start: "x" ({"|".join(names)})\n' + "\n".join(f'{name}: "{name}"' for name in names)
    large = compiler.compile(GrammarSpec(GrammarKind.LARK, bomb))
    state = Either(large, compiler.compile(GrammarSpec(GrammarKind.REGEX, "xy"))).begin()
    state.accept(ord("x"))
    assert allowed(state) == [ord("y")]
