"""Ends a text at a line: one that is indented too little, or the first that ends when the time is over. Pure; scheduler
thread only. Made for code, whose next function nobody asked for.

Both as in llama-server: what begins a line too far left is cut off, an empty line too, and the first line, which goes
on with the prompt, is never measured.
"""

from __future__ import annotations

INDENTATION = " \t"


class LineLimits:
    """One request's text, as it is given out. ``is_over`` says that it has come to its end."""

    __slots__ = ("_max_s", "_min_indent", "_n_indent", "is_over")

    def __init__(self, min_indent: int, max_s: float | None) -> None:
        """``min_indent``: characters of indentation that each further line has at least, 0 = any number. ``max_s``:
        seconds after which the text ends with a line; None = it goes on."""
        self._min_indent = min_indent
        self._max_s = max_s
        self._n_indent: int | None = None
        """Of the line that has begun, as long as it is nothing but indentation."""
        self.is_over = False

    def take(self, text: str, elapsed_s: float) -> str:
        """The next piece of text, so many seconds after the first token; what of it is given out."""
        if self.is_over:
            return ""
        kept = text[: self._end(text)] if self._min_indent else text
        self.is_over = len(kept) < len(text) or (self._max_s is not None and elapsed_s > self._max_s and "\n" in kept)
        return kept

    def _end(self, text: str) -> int:
        """Where a line begins that is indented too little; the length of the text where none does."""
        position = 0
        while position < len(text):
            if self._n_indent is None:
                newline = text.find("\n", position)
                if newline < 0:
                    break
                self._n_indent = 0
                position = newline + 1
            elif text[position] in INDENTATION:
                self._n_indent += 1
                position += 1
            elif self._n_indent < self._min_indent:
                return position
            else:
                self._n_indent = None
        return len(text)
