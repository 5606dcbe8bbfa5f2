"""A grammar that begins later: behind the end of a reasoning, at a trigger, or both. Scheduler thread only.

What has come is kept as bytes until the grammar begins. For each token only what is new is searched: for words with as
much before it as they are long, for patterns with ``MOST_MATCHED`` bytes. A pattern that is bound to the beginning of
the text sees all that is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llamaserve.constraint import MaskFiller
from llamaserve.errors import BadGrammar, GrammarFailed, shown
from llamaserve.grammar.matcher import GrammarMatcher
from llamaserve.grammar.spec import GrammarSpec, Trigger, TriggerKind
from llamaserve.grammar.tokens import GrammarTokens

MOST_KEPT = 2**14
"""Bytes of text that a trigger is searched in."""
MOST_MATCHED = 2**11
"""Bytes before a token that a match of a pattern, which ends in the token, may begin at."""


@dataclass(frozen=True, slots=True)
class Triggers:
    """The triggers of a grammar, ready to be searched."""

    tokens: frozenset[int]
    words: tuple[bytes, ...]
    patterns: tuple[tuple[re.Pattern[bytes], bool], ...]
    """With whether all the text there is must match."""

    @classmethod
    def of(cls, triggers: Sequence[Trigger]) -> Triggers:
        """Raises BadGrammar for a pattern that is none."""
        texts = [(trigger.kind, trigger.value) for trigger in triggers if isinstance(trigger.value, str)]
        return cls(
            tokens=frozenset(trigger.value for trigger in triggers if isinstance(trigger.value, int)),
            words=tuple(text.encode() for kind, text in texts if kind is TriggerKind.WORD),
            patterns=tuple(
                (_compiled(text), kind is TriggerKind.PATTERN_FULL)
                for kind, text in texts
                if kind is not TriggerKind.WORD
            ),
        )

    def find(self, text: bytes | bytearray, n_before: int, *, is_cut: bool) -> int | None:
        """Where what triggers begins in a text of which ``n_before`` bytes were searched before; None = nowhere.
        ``is_cut``: the text had more before it."""
        for word in self.words:
            start = text.find(word, max(0, n_before - len(word) + 1))
            if start >= 0:
                return start
        for pattern, is_full in self.patterns:
            is_bound = is_full or pattern.pattern.startswith(b"^")
            if is_cut and is_bound:
                continue
            start = 0 if is_bound else max(0, n_before - MOST_MATCHED)
            match = pattern.fullmatch(text) if is_full else pattern.search(text, start)
            if match is not None:
                return next((match.start(i + 1) for i, group in enumerate(match.groups()) if group), match.start())
        return None


def _compiled(pattern: str) -> re.Pattern[bytes]:
    try:
        return re.compile(pattern.encode())
    except (re.error, RecursionError, OverflowError) as error:
        raise BadGrammar(f"the trigger {shown(pattern)} is no regular expression: {error}") from error


def _feed(matcher: GrammarMatcher, text: bytes, pieces: Sequence[tuple[int, int]], start: int) -> None:
    """Give a grammar the text from a position on: by its tokens where it has whole ones."""
    first = pieces[0][1] if pieces else len(text)
    if start < first:
        matcher.feed(text[start:first])
    ends = [*(begin for _, begin in pieces[1:]), len(text)]
    for (token, begin), end in zip(pieces, ends[: len(pieces)], strict=True):
        if begin < start < end:
            matcher.feed(text[start:end])
        elif start <= begin < end:
            matcher.accept(token)


class LazyMatcher:
    """One answer under a grammar that begins later: a TokenConstraint."""

    def __init__(
        self, spec: GrammarSpec, triggers: Triggers, tokens: GrammarTokens, begin: Callable[[], GrammarMatcher]
    ) -> None:
        """``begin`` makes the matcher when its time has come."""
        self._after = spec.after.encode()
        self._has_triggers = bool(spec.triggers)
        self._triggers = triggers
        self._tokens = tokens
        self._begin = begin
        self._text = bytearray()
        self._is_cut = False
        self._pieces: list[tuple[int, int]] = []
        """Tokens of the text and where they begin in it; what was cut off has none."""
        self.running: GrammarMatcher | None = None
        """The grammar, once it has begun."""

    def mask(self) -> bytes | None:
        """The grammar's, once it has begun. An answer that waits for the end of a reasoning only must not end."""
        if self.running is not None:
            return self.running.mask()
        return None if self._has_triggers else self._tokens.all_but_ends

    def accept(self, token: int) -> None:
        """Move on, or watch for the beginning."""
        if self.running is not None:
            self.running.accept(token)
        elif token in self._tokens.ends:
            if not self._has_triggers:
                raise GrammarFailed(f"the answer ended before {shown(self._after.decode())}")
        elif not self._after and token in self._triggers.tokens:
            self._start().accept(token)
        else:
            self._watch(token)

    @property
    def is_complete(self) -> bool:
        """Whether only the end may come."""
        return self.running is not None and self.running.is_complete

    @property
    def filler(self) -> MaskFiller | None:
        """The grammar's, once it has begun."""
        return None if self.running is None else self.running.filler

    def _watch(self, token: int) -> None:
        n_before = len(self._text)
        self._pieces.append((token, n_before))
        self._text += self._tokens.piece(token)
        if self._after:
            end = self._text.find(self._after, max(0, n_before - len(self._after) + 1))
            if end >= 0:
                self._pass(end + len(self._after))
                return
        elif (start := self._triggers.find(self._text, n_before, is_cut=self._is_cut)) is not None:
            self._feed_from(start)
            return
        self._shorten()

    def _pass(self, end: int) -> None:
        """The reasoning is over at this position."""
        self._after = b""
        rest = bytes(self._text[end:].lstrip())
        self._text.clear()
        self._pieces = []
        if not self._has_triggers:
            self._start().feed(rest)
        elif rest:
            self._text += rest
            if (start := self._triggers.find(rest, 0, is_cut=False)) is not None:
                self._feed_from(start)

    def _feed_from(self, start: int) -> None:
        """Begin, with the text from this position on."""
        matcher, text, pieces = self._start(), bytes(self._text), self._pieces
        self._text.clear()
        self._pieces = []
        try:
            _feed(matcher, text, pieces, start)
        except GrammarFailed:
            # Nothing could forbid a token that has more than the trigger in it. What was begun is none of what the
            # grammar describes, so it is text, and the next trigger counts.
            self.running = None
            self._is_cut = True

    def _start(self) -> GrammarMatcher:
        self.running = self._begin()
        return self.running

    def _shorten(self) -> None:
        """Forget what no trigger will be searched in any more."""
        if len(self._text) < 2 * MOST_KEPT:
            return
        n_cut = len(self._text) - MOST_KEPT
        del self._text[:n_cut]
        self._is_cut = True
        self._pieces = [(token, begin - n_cut) for token, begin in self._pieces if begin >= n_cut]
