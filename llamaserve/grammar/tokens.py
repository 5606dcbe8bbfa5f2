"""The vocabulary of a model as llguidance wants it. Built once for a model; any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import LLTokenizer, TokenizerWrapper

from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadGrammar, shown
from llamaserve.grammar.special import SpecialTexts

_SPECIAL_MARKER = b"\xff"
"""What a control token's bytes begin with for llguidance: no text matches it."""
_BITS_PER_WORD = 32


@dataclass(frozen=True, slots=True)
class GrammarTokens:
    """What masks and grammars need to know of a vocabulary."""

    vocab: Vocabulary
    tokenizer: LLTokenizer
    special: SpecialTexts
    ends: frozenset[int]
    """Tokens that end a generation."""
    all_but_ends: bytes
    """The mask that allows every token that ends nothing."""

    def piece(self, token: int) -> bytes:
        """The bytes a grammar sees of a token: control tokens are written out."""
        return self.vocab.detokenize([token], special=True)

    def spell(self, text: bytes) -> list[int]:
        """Some tokens that stand for a text, none of them a control token. Raises BadGrammar where there are none."""
        tokens = self.tokenizer.tokenize_bytes(text)
        if self.tokenizer.decode_bytes(tokens) != text:
            raise BadGrammar(f"no tokens of this model stand for {shown(text)}")
        return tokens


def grammar_tokens(vocab: Vocabulary) -> GrammarTokens:
    """Read a whole vocabulary: some microseconds a token, and seconds for the largest.

    Raises BadGrammar where no token ends a text.
    """
    pieces: list[bytes] = []
    special: dict[str, int] = {}
    ends: list[int] = []
    controls: list[int] = []
    for token in range(vocab.n_tokens):
        piece = vocab.detokenize([token], special=False)
        is_end = vocab.is_eog(token)
        if is_end:
            ends.append(token)
        if not piece or is_end:
            written = vocab.detokenize([token], special=True)
            piece = _SPECIAL_MARKER + written if written else b""
            if written:
                controls.append(token)
            if written and not is_end:
                special.setdefault(written.decode(errors="replace"), token)
        pieces.append(piece)
    if not ends:
        raise BadGrammar("this model has no token that ends a text: its answers cannot be restricted")
    words = _Words(pieces, controls, ends)
    words.tokenizer = LLTokenizer(TokenizerWrapper(words), eos_token=ends)
    mask = _all_but(ends, vocab.n_tokens)
    return GrammarTokens(vocab, words.tokenizer, SpecialTexts(special), frozenset(ends), mask)


class _Words:
    """The shape ``TokenizerWrapper`` reads. Texts become tokens without the model's own tokenizer, which may put a
    space before them: which tokens a grammar sees does not matter, their bytes do."""

    tokenizer: LLTokenizer

    def __init__(self, pieces: Sequence[bytes], controls: Sequence[int], ends: Sequence[int]) -> None:
        self.tokens = pieces
        self.special_token_ids = controls
        self.eos_token_id = ends[0]
        self.bos_token_id = None

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):  # the wrapper tries bytes first
            raise TypeError("the text must be a string")
        return self.tokenizer.greedy_tokenize(text)


def mask_bytes(n_tokens: int) -> int:
    """Bytes of a mask over so many tokens."""
    return (n_tokens + _BITS_PER_WORD - 1) // _BITS_PER_WORD * 4


def _all_but(tokens: Sequence[int], n_tokens: int) -> bytes:
    mask = bytearray(mask_bytes(n_tokens))
    whole, rest = divmod(n_tokens, 8)
    mask[:whole] = b"\xff" * whole
    if rest:
        mask[whole] = (1 << rest) - 1
    for token in tokens:
        mask[token // 8] &= ~(1 << token % 8)
    return bytes(mask)
