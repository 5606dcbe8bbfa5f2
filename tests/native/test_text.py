"""Vocabulary and chat template of the native engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.chat.template import ChatOptions
from llamaserve.config import EngineConfig
from llamaserve.engine.native import NativeEngine, NativeVocabulary
from llamaserve.engine.port import FimTokens
from llamaserve.errors import BadRequest, BadTemplate, BadToken
from tests.native.tiny_models import write_byte_pair_model, write_dense_model


@pytest.fixture(scope="module")
def engine(default_model: Path) -> NativeEngine:
    return NativeEngine.load(EngineConfig(default_model, n_ctx=256))


@pytest.fixture(scope="module")
def vocab(engine: NativeEngine) -> NativeVocabulary:
    return engine.vocab


def test_text_survives_the_round_trip(vocab: NativeVocabulary) -> None:
    # This vocabulary has no token for some bytes: control characters, and lead bytes of rare planes.
    letters = st.characters(min_codepoint=0x20, max_codepoint=0x24F, exclude_categories=["Cc"])

    @given(st.text(st.one_of(letters, st.sampled_from("\n\t世界日本αβγ🙂🎉€")), max_size=60))
    def survives(text: str) -> None:
        tokens = vocab.tokenize(text, add_special=False, parse_special=False)
        assert vocab.detokenize(tokens, special=True).decode() == text

    survives()


def test_special_tokens_are_parsed_only_when_asked(vocab: NativeVocabulary) -> None:
    parsed = vocab.tokenize("<|im_end|>", add_special=False, parse_special=True)
    assert len(parsed) == 1
    assert vocab.is_eog(parsed[0])
    assert vocab.detokenize(parsed, special=False) == b""
    assert vocab.detokenize(parsed, special=True) == b"<|im_end|>"
    assert len(vocab.tokenize("<|im_end|>", add_special=False, parse_special=False)) > 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"pre": 20, "suf": 21}, None),
        ({"pre": 20, "suf": 21, "mid": 22}, FimTokens(20, 21, 22)),
        ({"pre": 20, "suf": 21, "mid": 22, "sep": 24}, FimTokens(20, 21, 22, file=24)),
        ({"pre": 20, "suf": 21, "mid": 22, "rep": 23, "sep": 24}, FimTokens(20, 21, 22, 23, 24)),
    ],
)
def test_a_vocabulary_says_which_tokens_fill_in_the_middle(
    tmp_path: Path, given: dict[str, int], expected: FimTokens | None
) -> None:
    path = write_dense_model(tmp_path / "fim.gguf", fim_tokens=given)
    loaded = NativeEngine.load(EngineConfig(path, n_ctx=256))
    assert loaded.vocab.fim_tokens == expected
    loaded.shutdown()


def test_a_zero_byte_is_text(vocab: NativeVocabulary) -> None:
    tokens = vocab.tokenize("a\0b", add_special=False, parse_special=False)
    assert vocab.detokenize(tokens, special=False) == b"a\0b"


def test_a_lone_surrogate_is_refused(vocab: NativeVocabulary) -> None:
    with pytest.raises(BadRequest, match="lone surrogate stands at character 3"):
        vocab.tokenize("abc\ud800", add_special=False, parse_special=False)


@pytest.mark.parametrize("token", [-1, 49152, 2**31, 2**62])
def test_ids_outside_the_vocabulary_are_refused(vocab: NativeVocabulary, token: int) -> None:
    """K26: llama.cpp crashes on some."""
    with pytest.raises(BadToken):
        vocab.detokenize([token], special=False)
    with pytest.raises(BadToken):
        vocab.is_eog(token)


# Those whose split llama.cpp has by hand are safe; the others go through a regular expression that recurses.
PRE_TOKENIZERS = ["smollm", "gpt-4o", "tekken", "deepseek-llm", "deepseek-v3", "viking", "bloom", "falcon", "default"]


@pytest.mark.parametrize("pre_tokenizer", PRE_TOKENIZERS)
def test_a_long_run_of_one_character_does_not_exhaust_the_stack(tmp_path: Path, pre_tokenizer: str) -> None:
    """K26: 27 KB of one letter kill a process otherwise."""
    path = write_byte_pair_model(tmp_path / "pairs.gguf", pre_tokenizer)
    engine = NativeEngine.load(EngineConfig(path, n_ctx=256))
    for character in ("a", "7", " ", "\n", "é", "!", "世"):
        text = character * 100_000
        tokens = engine.vocab.tokenize(text, add_special=False, parse_special=True)
        assert engine.vocab.detokenize(tokens, special=False).decode() == text
    engine.shutdown()


@pytest.mark.parametrize("character", ["a", "7", " ", "\n", "é"])
def test_a_run_too_long_for_any_stack_is_refused(vocab: NativeVocabulary, character: str) -> None:
    message = "the text has 262145 letters, digits, spaces or signs in a row; at most 262144"
    with pytest.raises(BadRequest, match=message):
        vocab.tokenize("x." + character * 262_145, add_special=True, parse_special=True)
    assert vocab.tokenize("ab " * 300_000, add_special=True, parse_special=True)


def test_the_chat_template_renders_the_conversation(engine: NativeEngine) -> None:
    assert engine.chat_template is not None
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi \u00e9\u4e16"}]
    rendered = engine.chat_template.render(messages)
    assert rendered.prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi \u00e9\u4e16<|im_end|>\n<|im_start|>assistant\n"
    )
    assert engine.chat_template.render(messages, ChatOptions(add_generation_prompt=False)).prompt.endswith(
        "<|im_end|>\n"
    )


@pytest.mark.parametrize(
    "messages", [[{"content": "no role"}], [{"role": "user", "content": 7}], [{"role": "user", "content": "\ud800"}]]
)
def test_messages_that_cannot_be_rendered_are_refused(engine: NativeEngine, messages: list[dict[str, object]]) -> None:
    assert engine.chat_template is not None
    with pytest.raises(BadTemplate):
        engine.chat_template.render(messages)


def test_a_template_that_raises_is_a_request_error(tmp_path: Path) -> None:
    """Templates say in their own words which conversations they take."""
    path = write_dense_model(tmp_path / "strict.gguf", chat_template="{{ raise_exception('roles must alternate') }}")
    strict = NativeEngine.load(EngineConfig(path, n_ctx=256))
    assert strict.chat_template is not None
    with pytest.raises(BadTemplate, match="roles must alternate"):
        strict.chat_template.render([{"role": "user", "content": "Hi"}])
    strict.shutdown()
