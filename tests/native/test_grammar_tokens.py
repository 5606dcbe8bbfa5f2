"""Real vocabularies under a grammar: their bytes, their control tokens and their ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llamaserve import _engine
from llamaserve.engine.native import NativeVocabulary
from llamaserve.grammar.compiler import GrammarCompiler
from llamaserve.grammar.spec import GrammarKind, GrammarSpec
from llamaserve.grammar.tokens import GrammarTokens, grammar_tokens

JSON_TEXT = '{"name": "Zoë 🍏", "n": [1, -2.5e3], "ok": true}'


@pytest.fixture(scope="module")
def vocab(default_model: Path) -> NativeVocabulary:
    return NativeVocabulary(_engine.Model.inspect(os.fsencode(default_model)))


@pytest.fixture(scope="module")
def tokens(vocab: NativeVocabulary) -> GrammarTokens:
    return grammar_tokens(vocab)


def allowed(mask: bytes | None, n_tokens: int) -> set[int]:
    assert mask is not None
    assert len(mask) == (n_tokens + 31) // 32 * 4
    return {token for token in range(n_tokens) if mask[token // 8] >> token % 8 & 1}


def test_a_token_stands_for_the_bytes_the_engine_gives_it(vocab: NativeVocabulary, tokens: GrammarTokens) -> None:
    for token in range(vocab.n_tokens):
        piece = vocab.detokenize([token], special=False)
        if piece:
            assert tokens.tokenizer.decode_bytes([token]) == piece
        else:
            assert tokens.tokenizer.is_special_token(token)


def test_every_token_that_ends_a_text_is_known(vocab: NativeVocabulary, tokens: GrammarTokens) -> None:
    assert tokens.ends == {token for token in range(vocab.n_tokens) if vocab.is_eog(token)} != set()
    assert allowed(tokens.all_but_ends, vocab.n_tokens) == set(range(vocab.n_tokens)) - tokens.ends
    assert (
        tokens.special.token("<|im_start|>") == vocab.tokenize("<|im_start|>", add_special=False, parse_special=True)[0]
    )


@pytest.mark.parametrize("text", ["{", "日本", "a b\n", "\x00", "🍏"])
def test_any_bytes_can_be_spelled(tokens: GrammarTokens, text: str) -> None:
    data = text.encode()
    for start in range(len(data)):
        assert tokens.tokenizer.decode_bytes(tokens.spell(data[start:])) == data[start:]


def test_a_json_text_passes_as_the_model_writes_it_and_any_end_may_follow(vocab: NativeVocabulary) -> None:
    compiler = GrammarCompiler(vocab)
    state = compiler.compile(GrammarSpec(GrammarKind.JSON_OBJECT, "")).begin()
    ends = {token for token in range(vocab.n_tokens) if vocab.is_eog(token)}
    for token in vocab.tokenize(JSON_TEXT, add_special=False, parse_special=False):
        may = allowed(state.mask(), vocab.n_tokens)
        assert token in may
        assert not may & ends
        state.accept(token)
    assert state.is_complete
    assert allowed(state.mask(), vocab.n_tokens) == ends
    compiler.close()


def test_no_control_token_is_allowed_within_a_string(vocab: NativeVocabulary) -> None:
    compiler = GrammarCompiler(vocab)
    state = compiler.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, '{"type": "string"}')).begin()
    state.accept(vocab.tokenize('"', add_special=False, parse_special=False)[0])
    may = allowed(state.mask(), vocab.n_tokens)
    assert len(may) > vocab.n_tokens // 2
    assert [token for token in may if not vocab.detokenize([token], special=False)] == []
    compiler.close()


def test_a_control_token_that_a_grammar_spells_may_come_as_such(vocab: NativeVocabulary) -> None:
    """What templates mark calls with is often one."""
    compiler = GrammarCompiler(vocab)
    state = compiler.compile(GrammarSpec(GrammarKind.GBNF, 'root ::= "<|im_start|>" ("x" root)?')).begin()
    (control,) = vocab.tokenize("<|im_start|>", add_special=False, parse_special=True)
    may = allowed(state.mask(), vocab.n_tokens)
    assert control in may
    assert vocab.tokenize("<", add_special=False, parse_special=False)[0] in may
    state.accept(control)
    assert vocab.tokenize("x", add_special=False, parse_special=False)[0] in allowed(state.mask(), vocab.n_tokens)
    compiler.close()
