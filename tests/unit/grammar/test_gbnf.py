"""GBNF: what is read, what is refused and where, and that texts of a grammar are those llama.cpp would take."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.engine.fake_text import BOS, EOS, FakeVocabulary
from llamaserve.errors import BadGrammar, GrammarFailed
from llamaserve.grammar.compiler import CompiledGrammar, GrammarCompiler
from llamaserve.grammar.gbnf import Choice, Literal, read_gbnf
from llamaserve.grammar.gbnf_lark import has_beginnings, lark_of_gbnf
from llamaserve.grammar.spec import GrammarKind, GrammarSpec
from llamaserve.grammar.special import SpecialTexts
from tests.unit.grammar.walk import takes, takes_start, walk

GRAMMARS = Path(__file__).resolve().parents[3] / "vendor" / "llama.cpp" / "grammars"
SOON_S = 1.0
"""For what takes some hundredths of a second."""
UNTIL = 'until ::= ([^<] | "<" [^t])*\n'


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(FakeVocabulary())
    yield compiler
    compiler.close()


def gbnf(compiler: GrammarCompiler, source: str) -> CompiledGrammar:
    return compiler.compile(GrammarSpec(GrammarKind.GBNF, source))


@pytest.mark.parametrize(
    ("source", "whole", "not_whole"),
    [
        ('root ::= "a" | "bc"', [b"a", b"bc"], [b"", b"b", b"abc"]),
        ('root ::= "a" |', [b"a", b""], [b"b"]),
        ("root ::= [a-c] [^a-c] .", [b"ax\n", b"cd\xc3\xa9"], [b"aa", b"dx"]),
        ('root ::= "x"* "y"+ "z"?', [b"y", b"xxyyz"], [b"x", b"yzz"]),
        ('root ::= "a"{2} "b"{1,} "c"{0,2}', [b"aab", b"aabbcc"], [b"ab", b"aac", b"aabccc"]),
        ('root ::= ("a" | b){2,3}\nb ::= "(" b? ")"', [b"aa", b"a(())a"], [b"a", b"aaaa", b"((a"]),
        ('root ::= a\na ::= a "x" | "y"', [b"y", b"yxx"], [b"x", b""]),
        ('root ::= "\\x41\\u00e9\\U0001F600\\t\\"\\\\"', ["Aé😀\t\"\\".encode()], [b"A"]),
        ("root ::= [\\]x\\n-]", [b"]", b"\n", b"-"], [b"y"]),
        ("# first\nroot ::= a # of two\n\n  # rules\na ::=\n  \"x\" |\n  \"y\"\n", [b"x", b"y"], [b"a"]),
        ('root ::= ("a"\n | "b"\n)', [b"a", b"b"], [b"c"]),
        ("root ::= a_b _c\na_b ::= \"x\"\n_c ::= \"y\"", [b"xy"], [b"x"]),
        ("root ::= [a-z]* \"end\"", [b"end", b"endend", b"blend"], [b"ending", b"en"]),
        ('root ::= until "<t>" x\nx ::= "{" x* "}"\n' + UNTIL, [b"<t>{}", b"a<b<t>{{}{}}"], [b"<t{}", b"a"]),
        ('root ::= until c\nc ::= "<t>" x | "<tb>"\nx ::= "{" x* "}"\n' + UNTIL, [b"b<t>{{}}", b"a<b><tb>"], [b"<tc>"]),
    ],
)  # fmt: skip
def test_a_grammar_takes_its_texts_and_no_others(
    compiler: GrammarCompiler, source: str, whole: list[bytes], not_whole: list[bytes]
) -> None:
    grammar = gbnf(compiler, source)
    assert [text for text in whole if not takes(grammar, text)] == []
    assert [text for text in not_whole if takes(grammar, text)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("json", '{"a": [1, 2.5e3, {"b": null}], "c": "x\\n\\u00e9"}'),
        ("json_arr", "[\n1,\n2]"),
        ("arithmetic", "a=12\n"),
        ("chess", "1. e4 e5\n2. Nf3 Nc6\n"),
        ("list", "- a\n- bcd\n"),
        ("english", "Hello there, World."),
        ("japanese", "日本語"),
        ("c", "int f(int a){return a;}"),
    ],
)
def test_llama_cpps_own_grammars_take_their_texts(compiler: GrammarCompiler, name: str, text: str) -> None:
    source = (GRAMMARS / f"{name}.gbnf").read_text(encoding="utf-8")
    grammar = gbnf(compiler, source)
    assert takes(grammar, text.encode())
    assert any(walk(grammar, Random(seed)).is_whole for seed in range(5))


def test_a_literal_that_spells_a_control_token_is_that_token_too(compiler: GrammarCompiler) -> None:
    """As llama.cpp, which reads control tokens as they are written."""
    grammar = gbnf(compiler, 'root ::= "a<bos>b" x\nx ::= "{" x* "}"')
    assert takes(grammar, b"a<bos>b{}")
    state = grammar.begin()
    for token in (*b"a", BOS, *b"b{}", EOS):
        state.accept(token)


def test_tokens_are_named_by_text_or_id(compiler: GrammarCompiler) -> None:
    grammar = gbnf(compiler, 'root ::= <bos> <[97]> !<[98]> "."')
    for tokens, is_taken in (((BOS, 97, 97), True), ((BOS, 97, 98), False), ((97,), False)):
        state = grammar.begin()
        if is_taken:
            for token in (*tokens, ord("."), EOS):
                state.accept(token)
        else:
            with pytest.raises(GrammarFailed, match="does not allow token"):
                [state.accept(token) for token in tokens]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "the grammar has no rule named root"),
        ('x ::= "a"', "the grammar has no rule named root"),
        ("root ::= y", "the rule 'y' is not defined (line 1, column 10 of the grammar)"),
        ('root ::= "a"\nroot ::= "b"', "the rule 'root' is defined twice (line 2, column 1 of the grammar)"),
        ("root = x", "'::=' is missing after the name of a rule (line 1, column 6 of the grammar)"),
        ("root ::= (", "')' is missing (line 1, column 11 of the grammar)"),
        ('root ::= "a" )', "unexpected ')' (line 1, column 14 of the grammar)"),
        ('root ::= "a', "does not end"),
        ("root ::= [a", "does not end"),
        ("root ::= []", "a set of characters is empty"),
        ("root ::= [z-a]", "a range of characters ends before it begins"),
        ('root ::= "\\q"', "unknown escape \\q (line 1, column 11 of the grammar)"),
        ('root ::= "\\x4"', "\\x wants 2 hexadecimal digits"),
        ('root ::= "\\ud800"', "there is no character d800"),
        ('root ::= "a"{2001}', "repeated 2001 times: at most 2000 are allowed"),
        ('root ::= "a"{3,2}', "at least 3 and at most 2 times"),
        ('root ::= "a"{,3}', "a repetition is written {n}, {n,} or {n,m}"),
        ('root ::= "a"*****', "more than 4 repetitions"),
        ("root ::= <no such token>", "which is no control token of this model"),
        ("root ::= <[x]>", "which is no control token of this model"),
        ("root ::= " + "(" * 65, "brackets are nested more than 64 deep"),
        ("root ::= " + "(" * 60_000, "brackets are nested more than 64 deep"),
    ],
)  # fmt: skip
def test_a_bad_grammar_is_refused_with_its_place(compiler: GrammarCompiler, source: str, reason: str) -> None:
    """K32."""
    with pytest.raises(BadGrammar, match=re.escape(reason)):
        gbnf(compiler, source)


def test_a_grammar_whose_rules_would_become_too_many_is_refused(compiler: GrammarCompiler) -> None:
    source = 'root ::= "a" ' + "".join(f'("{index}"root)?' for index in range(4_100))
    with pytest.raises(BadGrammar, match="becomes more than 4000 rules"):
        gbnf(compiler, source)


def test_rules_that_multiply_when_lexemes_move_into_them_are_refused_in_time(compiler: GrammarCompiler) -> None:
    starts = " | ".join(f'[a-z]* "{index}" r' for index in range(1_000))
    source = f"root ::= {starts}\nr ::= " + " | ".join(f'r "{index}"' for index in range(1_000))
    begun = time.monotonic()
    with pytest.raises(BadGrammar, match="become more than"):
        gbnf(compiler, source)
    assert time.monotonic() - begun < SOON_S


def test_a_beginning_is_taken_as_far_as_it_goes(compiler: GrammarCompiler) -> None:
    grammar = gbnf(compiler, 'root ::= "abc"')
    assert takes_start(grammar, b"ab")
    assert not takes(grammar, b"ab")
    assert not takes_start(grammar, b"b")


def test_rules_are_read_in_their_order() -> None:
    assert list(read_gbnf('b ::= "x"\nroot ::= b')) == ["b", "root"]


TEXTS = st.lists(st.text("ab", max_size=4), max_size=12)


@given(texts=TEXTS)
def test_a_choice_ends_loosely_where_one_text_begins_another(texts: list[str]) -> None:
    options = tuple(Literal(text) for text in texts)
    expected = any(one != other and other.startswith(one) for one in texts for other in texts)
    assert has_beginnings(Choice(options)) == expected


def test_a_choice_among_thousands_of_words_is_read_in_time(compiler: GrammarCompiler) -> None:
    words = ["".join(letters) for letters in product("abcdefghij", repeat=4)][:6_000]
    source = "root ::= " + " | ".join(f'"{word}"' for word in words)
    begun = time.monotonic()
    written = lark_of_gbnf(read_gbnf(source), SpecialTexts({}))
    assert time.monotonic() - begun < SOON_S
    assert len(written) > len(words) * 6
    assert takes(gbnf(compiler, source), words[-1].encode())


def test_a_long_rule_that_a_long_chain_refers_to_is_measured_once() -> None:
    chain = "".join(f"a{index} ::= x a{index + 1}\n" for index in range(1_500))
    source = f"root ::= a0\n{chain}a1500 ::= x\nx ::= " + " ".join(['"ab"'] * 6_000)
    begun = time.monotonic()
    lark_of_gbnf(read_gbnf(source), SpecialTexts({}))
    assert time.monotonic() - begun < SOON_S
