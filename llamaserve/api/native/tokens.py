"""From texts to token ids and back, for those who only ask about tokens. Preparing threads only: tokenisers block."""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.api.native.token_bodies import DetokenizeBody, TokenizeAnswer, TokenizeBody, TokenPiece
from llamaserve.api.openai.tokenizing import check_tokens
from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadRequest

MAX_CHARACTERS = 2**20
"""Of the texts of one request; so many take about a second."""
MAX_TEXTS = 2**12
"""Of a list of texts and token ids; each costs 70 us beside its length."""
MAX_TOKENS = 2**20
MAX_PIECES = 2**17
"""Tokens that come with their pieces: each is an object."""


def tokenized(body: TokenizeBody, vocab: Vocabulary, n_ctx: int) -> TokenizeAnswer:
    """What a body asks for. Raises BadRequest, BadToken."""
    if body.prompt is None:
        return TokenizeAnswer(tokens_of(body, vocab))
    if body.content is not None:
        raise BadRequest("content and prompt are both given: they are two names of one thing", "prompt")
    asked = TokenizeBody(
        content=body.prompt, add_special=body.add_special_tokens is not False, with_pieces=body.with_pieces
    )
    tokens = tokens_of(asked, vocab, "prompt")
    return TokenizeAnswer(tokens, len(tokens), n_ctx)


def tokens_of(body: TokenizeBody, vocab: Vocabulary, param: str = "content") -> list[int | TokenPiece]:
    """The tokens a body asks for. Raises BadRequest for too much text and too many tokens, BadToken for an id outside
    the vocabulary; they name ``param``."""
    if body.content is None:
        raise BadRequest(f"{param}: this field is required", param)
    parts = [body.content] if isinstance(body.content, str) else body.content
    n_characters = sum(len(part) for part in parts if isinstance(part, str))
    if n_characters > MAX_CHARACTERS:
        raise BadRequest(f"{param} has {n_characters} characters: it must have at most {MAX_CHARACTERS}", param)
    n_texts = sum(isinstance(part, str) for part in parts)
    if n_texts > MAX_TEXTS:
        raise BadRequest(f"{param} has {n_texts} texts: it must have at most {MAX_TEXTS}", param)
    _check_number(param, len(parts) if isinstance(body.content, list) else 0, MAX_TOKENS)
    tokens = mixed_tokens(
        parts, vocab, add_special=bool(body.add_special), parse_special=body.parse_special is not False
    )
    _check_number(param, len(tokens), MAX_PIECES if body.with_pieces else MAX_TOKENS)
    check_tokens(param, tokens, vocab)
    if body.with_pieces:
        return [TokenPiece(token, piece_of(token, vocab)) for token in tokens]
    return [*tokens]


def mixed_tokens(parts: Sequence[str | int], vocab: Vocabulary, *, add_special: bool, parse_special: bool) -> list[int]:
    """Texts and token ids one after another; what belongs in front of a text is put in front of all, unless that
    begins with a token id."""
    tokens: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            is_first = index == 0
            tokens += vocab.tokenize(part, add_special=add_special and is_first, parse_special=parse_special)
        else:
            tokens.append(part)
    return tokens


def piece_of(token: int, vocab: Vocabulary) -> str | list[int]:
    """What a token stands for, control tokens written out: text, or bytes where they are no whole characters."""
    piece = vocab.detokenize([token], special=True)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def text_of(body: DetokenizeBody, vocab: Vocabulary) -> str:
    """The text of a body's tokens, control tokens written out. Raises BadToken, BadRequest for too many."""
    _check_number("tokens", len(body.tokens), MAX_TOKENS)
    check_tokens("tokens", body.tokens, vocab)
    return vocab.detokenize(body.tokens, special=True).decode("utf-8", "replace")


def _check_number(param: str, n_tokens: int, most: int) -> None:
    if n_tokens > most:
        raise BadRequest(f"{param} has {n_tokens} tokens: it must have at most {most}", param)
