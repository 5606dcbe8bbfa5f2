"""Twin of ``llamaserve._hot.StopMatcher``: keeps the whole text and asks it after every character."""

from collections.abc import Sequence


class StopMatcher:
    """Finds stop strings; the first to end wins, then the one that starts earliest."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._text = ""
        self._n_released = 0
        self.matched: str | None = None

    def push(self, text: str) -> str:
        if self.matched is not None:
            return ""
        for character in text:
            self._text += character
            for stop in self._stops:
                if self._text.endswith(stop):
                    self.matched = stop
                    self._text = self._text.removesuffix(stop)
                    return self._release(0)
        return self._release(self._n_held())

    def flush(self) -> str:
        return self._release(0)

    def _n_held(self) -> int:
        """Length of the longest end of the text that a stop begins with."""
        return max(
            (n for stop in self._stops for n in range(1, len(stop)) if self._text.endswith(stop[:n])),
            default=0,
        )

    def _release(self, n_held: int) -> str:
        start, self._n_released = self._n_released, len(self._text) - n_held
        return self._text[start : self._n_released]
