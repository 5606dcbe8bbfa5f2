"""Log probabilities in the shapes clients know: OpenAI's for chats, its older one for completions, vLLM's for prompts.
Any thread.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec

from llamaserve.engine.port import Vocabulary
from llamaserve.request import TokenLogprob

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


class TopLogprob(msgspec.Struct):
    """One of the likeliest tokens of a place."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct):
    """A token of a chat's answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """``logprobs`` of a chat's choice."""

    content: list[ChatTokenLogprob]
    refusal: None = None


def chat_logprobs(tokens: Sequence[TokenLogprob], n_top: int) -> ChatLogprobs:
    """The tokens' probabilities, with ``n_top`` alternatives each."""
    return ChatLogprobs([_chat_token(token, n_top) for token in tokens])


def _chat_token(token: TokenLogprob, n_top: int) -> ChatTokenLogprob:
    top = [TopLogprob(_text(piece), _finite(logprob), list(piece)) for _, piece, logprob in token.top[:n_top]]
    return ChatTokenLogprob(_text(token.piece), _finite(token.logprob), list(token.piece), top)


class LegacyLogprobs(msgspec.Struct):
    """``logprobs`` of a completion's choice: lists side by side."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class LegacyWriter:
    """Writes the tokens of one choice, in order and in any number of parts. One thread.

    ``text_offset`` counts characters of the choice's text. A token that is no text of its own has a name that says its
    bytes, as OpenAI's has, so that two of them are two.
    """

    def __init__(self, vocab: Vocabulary, n_top: int) -> None:
        self._vocab = vocab
        self._n_top = n_top
        self._n_characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, tokens: Sequence[TokenLogprob]) -> LegacyLogprobs:
        """The next tokens."""
        return LegacyLogprobs(
            [_name(token.piece) for token in tokens],
            [None if token.logprob is None else _finite(token.logprob) for token in tokens],
            [self._top(token) for token in tokens],
            [self._offset(token.token) for token in tokens],
        )

    def _offset(self, token: int) -> int:
        offset = self._n_characters
        # As the text has it: control tokens are no part of that.
        self._n_characters += len(self._decoder.decode(self._vocab.detokenize([token], special=False)))
        return offset

    def _top(self, token: TokenLogprob) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        top: dict[str, float] = {}
        for _, piece, logprob in token.top[: self._n_top]:
            top.setdefault(_name(piece), _finite(logprob))
        top.setdefault(_name(token.piece), _finite(token.logprob))  # the token itself is always among them
        return top


class PromptTokenLogprob(msgspec.Struct):
    """A token that may stand at a place of the prompt, in vLLM's words."""

    logprob: float
    rank: int | None
    """1 is the likeliest; None for one that is not among those shown."""
    decoded_token: str


def prompt_logprobs(tokens: Sequence[TokenLogprob], n_top: int) -> list[dict[str, PromptTokenLogprob] | None]:
    """For each token of a prompt it and ``n_top`` alternatives, by id; null for the first, which nothing precedes."""
    return [_prompt_token(token, n_top) for token in tokens]


def _prompt_token(token: TokenLogprob, n_top: int) -> dict[str, PromptTokenLogprob] | None:
    if token.logprob is None:
        return None
    ranked = {
        str(other): PromptTokenLogprob(_finite(logprob), rank, _text(piece))
        for rank, (other, piece, logprob) in enumerate(token.top, 1)
        if rank <= n_top or other == token.token
    }
    ranked.setdefault(str(token.token), PromptTokenLogprob(_finite(token.logprob), None, _text(token.piece)))
    return ranked


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def _name(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _finite(logprob: float | None) -> float:
    return LOWEST if logprob is None else max(logprob, LOWEST)
