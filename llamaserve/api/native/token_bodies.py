"""What llama-server's routes about tokens take and give, as types. Any thread."""

from __future__ import annotations

import msgspec

from llamaserve.api.openai.body import ChatBody


class TokenizeBody(msgspec.Struct, kw_only=True):
    """``POST /tokenize``, in llama-server's words or, with ``prompt``, in vLLM's."""

    content: str | list[str | int] | None = None
    """A text, or texts and token ids in their order."""
    prompt: str | None = None
    """A text."""
    add_special_tokens: bool | None = None
    """Whether the model's first token is put in front of ``prompt``; true."""
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
    """The tokens of a text; the numbers are vLLM's, for ``prompt``."""

    tokens: list[int | TokenPiece]
    count: int | msgspec.UnsetType = msgspec.UNSET
    max_model_len: int | msgspec.UnsetType = msgspec.UNSET
    """Most tokens of one sequence."""


class DetokenizeAnswer(msgspec.Struct):
    """The text of tokens; what is no character becomes U+FFFD."""

    content: str
    prompt: str
    """The same, in vLLM's word."""


class TokenizerInfo(msgspec.Struct):
    """What a client needs of the tokenizer beside the routes about tokens, in vLLM's words."""

    tokenizer_class: str
    """llama.cpp's name of its kind."""
    model_max_length: int
    """Most tokens of one sequence."""
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    """As they are written; null where the model has none."""
    chat_template: str | None


class TemplateAnswer(msgspec.Struct):
    """A conversation as the model reads it."""

    prompt: str


class InputTokensAnswer(msgspec.Struct):
    """How many tokens a conversation has."""

    input_tokens: int
    object: str = "response.input_tokens"
