"""Server-sent events come out of bytes the same way however these are split, and what is none is noticed."""

from __future__ import annotations

import pytest

from llamaserve.loadtest import events
from llamaserve.loadtest.events import Event, EventReader, NotEvents

STREAM = (
    b": a comment\n\n"
    b'data: {"a": 1}\n\n'
    b"event: error\r\ndata: broken\r\n\r\n"
    b"id: 7\nretry: 10\ndata: one\ndata:two\n\n"
    b'error: {"code": 500}\n\n'
    b"data\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [
    Event(b"", b'{"a": 1}'),
    Event(b"error", b"broken"),
    Event(b"", b"one\ntwo"),
    Event(b"error", b'{"code": 500}'),
    Event(b"", b""),
    Event(b"", b"[DONE]"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, len(STREAM)])
def test_events_are_the_same_however_the_bytes_are_split(size: int) -> None:
    reader = EventReader()
    found = [event for at in range(0, len(STREAM), size) for event in reader.feed(STREAM[at : at + size])]
    reader.end()
    assert found == EVENTS


def test_an_event_comes_out_only_when_it_is_complete() -> None:
    reader = EventReader()
    assert reader.feed(b"data: x\n") == []
    assert reader.feed(b"\n") == [Event(b"", b"x")]


def test_comments_alone_are_no_event() -> None:
    assert EventReader().feed(b": ping\n\n: ping\n\n") == []


@pytest.mark.parametrize("line", [b"<html>", b'{"choices": []}', b"Data: x", b"data : x", b"\xff\xfe"])
def test_a_line_that_is_no_field_is_not_ignored(line: bytes) -> None:
    with pytest.raises(NotEvents, match="not a server-sent event"):
        EventReader().feed(line + b"\n")


@pytest.mark.parametrize("rest", [b"", b"d", b"data", b'data: {"cho', b": comm", b"ev"])
def test_an_event_that_was_cut_off_is_no_other_format(rest: bytes) -> None:
    reader = EventReader()
    reader.feed(rest)
    reader.end()


@pytest.mark.parametrize("rest", [b"<html>", b'{"choices": []}', b"Internal Server Error"])
def test_another_format_without_a_line_end_is_noticed_at_the_end(rest: bytes) -> None:
    reader = EventReader()
    assert reader.feed(rest) == []
    with pytest.raises(NotEvents):
        reader.end()


@pytest.mark.parametrize("piece", [b"data: xxxxx", b"data: xxxxx\n"])
def test_an_event_that_never_ends_is_noticed(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 100)
    reader = EventReader()
    for _ in range(9):
        reader.feed(piece)
    with pytest.raises(NotEvents, match="longer than 100 bytes"):
        reader.feed(piece)
