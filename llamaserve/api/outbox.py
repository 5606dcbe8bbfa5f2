"""What is on its way to one client of a stream. Event loop only.

Each piece of text is an event of its own, a few hundred bytes for a few letters, as long as the client keeps up. For
one that does not, what comes beyond ``EVENT_BYTES`` is kept as bare text and becomes one event: however slowly a client
reads, no more waits for it than that many bytes and the text of its own answer.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable

from llamaserve.request import TextDelta

EVENT_BYTES = 64 * 1024


class Outbox:
    """Events and text in their order; ``encode_text`` makes an event, or none, of text."""

    __slots__ = ("_encode_text", "_events", "_letters", "_n_bytes", "_tokens")

    def __init__(self, encode_text: Callable[[TextDelta], bytes]) -> None:
        self._encode_text = encode_text
        self._events: list[bytes] = []
        self._n_bytes = 0
        self._letters = io.StringIO()
        self._tokens = array("i")

    def add_text(self, delta: TextDelta) -> None:
        """Append text. Raises what the encoder raises."""
        if self._n_bytes < EVENT_BYTES:
            self._append(self._encode_text(delta))
        else:
            self._letters.write(delta.text)
            self._tokens.extend(delta.tokens)

    def add_event(self, event: bytes) -> None:
        """Append an event. Raises what the encoder raises."""
        self._encode_held_text()
        self._append(event)

    def take(self) -> bytes:
        """Everything, which is then gone. Raises what the encoder raises."""
        self._encode_held_text()
        everything = b"".join(self._events)
        self._events.clear()
        self._n_bytes = 0
        return everything

    def _append(self, event: bytes) -> None:
        self._events.append(event)
        self._n_bytes += len(event)

    def _encode_held_text(self) -> None:
        if self._tokens or self._letters.tell():
            held = TextDelta(self._letters.getvalue(), tuple(self._tokens))
            self._letters = io.StringIO()
            self._tokens = array("i")
            self._append(self._encode_text(held))
