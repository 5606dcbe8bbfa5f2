"""Ends a reasoning that goes on too long: a restriction around another, or around none.

Tokens are counted from the text that begins the reasoning to the one that ends it. When they are spent, the latter's
tokens are the only ones allowed, one after the other. A reasoning that begins anew has what the ones before it left.
Compiled once for a request by any thread; each answer's state
belongs to the scheduler thread.
"""

from __future__ import annotations

import codecs
import enum
from collections.abc import Sequence
from dataclasses import dataclass

from llamaserve.constraint import Constraint, MaskFiller, TokenConstraint
from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadRequest


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """Where a reasoning begins and ends."""

    start: str
    """"" where the template has no text for it: then an answer begins with it."""
    end: str
    is_begun: bool
    """Whether the prompt ends inside of it."""


class ReasoningBudget:
    """A Constraint that lets a reasoning have so many tokens."""

    def __init__(
        self, n_tokens: int, marks: ReasoningMarks, vocab: Vocabulary, inner: Constraint | None = None
    ) -> None:
        """Raises BadRequest where no tokens stand for the end of the reasoning."""
        self.n_tokens = n_tokens
        self.marks = marks
        self.vocab = vocab
        self.end_tokens = tuple(vocab.tokenize(marks.end, add_special=False, parse_special=True))
        self._inner = inner
        if not self.end_tokens:
            raise BadRequest("the model's vocabulary cannot write the end of its reasoning", "reasoning_budget")
        n_bytes = (vocab.n_tokens + 31) // 32 * 4
        self.end_masks = tuple(_only(token, n_bytes) for token in self.end_tokens)

    def begin(self) -> TokenConstraint:
        """For a new answer."""
        return _Counted(self, None if self._inner is None else self._inner.begin())


def _only(token: int, n_bytes: int) -> bytes:
    mask = bytearray(n_bytes)
    mask[token // 8] = 1 << token % 8
    return bytes(mask)


class _State(enum.Enum):
    WAITING = enum.auto()
    """For a reasoning to begin."""
    COUNTING = enum.auto()
    FORCING = enum.auto()
    """The end of the reasoning is being written."""
    DONE = enum.auto()
    """Nothing can begin another."""


@dataclass(frozen=True, slots=True)
class _InnerFiller:
    """A MaskFiller for answers whose inner restrictions have one."""

    filler: MaskFiller

    def fill(self, constraints: Sequence[TokenConstraint]) -> None:
        """As ``filler`` does for the inner restrictions."""
        inner = [constraint.inner for constraint in constraints if isinstance(constraint, _Counted)]
        self.filler.fill([constraint for constraint in inner if constraint is not None])


class _Counted:
    """One answer: a TokenConstraint."""

    def __init__(self, budget: ReasoningBudget, inner: TokenConstraint | None) -> None:
        self._budget = budget
        self.inner = inner
        self._state = _State.COUNTING if budget.marks.is_begun or not budget.marks.start else _State.WAITING
        self._n_left = budget.n_tokens
        self._n_forced = 0
        self._text = b""
        """Its end, as long as the mark that is waited for."""
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._force_if_spent()

    def mask(self) -> bytes | None:
        """The next token of the end, once the tokens are spent; else what the inner restriction says."""
        if self._state is _State.FORCING:
            return self._budget.end_masks[self._n_forced]
        return None if self.inner is None else self.inner.mask()

    def accept(self, token: int) -> None:
        """Count it."""
        if self.inner is not None:
            self.inner.accept(token)
        if self._state is _State.FORCING:
            self._n_forced += 1
            if self._n_forced == len(self._budget.end_tokens):
                self._n_forced = 0
                self._state = self._after_the_end
        elif self._state is not _State.DONE:
            self._read(self._budget.vocab.detokenize([token], special=True))

    def _read(self, piece: bytes) -> None:
        marks = self._budget.marks
        waited_for = (marks.start if self._state is _State.WAITING else marks.end).encode()
        text = self._text + piece
        self._characters.decode(piece)
        if waited_for in text:
            self._state = _State.COUNTING if self._state is _State.WAITING else self._after_the_end
            self._text = b""
        else:
            self._text = text[-len(waited_for) :]
            self._n_left -= self._state is _State.COUNTING
        self._force_if_spent()

    @property
    def _after_the_end(self) -> _State:
        return _State.WAITING if self._budget.marks.start else _State.DONE

    def _force_if_spent(self) -> None:
        # Not in the middle of a character.
        is_whole = not self._characters.getstate()[0]
        if self._state is _State.COUNTING and self._n_left <= 0 and is_whole:
            self._state = _State.FORCING

    @property
    def is_complete(self) -> bool:
        """As the inner restriction says."""
        return self.inner is not None and self._state is not _State.FORCING and self.inner.is_complete

    @property
    def filler(self) -> MaskFiller | None:
        """Whoever fills the inner restriction's masks, unless that has no say now."""
        inner = None if self.inner is None or self._state is _State.FORCING else self.inner.filler
        return None if inner is None else _InnerFiller(inner)
