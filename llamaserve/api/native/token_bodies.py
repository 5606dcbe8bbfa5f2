"""What llama-server's routes about tokens take and give, as types. Any thread."""

from __future__ import annotations

import msgspec

from llamaserve.api.openai.body import ChatBody


class TokenizeBody(msgspec.Struct, kw_only=True):
    """``POST /tokenize``."""

    content: str | list[str | int]
    """A text, or texts and token ids in their order."""
    add_special: bool | None = None
    """Whether the model's first token is put in front; false."""
    parse_special: bool | None = None
    """Whether control tokens written in a text are read as such; true."""
    with_pieces: bool | None = None
    """Whether each token comes with what it stands for; false."""
    model: str | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """``POST /detokenize``."""

    tokens: list[int]
    model: str | None = None


class TemplateBody(ChatBody, kw_only=True):
    """``POST /apply-template`` and the routes that count a chat's tokens: a chat's body."""


class TokenPiece(msgspec.Struct):
    """A token with what it stands for."""

    id: int
    piece: str | list[int]
    """Its bytes where they are no whole characters."""


class TokenizeAnswer(msgspec.Struct):
    """The tokens of a text."""

    tokens: list[int | TokenPiece]


class DetokenizeAnswer(msgspec.Struct):
    """The text of tokens; what is no character becomes U+FFFD."""

    content: str


class TemplateAnswer(msgspec.Struct):
    """A conversation as the model reads it."""

    prompt: str


class InputTokensAnswer(msgspec.Struct):
    """How many tokens a conversation has."""

    input_tokens: int
    object: str = "response.input_tokens"
