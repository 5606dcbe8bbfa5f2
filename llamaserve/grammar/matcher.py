"""A grammar that holds from the first token on. Scheduler thread only."""

from __future__ import annotations

from llguidance import LLMatcher

from llamaserve.constraint import MaskFiller
from llamaserve.errors import GrammarFailed, shown
from llamaserve.grammar.tokens import GrammarTokens

_MAX_REASON = 300  # characters of what llguidance says


class GrammarMatcher:
    """One answer under one grammar: a TokenConstraint."""

    __slots__ = ("_filler", "_mask", "_tokens", "matcher")

    def __init__(self, matcher: LLMatcher, tokens: GrammarTokens, filler: MaskFiller | None = None) -> None:
        """``matcher`` is this answer's own."""
        self.matcher = matcher
        self._tokens = tokens
        self._filler = filler
        self._mask: bytes | None = None

    def mask(self) -> bytes:
        """As the grammar says. Raises GrammarFailed where it became too large to go on, or allows nothing."""
        mask = self._mask
        if mask is None:
            mask = self.keep_mask(self.matcher.compute_bitmask())
        if self.matcher.is_error() or mask == bytes(len(mask)):
            raise GrammarFailed(f"the grammar cannot go on: {reason(self.matcher)}")
        return mask

    def keep_mask(self, mask: bytes) -> bytes:
        """Take a mask that was computed elsewhere; as it is kept."""
        self._mask = mask = mask[: len(self._tokens.all_but_ends)]  # llguidance's own may be a word longer
        return mask

    @property
    def has_mask(self) -> bool:
        """Whether the mask is there already."""
        return self._mask is not None

    def accept(self, token: int) -> None:
        """Move on."""
        self._mask = None
        if not self.matcher.consume_token(token):
            raise GrammarFailed(f"the grammar does not allow token {token} here: {reason(self.matcher)}")

    def feed(self, text: bytes) -> None:
        """Move on by a text, in whatever tokens. Raises GrammarFailed where the grammar does not allow it."""
        self._mask = None
        if text and not self.matcher.consume_tokens(self._tokens.spell(text)):
            raise GrammarFailed(f"the grammar does not allow {shown(text)} here: {reason(self.matcher)}")

    @property
    def is_complete(self) -> bool:
        """Whether only the end may come."""
        return self.matcher.is_stopped() and not self.matcher.is_error()

    @property
    def filler(self) -> MaskFiller | None:
        """As given to the constructor."""
        return self._filler


def reason(matcher: LLMatcher) -> str:
    """Why a matcher failed, in a line."""
    text = matcher.get_error()
    for part in ("<state>", "<backtrace>", "<non-verbose/>"):
        text = text.partition(part)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or lines[0].startswith("NoExtension"):
        return "nothing may follow"
    if lines[0].startswith("oneOf constraints"):  # llguidance names an option of its own here
        return "oneOf is not supported where more than one of its schemas may match"
    details = [line for line in lines[1:] if line.startswith("error:")]
    return " ".join([lines[0], *details])[:_MAX_REASON]
