"""Masks computed together are those computed alone."""

from __future__ import annotations

from llamaserve.constraint import TokenConstraint
from llamaserve.engine.fake_text import FakeVocabulary
from llamaserve.errors import GrammarFailed
from llamaserve.grammar.compiler import GrammarCompiler
from llamaserve.grammar.filler import ParallelFiller
from llamaserve.grammar.spec import GrammarKind, GrammarSpec, Trigger, TriggerKind
from llamaserve.grammar.tokens import mask_bytes

SPECS = (
    GrammarSpec(GrammarKind.JSON_OBJECT, ""),
    GrammarSpec(GrammarKind.REGEX, "[a-z]+"),
    GrammarSpec(GrammarKind.REGEX, "x", (Trigger(TriggerKind.WORD, "go"),)),
    GrammarSpec(GrammarKind.REGEX, "go[0-9]", (Trigger(TriggerKind.WORD, "go"),)),
)


def begin_all(compiler: GrammarCompiler) -> list[TokenConstraint]:
    states = [compiler.compile(spec).begin() for spec in SPECS]
    for token in b"go":
        states[3].accept(token)
    return states


def test_masks_filled_together_are_those_of_each_alone() -> None:
    """Those that have not begun allow anything; a mask that is there already stays."""
    vocab = FakeVocabulary()
    compiler = GrammarCompiler(vocab)
    alone, together = begin_all(compiler), begin_all(compiler)
    filler = ParallelFiller(2, mask_bytes(vocab.n_tokens))
    filler.fill(together)
    assert [state.mask() for state in together] == [state.mask() for state in alone]
    together[0].accept(ord("{"))
    alone[0].accept(ord("{"))
    filler.fill(together)
    filler.fill(together[:1])
    assert [state.mask() for state in together] == [state.mask() for state in alone]
    compiler.close()


def test_one_that_cannot_go_on_fails_alone() -> None:
    vocab = FakeVocabulary()
    compiler = GrammarCompiler(vocab)
    states = [
        compiler.compile(GrammarSpec(GrammarKind.LARK, 'start: /b/ (a b){100000}\na: b{100000}\nb: "x"')).begin(),
        compiler.compile(GrammarSpec(GrammarKind.REGEX, "ab")).begin(),
        compiler.compile(GrammarSpec(GrammarKind.REGEX, "abc")).begin(),
    ]
    n_failed = 0
    filler = ParallelFiller(2, mask_bytes(vocab.n_tokens))
    states[1].accept(ord("a"))
    try:
        states[0].accept(ord("z"))
    except GrammarFailed:
        n_failed = 1
    filler.fill(states)
    assert states[1].mask() == compiler.compile(GrammarSpec(GrammarKind.REGEX, "b")).begin().mask()
    try:
        states[0].mask()
    except GrammarFailed:
        n_failed += 1
    assert n_failed == 2
    compiler.close()
