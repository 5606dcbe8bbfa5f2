"""Requests built to hang or crash the server: each is a 4xx within a second, the server stays alive, and a stream that
runs meanwhile loses nothing."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import httpx
import pytest

from llamaserve.config import HttpConfig
from llamaserve.engine.fake import FakeEngine, scripted
from tests.api.conftest import REPLIES
from tests.api.served import PATIENCE_S, LineTemplate, Served, serving, wait_until

SOON_S = 1.0
UPLOAD_S = 2.0
"""For bodies of megabytes: two cores send, read and refuse them."""
LONG_TEXT = "x" * 40_000
MIB = 2**20


@dataclass
class Attacked:
    """The server under attack, and the stream of somebody else."""

    served: Served
    n_chunks: list[float] = field(default_factory=list)
    """When each chunk of the stream came."""


@pytest.fixture(scope="module")
def attacked() -> Generator[Attacked, None, None]:
    engine = FakeEngine(n_slots=4, n_ctx=200_000, step_s=0.002, continuation=scripted({**REPLIES, "victim": LONG_TEXT}))
    config = HttpConfig(body_timeout_s=0.5)
    with serving(engine, template=LineTemplate(), http=config) as served:
        target = Attacked(served)
        over = threading.Event()
        reader = threading.Thread(target=_read_stream, args=(target, over))
        reader.start()
        wait_until(lambda: bool(target.n_chunks))
        yield target
        over.set()
        reader.join(PATIENCE_S)
        assert served.complete("Hello").json()["choices"][0]["text"] == " world, good morning"


def _read_stream(target: Attacked, over: threading.Event) -> None:
    """Somebody else's stream; begun anew when its text has ended."""
    url = str(target.served.client.base_url)
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        while not over.is_set():
            body = {"prompt": "victim", "stream": True, "cache_prompt": False}
            with client.stream("POST", "/v1/completions", json=body) as response:
                assert response.status_code == 200
                for line in response.iter_lines():
                    assert "error" not in line
                    if line.startswith("data: {"):
                        target.n_chunks.append(time.monotonic())
                    if over.is_set():
                        return


def assert_refused(attacked: Attacked, path: str, body: bytes, statuses: tuple[int, ...] = (400,)) -> None:
    """A 4xx in our shape, soon, while the stream goes on."""
    n_before = len(attacked.n_chunks)
    begun = time.monotonic()
    response = attacked.served.client.post(path, content=body, headers={"Content-Type": "application/json"})
    took_s = time.monotonic() - begun
    assert response.status_code in statuses, response.text[:500]
    error = response.json()["error"]
    assert error["message"]
    assert len(response.content) < 4096, "nothing of a body is written out at length"
    assert took_s < (SOON_S if len(body) < MIB else UPLOAD_S), f"{took_s:.2f} s"
    wait_until(lambda: len(attacked.n_chunks) > n_before)


def chat(**fields: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def completion(**fields: object) -> bytes:
    return json.dumps({"prompt": "hi", **fields}).encode()


def raw(fields: bytes) -> bytes:
    """A body with fields that no encoder would write."""
    return b'{"prompt": "hi", "messages": [{"role": "user", "content": "hi"}], ' + fields + b"}"


def nested(opening: bytes, inner: bytes, closing: bytes, n: int) -> bytes:
    return opening * n + inner + closing * n


def cyclic_schema() -> dict[str, object]:
    return {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}


def schema_format(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}


GENERATING = ("/v1/chat/completions", "/v1/completions", "/completion")
NO_JSON: dict[str, bytes] = {
    "200k brackets": b"[" * 200_000,
    "200k braces": b'{"a":' * 200_000,
    "200k closed brackets": nested(b"[", b"", b"]", 200_000),
    "brackets to the limit of bodies": b"[" * (8 * MIB),
    "brackets in a field": raw(b'"stop": ' + nested(b"[", b'"x"', b"]", 100_000)),
    "braces in an unknown field": raw(b'"x": ' + nested(b'{"a":', b"1", b"}", 100_000)),
    "nesting beyond the limit": raw(b'"x": ' + nested(b"[", b"1", b"]", 500)),
    "nesting beyond the limit among much else": raw(
        b'"y": [' + b"{}," * 50_000 + b'1], "x": ' + b"[" * 300 + b"]" * 300
    ),
    "half a body": b'{"prompt": "x',
    "nothing": b"",
    "a NUL": b"\x00",
    "NULs": b"\x00" * 100_000,
    "a NUL between tokens": raw(b'"x":\x00 1'),
    "a raw NUL in a text": raw(b'"x": "\x00"'),
    "invalid UTF-8": raw(b'"x": "\xff\xfe"'),
    "an overlong encoding": raw(b'"x": "\xc0\x80"'),
    "a surrogate in UTF-8": raw(b'"x": "\xed\xa0\x80"'),
    "UTF-16": '{"prompt": "x"}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + completion(),
    "a lone surrogate": raw(b'"x": "\\ud800"'),
    "two wrong surrogates": raw(b'"x": "\\udc00\\ud800"'),
    "a number without end": raw(b'"x": ' + b"9" * 100_000),
    "an exponent": raw(b'"temperature": 1e400'),
    "a negative exponent": raw(b'"temperature": -1e400'),
    "NaN": raw(b'"temperature": NaN'),
    "infinity": raw(b'"temperature": Infinity'),
    "a form": b"prompt=x&max_tokens=5",
    "a multipart form": b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nx\r\n--x--\r\n',
    "XML": b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
    "compressed": b"\x1f\x8b\x08\x00" + b"\x00" * 1000,
}
FOR_ALL: dict[str, bytes] = {
    "a seed of 5000 digits": raw(b'"seed": ' + b"9" * 5_000),
    "a limit of 5000 digits": raw(b'"max_tokens": ' + b"9" * 5_000),
    "a limit beyond 64 bits": raw(b'"max_tokens": -' + b"9" * 30),
    "n beyond reason": raw(b'"n": 1000000000'),
    "top_k beyond 32 bits": raw(b'"top_k": 99999999999'),
    "a timeout that is tiny and negative": raw(b'"timeout": -1e-300'),
    "a timeout beyond reason": raw(b'"timeout": 1e300'),
    "a number with 100k decimals": raw(b'"temperature": -1.' + b"3" * 100_000),
    "a huge stop list": raw(b'"stop": [' + b",".join([b'"abc"'] * 200_000) + b"]"),
    "a huge stop string": raw(b'"stop": "' + b"a" * MIB + b'"'),
    "an empty stop string": raw(b'"stop": [""]'),
    "a repetition as a stop string is text, a list of lists is none": raw(b'"stop": [["(a{1,9999}){1,9999}"]]'),
    "a huge salt": raw(b'"cache_salt": "' + b"a" * MIB + b'"'),
    "a huge session": raw(b'"session": "' + b"a" * MIB + b'"'),
    "a huge model name": raw(b'"model": [' + b'"a",' * 1000 + b'"b"]'),
    "a bias for all tokens and more": raw(
        b'"logit_bias": {' + b",".join(b'"%d": 1' % token for token in range(100_000)) + b"}"
    ),
    "a bias without a number": raw(b'"logit_bias": {"5": "' + b"x" * 100_000 + b'"}'),
    "the last of two fields counts, and is checked": raw(b'"temperature": 0.5, "temperature": -5'),
    "100k fields that are all wrong": raw(b",".join(b'"seed": "%d"' % number for number in range(100_000))),
    "a chat template": raw(b'"chat_template": "{% for a in range(999999999) %}{{ a }}{% endfor %}"'),
    "a chat template that reads files": raw(b'"chat_template": "{% include \'/etc/passwd\' %}"'),
    "a pattern with a huge repetition": raw(b'"regex": "a{1,999999999999}"'),
    "a pattern of 200k brackets": raw(b'"guided_regex": "' + b"(" * 200_000 + b'"'),
    "a grammar that repeats": raw(b'"grammar": "root ::= ((\\"a\\"{1,99999}){1,99999}){1,99999}"'),
    "a grammar that is none": raw(b'"grammar": "' + b"(" * 100_000 + b'"'),
    "a grammar without an end": raw(b'"grammar": "root ::= root"'),
    "a schema that refers to itself": raw(b'"response_format": ' + json.dumps(schema_format(cyclic_schema())).encode()),
    "a schema that refers to nothing": raw(b'"json_schema": {"$ref": "#/nowhere"}'),
    "a schema that refers elsewhere": raw(b'"json_schema": {"$ref": "file:///etc/passwd"}'),
}

LAZY: dict[str, bytes] = {
    "a pattern that explodes": raw(b'"max_tokens": 4, "guided_regex": "(((a{1,1000}){1,1000}){1,1000}){1,1000}"'),
    "a schema with a pattern that explodes": raw(
        b'"max_tokens": 4, "json_schema": {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"}'
    ),
    "a schema with a huge array": raw(
        b'"max_tokens": 4, "json_schema": {"type": "array", "items": {"type": "string"}, "minItems": 999999999999}'
    ),
}
"""Restrictions that would explode if anybody wrote them out, and nobody does."""


@pytest.mark.parametrize("path", [*GENERATING, "/tokenize", "/detokenize", "/apply-template"])
@pytest.mark.parametrize("name", NO_JSON)
def test_what_is_no_body_is_refused_everywhere(attacked: Attacked, name: str, path: str) -> None:
    assert_refused(attacked, path, NO_JSON[name])


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("name", FOR_ALL)
def test_a_field_that_asks_for_too_much_is_refused_wherever_it_may_stand(
    attacked: Attacked, name: str, path: str
) -> None:
    assert_refused(attacked, path, FOR_ALL[name])


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("name", LAZY)
def test_a_restriction_that_is_read_lazily_costs_nothing(attacked: Attacked, name: str, path: str) -> None:
    n_before = len(attacked.n_chunks)
    begun = time.monotonic()
    response = attacked.served.client.post(path, content=LAZY[name], headers={"Content-Type": "application/json"})
    assert response.status_code == 200, response.text[:500]
    assert time.monotonic() - begun < SOON_S
    wait_until(lambda: len(attacked.n_chunks) > n_before)


BODIES: dict[str, tuple[str, bytes]] = {
    "a million messages": (
        "/v1/chat/completions",
        b'{"messages": [' + b",".join([b'{"role":"","a":1}'] * 400_000) + b"]}",
    ),
    "messages that are empty objects": (
        "/v1/chat/completions",
        b'{"messages": [' + b",".join([b"{}"] * 1_000_000) + b"]}",
    ),
    "more messages than the context has tokens": (
        "/v1/chat/completions",
        b'{"messages": [' + b",".join([b'{"role":"user"}'] * 300_000) + b"]}",
    ),
    "a million parts": (
        "/v1/chat/completions",
        b'{"messages": [{"role": "user", "content": [' + b",".join([b"1"] * 1_000_000) + b"]}]}",
    ),
    "a role of a megabyte": ("/v1/chat/completions", b'{"messages": [{"role": "' + b"r" * MIB + b'"}]}'),
    "a part of a type of a megabyte": (
        "/v1/chat/completions",
        b'{"messages": [{"role": "user", "content": [{"type": "' + b"t" * MIB + b'"}]}]}',
    ),
    "an image from this machine": (
        "/v1/chat/completions",
        chat(
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/shadow"}}]}]
        ),
    ),
    "a million prompts": ("/v1/completions", b'{"prompt": [' + b",".join([b'"a"'] * 1_000_000) + b"]}"),
    "a million empty prompts": ("/v1/completions", b'{"prompt": [' + b",".join([b"[]"] * 1_000_000) + b"]}"),
    "a million native prompts": ("/completion", b'{"prompt": [' + b",".join([b"[1]"] * 1_000_000) + b"]}"),
    "tokens outside the vocabulary": ("/v1/completions", completion(prompt=[10**30])),
    "tokens outside the vocabulary, echoed": ("/v1/completions", completion(prompt=[10**30], echo=True)),
    "tokens outside the native vocabulary": ("/completion", completion(prompt=[-(10**30), "a"])),
    "tokens to text outside the vocabulary": ("/detokenize", b'{"tokens": [' + b"9" * 1000 + b"]}"),
    "a text to tokenise that is too long": ("/tokenize", b'{"content": "' + b"a" * (2 * MIB) + b'"}'),
    "tokens without end": ("/detokenize", b'{"tokens": [' + b",".join([b"1"] * 2_000_000) + b"]}"),
    "a template's messages that are none": ("/apply-template", b'{"messages": [[[[]]]]}'),
    "a prompt far over the context": ("/v1/completions", b'{"prompt": "' + b"a" * MIB + b'"}'),
    "a native prompt far over the context": ("/completion", b'{"prompt": ["' + b"a" * MIB + b'"]}'),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_too_much_is_refused(attacked: Attacked, name: str) -> None:
    path, body = BODIES[name]
    assert_refused(attacked, path, body)


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(attacked: Attacked) -> None:
    for path in (*GENERATING, "/tokenize"):
        assert_refused(attacked, path, b"[" * (9 * MIB), (413,))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/html"}, 200),
        ({"Content-Type": "application/xml; charset=utf-16"}, 200),
        ({"Content-Type": "x" * 10_000}, 200),
        ({"Content-Encoding": "gzip"}, 200),
        ({"X-Session-Id": "s" * 10_000}, 400),
        ({"X-Request-Timeout": "1e5"}, 400),
        ({"X-Request-Timeout": "9" * 10_000}, 400),
        ({"X-Request-Timeout": "NaN"}, 400),
        ({"X-Priority": "p" * 10_000}, 200),
        ({"X-Request-Id": "r" * 10_000}, 200),
        ({"X-Request-Id": "a b: c"}, 200),
        ({"Authorization": "Bearer " + "k" * 10_000}, 200),
    ],
    ids=range(12),
)
def test_odd_headers_are_refused_or_taken_for_nothing(attacked: Attacked, headers: dict[str, str], status: int) -> None:
    """Never a failure; the content type is not looked at, since many clients send none or a wrong one."""
    begun = time.monotonic()
    response = attacked.served.client.post("/v1/completions", content=completion(max_tokens=1), headers=headers)
    assert response.status_code == status
    assert len(response.headers["x-request-id"]) <= 128
    assert time.monotonic() - begun < SOON_S


@pytest.mark.parametrize(
    "path",
    [
        "/%00",
        "/v1/models/%00",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/v1/models/" + "x" * 10_000,
        "/v1/models/%ff%fe",
        "/slots?parked=" + "x" * 10_000,
        "/slots?parked=%00",
        "/slots?" + "&".join(f"a{number}=1" for number in range(5000)) + "&parked=x",
    ],
)
def test_odd_addresses_are_a_4xx(attacked: Attacked, path: str) -> None:
    response = attacked.served.client.get(path)
    assert 400 <= response.status_code < 500
    assert len(response.content) < 4096
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_other_methods_are_refused(attacked: Attacked, method: str) -> None:
    for path in ("/v1/completions", "/health", "/props"):
        assert attacked.served.client.request(method, path).status_code == 405


@contextmanager
def connected(attacked: Attacked) -> Iterator[socket.socket]:
    url = attacked.served.client.base_url
    with socket.create_connection((url.host, url.port or 80), timeout=PATIENCE_S) as opened:
        yield opened


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
UNENDING: dict[str, bytes] = {
    "chunks without end": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 1000,
    "a chunk without end": HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffff\r\n" + b" " * 10_000,
    "a body that stops": HEAD + b"Content-Length: 1000\r\n\r\n{",
}


@pytest.mark.parametrize("name", UNENDING)
def test_a_body_that_does_not_end_is_given_up(attacked: Attacked, name: str) -> None:
    with connected(attacked) as opened:
        begun = time.monotonic()
        opened.sendall(UNENDING[name])
        answer = opened.recv(2**16)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - begun < SOON_S + 0.5


BROKEN: dict[str, bytes] = {
    "no HTTP": b"\x00" * 1000,
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "a length beyond 64 bits": HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "a chunk size that is none": HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "a header without a name": HEAD + b": x\r\n\r\n",
    "a NUL in a header": HEAD + b"x: \x00\r\n\r\n",
    "300 headers": HEAD + b"".join(b"x-%d: y\r\n" % number for number in range(300)) + b"\r\n",
    "a header of 200 KiB": HEAD + b"x: " + b"y" * 200_000 + b"\r\n\r\n",
    "an address of 200 KiB": b"GET /" + b"y" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_http_is_a_4xx(attacked: Attacked, name: str) -> None:
    n_before = len(attacked.n_chunks)
    with connected(attacked) as opened:
        begun = time.monotonic()
        opened.sendall(BROKEN[name])
        answer = opened.recv(2**16)
        assert time.monotonic() - begun < SOON_S
    assert answer.startswith(b"HTTP/1.1 4"), answer
    wait_until(lambda: len(attacked.n_chunks) > n_before)


def test_many_hostile_requests_at_once_leave_the_stream_its_pace(attacked: Attacked) -> None:
    bodies = [NO_JSON["200k brackets"], FOR_ALL["a huge stop list"], BODIES["messages that are empty objects"][1]]
    url = str(attacked.served.client.base_url)
    statuses: list[int] = []

    def attack(body: bytes) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            statuses.extend(client.post("/v1/chat/completions", content=body).status_code for _ in range(3))

    begun = time.monotonic()
    threads = [threading.Thread(target=attack, args=(body,)) for body in bodies * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    over = time.monotonic()
    assert statuses == [400] * 18
    came = [begun, *(moment for moment in attacked.n_chunks if begun < moment < over), over]
    longest = max(later - earlier for earlier, later in pairwise(came))
    assert longest < 2 * SOON_S, f"the stream stood still for {longest:.2f} s"
