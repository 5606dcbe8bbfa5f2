"""A real server with the default model, as clients see it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import uvicorn

from llamaserve.config import CacheConfig, EngineConfig, HttpConfig, SchedulerConfig
from llamaserve.load_service import load_service
from llamaserve.models import DEFAULT_MODEL, resolve
from llamaserve.server.app import build_app
from llamaserve.server.loading import ServiceLoader
from llamaserve.server.run import bind_socket, server_url
from llamaserve.service import Service

MODEL_NAME = "smollm2"
N_CTX = 8192
N_SLOTS = 8


@dataclass
class RealServer:
    """Where it listens, and the service behind it."""

    url: str
    client: httpx.Client
    service: Service


@contextmanager
def real_server(cache: CacheConfig | None = None) -> Generator[RealServer, None, None]:
    """Load the default model and serve it on a free port."""

    def load() -> Service:
        config = EngineConfig(resolve(DEFAULT_MODEL), n_ctx=N_CTX, n_slots=N_SLOTS, n_threads=1)
        return load_service(config, SchedulerConfig(), MODEL_NAME, cache=cache)

    services: list[Service] = []
    failures: list[Exception] = []
    loader = ServiceLoader(load, on_ready=services.append, on_failed=failures.append)
    config = HttpConfig(port=0)
    with bind_socket(config) as listener:
        server = uvicorn.Server(uvicorn.Config(build_app(loader, config), log_config=None, access_log=False, ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="e2e-server")
        thread.start()
        try:
            url = server_url(config.host, listener)
            with httpx.Client(base_url=url, timeout=60) as client:
                wait_until(lambda: bool(services or failures), timeout_s=300)
                assert not failures, failures
                wait_until(lambda: client.get("/health").status_code == 200)
                yield RealServer(url, client, services[0])
        finally:
            server.should_exit = True
            thread.join(timeout=30)
    assert not thread.is_alive(), "the server did not stop"


def wait_until(is_true: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Poll until the claim holds; fails after the timeout."""
    ends_at = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < ends_at, "it did not happen in time"
        time.sleep(0.01)
