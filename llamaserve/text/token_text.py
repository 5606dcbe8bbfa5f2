"""One request's text: bytes of tokens -> characters -> stop strings. Scheduler thread only; knows no model."""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve._hot import StopMatcher, Utf8Stream


class TokenText:
    """Turns the pieces of a request into text that can be given out: whole characters (S61), no part of a stop (K151).

    Raises ValueError if a stop string is empty.
    """

    __slots__ = ("_characters", "_matcher")

    def __init__(self, stops: Sequence[str]) -> None:
        self._characters = Utf8Stream()
        self._matcher = StopMatcher(stops) if stops else None

    def push(self, piece: bytes) -> str:
        """Add a token's bytes; the text that can be given out now, maybe none. "" once a stop string was found."""
        text = self._characters.push(piece)
        return text if self._matcher is None else self._matcher.push(text)

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended the text."""
        return None if self._matcher is None else self._matcher.matched

    def flush(self) -> str:
        """End the text: what was held back, with U+FFFD for a character that broke off; "" after a stop string."""
        text = self._characters.flush()
        return text if self._matcher is None else self._matcher.push(text) + self._matcher.flush()
