"""Grammars that begin later: where, and with which text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from llamaserve.constraint import TokenConstraint
from llamaserve.engine.fake_masks import allowed_tokens
from llamaserve.engine.fake_text import BOS, EOS, FakeVocabulary
from llamaserve.errors import BadGrammar, GrammarFailed
from llamaserve.grammar.compiler import GrammarCompiler
from llamaserve.grammar.lazy import MOST_KEPT, MOST_MATCHED, Triggers
from llamaserve.grammar.spec import GrammarKind, GrammarSpec, Trigger, TriggerKind
from tests.unit.grammar.walk import may_end

CALL = 'root ::= "<call>" "x"+ "</call>"'
WORD = Trigger(TriggerKind.WORD, "<call>")


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(FakeVocabulary())
    yield compiler
    compiler.close()


def begun(compiler: GrammarCompiler, source: str, *triggers: Trigger, after: str = "") -> TokenConstraint:
    return compiler.compile(GrammarSpec(GrammarKind.GBNF, source, triggers, after)).begin()


def feed(state: TokenConstraint, text: bytes) -> None:
    for token in text:
        state.accept(token)


def allowed(state: TokenConstraint) -> list[int] | None:
    mask = state.mask()
    return None if mask is None else list(allowed_tokens(mask))


def test_before_the_trigger_any_token_may_come_and_after_it_the_grammars(compiler: GrammarCompiler) -> None:
    state = begun(compiler, CALL, WORD)
    assert allowed(state) is None
    feed(state, b"any text <cal, <call")
    assert allowed(state) is None
    assert not state.is_complete
    feed(state, b">")
    assert allowed(state) == [ord("x")]
    feed(state, b"x</call>")
    assert state.is_complete


def test_a_text_without_the_trigger_may_end(compiler: GrammarCompiler) -> None:
    state = begun(compiler, CALL, WORD)
    feed(state, b"no call")
    state.accept(EOS)


def test_a_trigger_may_be_a_token(compiler: GrammarCompiler) -> None:
    """A control token too, which the grammar spells."""
    state = begun(compiler, 'root ::= "<bos>" [0-9]', Trigger(TriggerKind.TOKEN, BOS))
    feed(state, b"text")
    state.accept(BOS)
    assert allowed(state) == list(b"0123456789")


@pytest.mark.parametrize(
    ("pattern", "text", "rest"),
    [
        ("<call>", b"a <call>", b"x"),  # from where the match begins
        ("tool: (<call>)", b"tool: <call>", b"x"),  # from the first group that matched
        ("a()(<call>)", b"a<call>", b"x"),
        ("^<call>", b"<call>", b"x"),
    ],
)
def test_a_pattern_gives_the_grammar_its_first_group(
    compiler: GrammarCompiler, pattern: str, text: bytes, rest: bytes
) -> None:
    state = begun(compiler, CALL, Trigger(TriggerKind.PATTERN, pattern))
    feed(state, text[:-1])
    assert allowed(state) is None
    feed(state, text[-1:])
    assert allowed(state) == list(rest)


def test_a_full_pattern_must_match_all_the_text(compiler: GrammarCompiler) -> None:
    trigger = Trigger(TriggerKind.PATTERN_FULL, "\\s*(<call>)")
    state = begun(compiler, CALL, trigger)
    feed(state, b" \n<call>")
    assert allowed(state) == [ord("x")]
    state = begun(compiler, CALL, trigger)
    feed(state, b"no <call>")
    assert allowed(state) is None


def test_a_token_with_a_trigger_and_more_than_may_come_behind_it_is_text(compiler: GrammarCompiler) -> None:
    """Nothing could have forbidden it; the next trigger counts."""
    compiler = GrammarCompiler(PairVocabulary())
    for after in ("", "</think>"):
        source = 'root ::= "k>" [0-9]'
        state = begun(compiler, source, Trigger(TriggerKind.WORD, "k>"), after=after)
        feed(state, after.encode())
        state.accept(BOS)  # "k> ..."
        assert allowed(state) is None
        assert not state.is_complete
        feed(state, b"text k")
        assert allowed(state) is None
        feed(state, b">")
        assert allowed(state) == list(b"0123456789")
    compiler.close()


def test_a_trigger_is_found_after_a_very_long_text(compiler: GrammarCompiler) -> None:
    """Only its end is kept; a trigger at the seam is found, one that wants the beginning is not."""
    anchored = Trigger(TriggerKind.PATTERN, "^y*(<call>)")
    state = begun(compiler, CALL, WORD)
    feed(state, b"y" * (2 * MOST_KEPT - 3) + b"<call>")
    assert allowed(state) == [ord("x")]
    state = begun(compiler, CALL, anchored)
    feed(state, b"y" * (3 * MOST_KEPT) + b"<call>")
    assert allowed(state) is None


def test_a_pattern_is_not_searched_in_all_the_text_for_each_token() -> None:
    """But one that wants the beginning is, and a match may begin well before its end."""
    sizes: list[int] = []

    class Recording:
        pattern = b"<call>"

        def search(self, text: bytearray, start: int) -> None:
            sizes.append(len(text) - start)

    triggers = Triggers(frozenset(), (), ((Recording(), False),))  # type: ignore[arg-type]  # what is used of a pattern
    text = bytearray(b"y" * 2 * MOST_KEPT)
    assert triggers.find(text, len(text) - 5, is_cut=False) is None
    assert sizes == [MOST_MATCHED + 5]


@pytest.mark.parametrize("pattern", ["^y*(<call>)", "<go>y*(<call>)"])
def test_a_match_may_be_long(compiler: GrammarCompiler, pattern: str) -> None:
    n_between = 2 * MOST_MATCHED if pattern.startswith("^") else MOST_MATCHED - 20
    state = begun(compiler, CALL, Trigger(TriggerKind.PATTERN, pattern))
    feed(state, b"" if pattern.startswith("^") else b"z" * 3000 + b"<go>")
    feed(state, b"y" * n_between + b"<call>")
    assert allowed(state) == [ord("x")]


def test_the_grammar_waits_for_the_end_of_a_reasoning(compiler: GrammarCompiler) -> None:
    """Which may say anything, but the answer must not end before."""
    state = begun(compiler, 'root ::= "{" [0-9] "}"', after="</think>")
    feed(state, b"thinking {9} ")
    assert not may_end(state)
    assert len(allowed(state) or ()) == EOS + 1  # all but EOS: the bytes, and BOS
    feed(state, b"</think>")
    assert allowed(state) == [ord("{")]
    feed(state, b"{7}")
    assert state.is_complete
    with pytest.raises(GrammarFailed, match="ended before '</think>'"):
        begun(compiler, 'root ::= "a"', after="</think>").accept(EOS)


def test_triggers_within_a_reasoning_do_not_count(compiler: GrammarCompiler) -> None:
    state = begun(compiler, CALL, WORD, after="</think>")
    feed(state, b"maybe <call>? </think>")
    assert allowed(state) is None
    feed(state, b" so <call>")
    assert allowed(state) == [ord("x")]


class PairVocabulary(FakeVocabulary):
    """The fake engine's bytes, but BOS is a text: the end of one thing and the beginning of another."""

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> bytes:
        (token,) = tokens
        return b"k> \n{" if token == BOS else super().detokenize(tokens, special=special)


def test_a_token_may_hold_the_end_of_a_reasoning_and_the_beginning_of_the_answer() -> None:
    compiler = GrammarCompiler(PairVocabulary())
    state = compiler.compile(GrammarSpec(GrammarKind.GBNF, 'root ::= "{" [0-9]', after="</think>")).begin()
    feed(state, b"</thin")
    state.accept(BOS)
    assert allowed(state) == list(b"0123456789")
    trigger = Trigger(TriggerKind.WORD, "{")
    state = compiler.compile(GrammarSpec(GrammarKind.GBNF, 'root ::= "{" [0-9]', (trigger,), "</think>")).begin()
    feed(state, b"</thin")
    state.accept(BOS)
    assert allowed(state) == list(b"0123456789")
    state = compiler.compile(GrammarSpec(GrammarKind.GBNF, 'root ::= "{" [0-9]', (trigger,))).begin()
    feed(state, b"thin")
    state.accept(BOS)
    assert allowed(state) == list(b"0123456789")
    compiler.close()


@pytest.mark.parametrize(("kind", "value"), [(TriggerKind.TOKEN, "x"), (TriggerKind.WORD, ""), (TriggerKind.WORD, 5)])
def test_a_trigger_of_the_wrong_type_is_refused(kind: TriggerKind, value: str | int) -> None:
    with pytest.raises(BadGrammar, match="the trigger's value is"):
        Trigger(kind, value)


def test_a_pattern_that_is_none_is_refused(compiler: GrammarCompiler) -> None:
    with pytest.raises(BadGrammar, match="is no regular expression"):
        begun(compiler, CALL, Trigger(TriggerKind.PATTERN, "(a"))
