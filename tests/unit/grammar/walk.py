"""Drives a restriction by itself: tokens drawn at random from what it allows, over the fake engine's bytes."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from llamaserve.constraint import Constraint, TokenConstraint
from llamaserve.engine.fake_masks import allowed_tokens
from llamaserve.engine.fake_text import EOS

CLOSERS = b'"}]'
LIKELY_END = 0.4
"""How often a text ends, a string or a bracket closes, where it may."""


@dataclass(frozen=True, slots=True)
class Walk:
    """A text, and whether it came to its end."""

    text: bytes
    is_whole: bool


def walk(constraint: Constraint, random: Random, most_tokens: int = 4000) -> Walk:
    """Draw tokens until the text ends or has so many. Fails where nothing is allowed."""
    state = constraint.begin()
    text = bytearray()
    while len(text) < most_tokens:
        if state.is_complete:
            return Walk(bytes(text), is_whole=True)
        token = _draw(state, random, hurry=len(text) > most_tokens // 4)
        state.accept(token)
        if token == EOS:
            return Walk(bytes(text), is_whole=True)
        text.append(token)
    return Walk(bytes(text), is_whole=False)


def takes(constraint: Constraint, text: bytes) -> bool:
    """Whether a text is allowed, and may end where it does."""
    state = constraint.begin()
    return all(_took(state, token) for token in text) and may_end(state)


def takes_start(constraint: Constraint, text: bytes) -> bool:
    """Whether a text is allowed as the beginning of one."""
    state = constraint.begin()
    return all(_took(state, token) for token in text)


def may_end(state: TokenConstraint) -> bool:
    """Whether the text may end here."""
    mask = state.mask()
    return mask is None or EOS in allowed_tokens(mask)


def _took(state: TokenConstraint, token: int) -> bool:
    mask = state.mask()
    if mask is not None and token not in allowed_tokens(mask):
        return False
    state.accept(token)
    return True


def _draw(state: TokenConstraint, random: Random, *, hurry: bool) -> int:
    mask = state.mask()
    allowed = range(EOS + 1) if mask is None else allowed_tokens(mask)
    assert allowed, "nothing is allowed"
    ends = [token for token in (EOS, *CLOSERS) if token in allowed]
    if ends and (hurry or random.random() < LIKELY_END):
        return ends[0] if hurry else random.choice(ends)
    return random.choice(list(allowed))
