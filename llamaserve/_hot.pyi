"""Loops over tokens, and over the bytes and characters of text, in Cython. One thread at a time uses an object."""

from array import array
from collections.abc import Sequence
from typing import final

def common_prefix(
    a: array[int] | memoryview, b: array[int] | memoryview, a_start: int = 0, b_start: int = 0, limit: int | None = None
) -> int:
    """How many tokens ``a`` from ``a_start`` on and ``b`` from ``b_start`` on begin with in common, ``limit`` at most.

    Copies nothing. Raises TypeError unless both are int32 buffers (``array("i")``, or a memoryview cast to it),
    BufferError if their items do not lie side by side, ValueError if a start is not inside its buffer or the limit is
    negative.
    """

@final
class Utf8Stream:
    """Incremental UTF-8: bytes in any cut, whole characters out (S61).

    Gives the characters that Python's incremental decoder gives with ``errors="replace"``: a byte that cannot belong
    to a character becomes U+FFFD at once, a character that is not complete yet waits for its next byte.
    """

    def __new__(cls) -> Utf8Stream: ...
    def push(self, data: bytes) -> str:
        """Add bytes; the characters that are complete with them. Raises TypeError if data is not bytes."""

    def flush(self) -> str:
        """End the text: U+FFFD if it broke off inside a character, else nothing. The stream is empty afterwards."""

@final
class StopMatcher:
    """Finds the stop strings in a text that comes in any cut (K151).

    The stop whose last character comes first wins; of those that end there, the one that starts earliest. Text that
    may still become a stop is held back: never more than the longest stop has, less one character. A character costs
    the same time at any length of the text (K25).
    """

    def __new__(cls, stops: Sequence[str]) -> StopMatcher:
        """Raises TypeError if stops is not a sequence of strings, ValueError if one of them is empty."""

    def push(self, text: str) -> str:
        """Add text; what can be given out now. Nothing of the stop or behind it is ever given out.
        Raises TypeError if text is not a string."""

    @property
    def matched(self) -> str | None:
        """The stop that was found."""

    def flush(self) -> str:
        """End the text: what was held back, as it is no stop after all; "" after a match."""
