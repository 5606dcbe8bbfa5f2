"""What is on its way to one client of a stream. Event loop only.

Each piece of text is an event of its own, a few hundred bytes for a few letters, as long as the client keeps up. For
one that does not, what comes beyond ``EVENT_BYTES`` is kept as bare text and becomes one event a choice: however slowly
a client reads, no more waits for it than that many bytes and the text of its own answer. Text with log probabilities is
an event at once nevertheless: these are most of it, as bytes they take less room, and all of them at once would take
long to write.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Sequence

from llamaserve.request import TextDelta

EVENT_BYTES = 64 * 1024


class Outbox:
    """Events and text in their order; ``encode_texts`` has a function for each choice that makes events of text."""

    __slots__ = ("_encode_texts", "_events", "_held", "_n_bytes")

    def __init__(self, encode_texts: Sequence[Callable[[TextDelta], bytes]]) -> None:
        self._encode_texts = encode_texts
        self._events: list[bytes] = []
        self._n_bytes = 0
        self._held: dict[int, _HeldText] = {}

    def add_text(self, choice: int, delta: TextDelta) -> None:
        """Append text. Raises what the encoder raises."""
        if delta.logprobs:
            self._encode_held_text()
        if delta.logprobs or self._n_bytes < EVENT_BYTES:
            self._append(self._encode_texts[choice](delta))
            return
        held = self._held.get(choice)
        if held is None:
            held = self._held[choice] = _HeldText()
        held.add(delta)

    def add_event(self, encode: Callable[[], bytes]) -> None:
        """Append an event, which is encoded behind all text before it. Raises what the encoders raise."""
        self._encode_held_text()
        self._append(encode())

    def take(self) -> bytes:
        """Everything, which is then gone. Raises what the encoder raises."""
        self._encode_held_text()
        everything = b"".join(self._events)
        self._events.clear()
        self._n_bytes = 0
        return everything

    def _encode_held_text(self) -> None:
        held, self._held = self._held, {}
        for choice, text in held.items():
            self._append(self._encode_texts[choice](text.delta))

    def _append(self, event: bytes) -> None:
        self._events.append(event)
        self._n_bytes += len(event)


class _HeldText:
    """Text of a choice that is no event yet, without log probabilities."""

    __slots__ = ("_letters", "_tokens")

    def __init__(self) -> None:
        self._letters = io.StringIO()
        self._tokens = array("i")

    def add(self, delta: TextDelta) -> None:
        self._letters.write(delta.text)
        self._tokens.extend(delta.tokens)

    @property
    def delta(self) -> TextDelta:
        return TextDelta(self._letters.getvalue(), tuple(self._tokens))
