"""What is no body, and a body that does not come: bounded in size and time, and told apart from broken HTTP."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import httpx
import pytest

from llamaserve.api.openai.json_shape import has_too_many_containers, is_nested_deeper
from llamaserve.config import HttpConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.server import run
from llamaserve.server.http_protocol import MAX_HEAD_BYTES, MAX_HEADERS
from llamaserve.server.run import run_server
from llamaserve.service import Service
from tests.api.served import PATIENCE_S, Served, serving
from tests.api.test_lifecycle import fake_service

SOON_S = 0.3
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


@contextmanager
def connection(served: Served) -> Generator[socket.socket, None, None]:
    url = served.client.base_url
    with socket.create_connection((url.host, url.port or 80), timeout=PATIENCE_S) as opened:
        yield opened


def answer_to(served: Served, pieces: Iterator[bytes]) -> tuple[int, dict[str, object], float]:
    """Send until the server answers: its status, its error, and after how many seconds the connection was over."""
    begun = time.monotonic()
    received = b""
    with connection(served) as opened:
        for piece in pieces:
            try:
                opened.sendall(piece)
                opened.settimeout(0.001)
                received += opened.recv(2**16)
            except TimeoutError:
                opened.settimeout(PATIENCE_S)
                continue
            except OSError:
                break
            if received:
                break
        opened.settimeout(PATIENCE_S)
        while more := _received(opened):
            received += more
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower(), received[:500]
    return int(head.split()[1]), json.loads(body)["error"], time.monotonic() - begun


def _received(opened: socket.socket) -> bytes:
    try:
        return opened.recv(2**16)
    except ConnectionError:
        return b""


def repeated(start: bytes, piece: bytes) -> Iterator[bytes]:
    yield start
    while True:
        yield piece


ENDLESS = {
    "headers": repeated(POST, b"x-header: %s\r\n" % (b"y" * 1000)),
    "one header": repeated(POST + b"x-header: ", b"y" * 1000),
    "an address": repeated(b"GET /", b"y" * 1000),
    "white space": repeated(POST + b"x-header:", b" " * 1000),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_head_without_end_is_refused_as_soon_as_it_is_too_large(served: Served, name: str) -> None:
    status, error, took_s = answer_to(served, ENDLESS[name])
    assert status in (400, 431)
    assert took_s < 5
    if status == 431:
        assert str(MAX_HEAD_BYTES) in str(error["message"])
        assert error["code"] == "head_too_large"
    assert served.complete().status_code == 200


@pytest.mark.parametrize("n_bytes", [MAX_HEAD_BYTES + 500, 2 * MAX_HEAD_BYTES])
@pytest.mark.parametrize("where", ["a header", "the address"])
def test_a_whole_head_that_is_too_large_is_refused_however_it_arrives(served: Served, n_bytes: int, where: str) -> None:
    filling = b"y" * n_bytes
    sent = b"GET /health HTTP/1.1\r\nHost: x\r\nx: " + filling + b"\r\n\r\n"
    if where == "the address":
        sent = b"GET /health?" + filling + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    status, error, _ = answer_to(served, iter([sent]))
    assert (status, str(MAX_HEAD_BYTES) in error["message"]) == (431, True)


def test_a_head_just_within_the_limit_is_taken(served: Served) -> None:
    with connection(served) as opened:
        opened.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nx: " + b"y" * (MAX_HEAD_BYTES - 100) + b"\r\n\r\n")
        assert opened.recv(1000).startswith(b"HTTP/1.1 200")


def test_as_many_headers_as_allowed_are_taken_and_one_more_is_not(served: Served) -> None:
    assert MAX_HEADERS >= 100, "clients and proxies add some"

    def status(n_headers: int) -> int:
        lines = b"".join(b"x-%d: y\r\n" % number for number in range(n_headers - 1))
        with connection(served) as opened:
            opened.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n")
            return int(opened.recv(1000).split()[1])

    assert status(MAX_HEADERS) == 200
    assert status(MAX_HEADERS + 1) == 431


def test_trailers_without_end_close_the_connection(served: Served) -> None:
    """They come when the request is being answered, so nothing more is said."""
    with connection(served) as opened:
        opened.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n")
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            opened.sendall(b"x-trailer: %s\r\n" % (b"y" * 1000) * 10_000)
    assert served.complete().status_code == 200


def test_a_body_in_chunks_of_one_byte_is_taken(served: Served) -> None:
    body = json.dumps({"prompt": "Hello", "filler": "x" * 60_000}).encode()
    with connection(served) as opened:
        opened.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        opened.sendall(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        assert opened.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("request_bytes", [b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_what_is_no_http_is_a_400_in_our_shape(served: Served, request_bytes: bytes) -> None:
    status, error, _ = answer_to(served, iter([request_bytes]))
    assert (status, error["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [(b"GARBAGE\r\n\r\n", 400), (POST + b"x-header: y\r\n" * (MAX_HEADERS + 1) + b"\r\n", 431)],
)
def test_what_is_refused_before_it_is_a_request_has_an_id_that_the_log_has_too(
    served: Served, caplog: pytest.LogCaptureFixture, request_bytes: bytes, status: int
) -> None:
    caplog.set_level("INFO", logger="llamaserve.http")
    with connection(served) as opened:
        opened.sendall(request_bytes)
        head = b"".join(iter(lambda: _received(opened), b"")).decode().lower()
    assert head.startswith(f"http/1.1 {status} ")
    (request_id,) = re.findall(r"x-request-id: (req-[0-9a-f]{24})\r\n", head)
    (line,) = [message for message in caplog.messages if request_id in message]
    assert f" {status} " in line


def trickle(start: bytes) -> Iterator[bytes]:
    yield start
    while True:
        time.sleep(0.05)
        yield b" "


@pytest.mark.parametrize("kind", [b"Content-Length: 10000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\n"])
def test_a_body_that_trickles_is_given_up_in_time_however_often_a_byte_comes(kind: bytes) -> None:
    with serving(FakeEngine(), http=HttpConfig(body_timeout_s=SOON_S)) as served:
        status, error, took_s = answer_to(served, trickle(POST + kind))
        assert (status, error["code"]) == (408, "body_timeout")
        assert f"{SOON_S:g} s" in str(error["message"])
        assert SOON_S <= took_s < 5
        assert served.complete(max_tokens=2).status_code == 200


def test_a_stream_may_take_longer_than_its_body_might() -> None:
    engine = FakeEngine(step_s=0.05)
    with serving(engine, http=HttpConfig(body_timeout_s=SOON_S)) as served:
        begun = time.monotonic()
        for fields in ({}, {"stream": True}):
            response = served.complete("a", max_tokens=15, **fields)
            assert response.status_code == 200
            assert "body_timeout" not in response.text
        assert time.monotonic() - begun > 3 * SOON_S


def test_who_sends_the_rest_of_an_answered_request_for_ever_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the head of the next one; nobody reads either, so no other time runs."""
    monkeypatch.setattr(run, "KEEP_ALIVE_S", 0.3)
    n_cut = 0

    def probe(service: Service, url: str) -> None:
        nonlocal n_cut
        address = httpx.URL(url)
        starts = [
            b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nx-slow: ",
            b"",
        ]
        for start in starts:
            with socket.create_connection((address.host, address.port or 80), timeout=PATIENCE_S) as opened:
                opened.sendall(start)
                n_cut += _is_cut_off(opened, trickles=bool(start))
        signal.raise_signal(signal.SIGTERM)

    run_server(fake_service, HttpConfig(port=0), on_ready=probe)
    assert n_cut == 3


def _is_cut_off(opened: socket.socket, *, trickles: bool) -> bool:
    ends_at = time.monotonic() + 10
    opened.settimeout(0.05)
    while time.monotonic() < ends_at:
        try:
            if trickles:
                opened.sendall(b"x")
            if not opened.recv(2**16):
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": 1, "b": value}], ids=["array", "object"])
def test_nesting_is_counted_exactly(wrap: Callable[[object], object]) -> None:
    value: object = "[[[["
    for depth in range(5):
        assert is_nested_deeper(value, depth - 1) is (depth > 0)
        assert not is_nested_deeper(value, depth)
        value = wrap(value)


def test_nesting_is_counted_where_python_would_recurse_too_deep() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    assert is_nested_deeper(value)
    while value:  # freed level by level: to free it at once would recurse as well
        value = value.pop()  # type: ignore[assignment]


@pytest.mark.parametrize(
    "text",
    ["", "[{", '"', '\\"[', "\\", "\\\\", '\\"', '[\\\\"{', "é[", "\n[", '[" ["'],
)
def test_objects_and_arrays_are_counted_but_not_what_texts_have_of_them(text: str) -> None:
    value = [[1], {"a": [text, text]}, {text: "[[[["}, "{{{{"]
    for body in (json.dumps(value).encode(), json.dumps(value, ensure_ascii=False, indent=1).encode()):
        assert not has_too_many_containers(body, 5)
        assert has_too_many_containers(body, 4)
