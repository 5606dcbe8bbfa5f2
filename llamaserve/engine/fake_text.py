"""What the fake engine says: bytes are tokens, a function draws the next one. Pure; any thread."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from llamaserve.engine.port import FimTokens, Score
from llamaserve.errors import BadToken

EOS = 256
BOS = 257
N_VOCAB = 258
SPECIAL_TEXT = {b"<eos>": EOS, b"<bos>": BOS}
"""How control tokens are written in a text."""

_SPECIAL = re.compile(b"(" + b"|".join(SPECIAL_TEXT) + b")")

Continuation = Callable[[tuple[int, ...]], int]
"""All tokens of a sequence, prompt and drawn, to the next one."""


def letters(history: tuple[int, ...]) -> int:
    """A lower-case letter that depends on the history; never ends."""
    recent = 0
    for token in history[-3:]:
        recent = recent * 31 + token
    return ord("a") + (recent * 7 + len(history) * 11) % 26


def scripted(replies: Mapping[str, str | bytes]) -> Continuation:
    """Answers each prompt, given without BOS, with its reply and an EOS; a prompt that is not listed with an EOS."""
    texts = {prompt.encode(): reply.encode() if isinstance(reply, str) else reply for prompt, reply in replies.items()}

    def continuation(history: tuple[int, ...]) -> int:
        written = bytes(token for token in history if token < EOS)
        for prompt in sorted(texts, key=len, reverse=True):
            if written.startswith(prompt):
                reply = texts[prompt]
                n_said = len(written) - len(prompt)
                return reply[n_said] if n_said < len(reply) else EOS
        return EOS

    return continuation


def score(likeliest: int, token: int, n_top: int) -> Score:
    """How likely a token is where another is the likeliest: half as much for each id in between, counted upwards and
    around the end."""
    ranked = [(likeliest + rank) % N_VOCAB for rank in range(N_VOCAB)]
    top = [(other, _written(other), -(rank + 1) * math.log(2)) for rank, other in enumerate(ranked[:n_top])]
    return token, _written(token), -(ranked.index(token) + 1) * math.log(2), tuple(top)


def _written(token: int) -> bytes:
    return FakeVocabulary().detokenize([token], special=True)


class FakeVocabulary:
    """Bytes 0 to 255, then EOS and BOS; ``fim_tokens`` are bytes that are used for nothing else."""

    def __init__(self, fim_tokens: FimTokens | None = None) -> None:
        self.fim_tokens = fim_tokens

    @property
    def n_tokens(self) -> int:
        """258."""
        return N_VOCAB

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The UTF-8 bytes; ``add_special`` puts BOS in front, ``parse_special`` reads "<eos>" and "<bos>"."""
        tokens = [BOS] if add_special else []
        parts = _SPECIAL.split(text.encode()) if parse_special else [text.encode()]
        for part in parts:
            tokens += [SPECIAL_TEXT[part]] if parse_special and part in SPECIAL_TEXT else part
        return tokens

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> bytes:
        """The bytes; ``special`` writes control tokens out. Raises BadToken."""
        names = {token: name for name, token in SPECIAL_TEXT.items()}
        for token in tokens:
            check_token(token)
        return b"".join(bytes([token]) if token < EOS else names[token] if special else b"" for token in tokens)

    def find_breakers(self, texts: Sequence[str]) -> None:
        """There is nothing to look up: nothing here repeats or breaks."""
        del texts

    def is_eog(self, token: int) -> bool:
        """Whether the token is EOS. Raises BadToken."""
        check_token(token)
        return token == EOS


def check_token(token: int, param: str = "prompt") -> None:
    """Raise BadToken for a token outside the vocabulary."""
    if not 0 <= token < N_VOCAB:
        raise BadToken(token, N_VOCAB, param)
