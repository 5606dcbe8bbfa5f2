"""One of two restrictions, whichever the answer turns out to follow: both hold until a token is allowed by one only.

They are not written as one grammar: llguidance reads a text with one lexer at a time, and of two that could go on it
would take one for good.
"""

from __future__ import annotations

from llamaserve.constraint import Constraint, MaskFiller, TokenConstraint
from llamaserve.errors import GrammarFailed


class Either:
    """A Constraint. Any thread."""

    def __init__(self, *options: Constraint) -> None:
        self._options = options

    def begin(self) -> TokenConstraint:
        """For a new answer."""
        return EitherMatcher([option.begin() for option in self._options])


class EitherMatcher:
    """One answer: a TokenConstraint. Scheduler thread only."""

    def __init__(self, options: list[TokenConstraint]) -> None:
        """Of each the answer may follow yet."""
        self._options = options

    def mask(self) -> bytes | None:
        """What any of them allows. One that cannot go on is left out; the last one's failure is the answer's."""
        masks = [mask for mask in map(self._mask, list(self._options)) if mask is not None]
        if len(masks) < len(self._options):
            return None
        if len(masks) == 1:
            return masks[0]
        united = 0
        for mask in masks:
            united |= int.from_bytes(mask, "little")
        return united.to_bytes(len(masks[0]), "little")

    def accept(self, token: int) -> None:
        """Move on with those that allow it."""
        is_only_one = len(self._options) == 1
        going_on: list[TokenConstraint] = []
        failure = GrammarFailed(f"the grammar does not allow token {token} here")
        for option in self._options:
            if is_only_one or _allows(option, token):
                try:
                    option.accept(token)
                    going_on.append(option)
                except GrammarFailed as error:
                    failure = error
        if not going_on:
            raise failure
        self._options = going_on

    @property
    def is_complete(self) -> bool:
        """Whether nothing may come any more but the end, whichever it follows."""
        return all(option.is_complete for option in self._options)

    @property
    def filler(self) -> MaskFiller | None:
        """Nobody: masks are computed one by one here."""
        return None

    def _mask(self, option: TokenConstraint) -> bytes | None:
        try:
            return option.mask()
        except GrammarFailed:
            if len(self._options) == 1:
                raise
            self._options.remove(option)
            return None


def _allows(option: TokenConstraint, token: int) -> bool:
    try:
        mask = option.mask()
    except GrammarFailed:
        return False
    return mask is None or bool(mask[token // 8] >> token % 8 & 1)
