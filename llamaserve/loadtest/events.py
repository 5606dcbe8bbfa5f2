"""Server-sent events out of bytes, split anywhere. Pure; one object a response."""

from __future__ import annotations

from typing import NamedTuple

MAX_EVENT_BYTES = 16 * 1024 * 1024

_IGNORED_FIELDS = (b"id", b"retry")


class NotEvents(Exception):
    """The bytes are no server-sent events; the message quotes them."""


class Event(NamedTuple):
    """One event: its name, empty for the usual one, and its data."""

    name: bytes
    data: bytes


class EventReader:
    """Takes pieces of a response's body, gives the events they complete.

    Stricter than a browser, which ignores what it does not know: a server that sends HTML or plain JSON is broken for
    our purpose and must be noticed.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._name = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, piece: bytes) -> list[Event]:
        """Events completed by this piece. Raises NotEvents."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        events: list[Event] = []
        for line in lines:
            self._take_line(line.removesuffix(b"\r"), events)
        if self._data_bytes + len(self._rest) > MAX_EVENT_BYTES:
            raise NotEvents(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return events

    def end(self) -> None:
        """The body is over. Raises NotEvents if what is left is not the beginning of an event."""
        field = self._rest.partition(b":")[0]
        known = (b"data", b"event", b"error", *_IGNORED_FIELDS)
        if not any(name.startswith(field) for name in known):
            raise NotEvents(_quoted(self._rest))

    def _take_line(self, line: bytes, events: list[Event]) -> None:
        if not line:
            if self._data:
                events.append(Event(self._name, b"\n".join(self._data)))
            self._name, self._data, self._data_bytes = b"", [], 0
            return
        field, colon, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._data_bytes += len(line)
        elif field == b"event":
            self._name = value
        elif field == b"error" and colon:  # older llama-server puts an error into a field of its own
            events.append(Event(b"error", value))
        elif field and field not in _IGNORED_FIELDS:
            raise NotEvents(_quoted(line))


def _quoted(line: bytes) -> str:
    return f"not a server-sent event: {line[:120].decode('utf-8', 'replace')!r}"
