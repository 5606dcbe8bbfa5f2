"""A real socket in front of a fake engine: what the API tests talk to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from llamaserve.chat.template import PLAIN_CHAT, ChatOptions, ChatTemplate, RenderedChat
from llamaserve.config import CacheConfig, HttpConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.server.app import build_app
from llamaserve.server.http_protocol import LimitedHttpProtocol
from llamaserve.server.loading import ServiceLoader
from llamaserve.server.run import bind_socket, server_url
from llamaserve.service import Service

MODEL = "fake-model"
SMALL_BODIES = HttpConfig(max_body_bytes=64 * 1024)
PATIENCE_S = 30.0  # for what should take milliseconds


class LineTemplate:
    """A chat template that writes one line a message: ``role: content``."""

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self._stops = stops

    def render(self, messages: Sequence[Mapping[str, object]], options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
        """The lines, then ``assistant: ``."""
        lines = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return RenderedChat(lines + ("assistant: " if options.add_generation_prompt else ""), self._stops)


@dataclass
class Served:
    """A running server."""

    client: httpx.Client
    engine: FakeEngine
    service: Service

    def complete(self, prompt: object = "Hello", **fields: object) -> httpx.Response:
        """``POST /v1/completions``."""
        return self.client.post("/v1/completions", json={"prompt": prompt, **fields})

    def chat(self, content: object = "hi", **fields: object) -> httpx.Response:
        """``POST /v1/chat/completions`` with one user message, or with ``messages``."""
        messages = [{"role": "user", "content": content}]
        return self.client.post("/v1/chat/completions", json={"messages": messages, **fields})


@contextmanager
def listening(app: ASGIApp, send_buffer: int | None = None) -> Generator[str, None, None]:
    """Run an application on a free port of this machine; gives its URL."""
    config = HttpConfig(port=0)
    with bind_socket(config) as listener:
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # accepted sockets inherit it
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", http=LimitedHttpProtocol, ws="none")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="test-server")
        thread.start()
        try:
            yield server_url(config.host, listener)
        finally:
            server.should_exit = True
            thread.join(timeout=PATIENCE_S)
    assert not thread.is_alive(), "the server did not stop"


@contextmanager
def serving(
    engine: FakeEngine,
    *,
    template: ChatTemplate | None = None,
    scheduler: SchedulerConfig | None = None,
    cache: CacheConfig | None = None,
    http: HttpConfig = SMALL_BODIES,
    send_buffer: int | None = None,
) -> Generator[Served, None, None]:
    """A server over this engine, ready to answer; ``send_buffer`` bytes are what the system takes for a client."""
    service = Service(engine, template, scheduler or SchedulerConfig(), MODEL, cache=cache)
    app = app_loading(lambda: service, http)
    with listening(app, send_buffer) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        wait_until(lambda: client.get("/health").status_code == 200)
        yield Served(client, engine, service)


def app_loading(
    load: Callable[[], Service], config: HttpConfig | None = None, failures: list[Exception] | None = None
) -> Starlette:
    """An application that loads its model when it starts; a failed load is kept in ``failures``, or raised."""
    on_failed = fail_loudly if failures is None else failures.append
    return build_app(ServiceLoader(load, on_ready=lambda service: None, on_failed=on_failed), config or HttpConfig())


def fail_loudly(error: Exception) -> None:
    """An ``on_failed`` for models that load."""
    raise AssertionError(f"the model was not loaded: {error}")


def wait_until(is_true: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Poll until the claim holds; fails after the timeout."""
    ends_at = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < ends_at, "it did not happen in time"
        time.sleep(0.005)
