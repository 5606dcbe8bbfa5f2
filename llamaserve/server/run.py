"""Runs the HTTP server until a signal ends it: listening socket, model load, ready line, graceful stop. Main thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from llamaserve.config import HttpConfig
from llamaserve.errors import ConfigError
from llamaserve.server.app import build_app
from llamaserve.server.loading import ServiceLoader
from llamaserve.service import Service

KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that they close first and never lose a request
GRACE_S = 5  # for clients that do not read the end of their stream
BACKLOG = 1024


def run_server(
    load: Callable[[], Service],
    config: HttpConfig,
    *,
    on_ready: Callable[[Service, str], None],
    cancel_load: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; then streams end with an error event and the function returns.

    ``load`` runs on a thread of its own, and so does ``on_ready``, with the service and the server's URL, once the
    model is loaded. ``cancel_load`` is called when the server must stop before that; it should make ``load`` return or
    raise soon.

    Raises ConfigError when the address cannot be listened on, before anything is loaded, and what ``load`` raised.
    """
    with bind_socket(config) as listener:
        url = server_url(config.host, listener)
        failures: list[Exception] = []

        def stop_on_failure(error: Exception) -> None:
            failures.append(error)
            server.should_exit = True

        loader = ServiceLoader(
            load, on_ready=lambda service: on_ready(service, url), on_failed=stop_on_failure, cancel_load=cancel_load
        )
        closing = asyncio.Event()
        server = _Server(
            uvicorn.Config(
                build_app(loader, config, closing),
                http="httptools",
                ws="none",
                lifespan="on",
                access_log=False,
                log_config=None,
                log_level="warning",
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=2 * GRACE_S,
                backlog=BACKLOG,
            ),
            loader,
            closing,
        )
        server.run(sockets=[listener])
    if failures:
        raise failures[0]


def bind_socket(config: HttpConfig) -> socket.socket:
    """A socket bound to the address. Raises ConfigError, naming host and port, when that is impossible."""
    where = f"{config.host}:{config.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot listen on {where}: {_reason(error)}; choose another --host") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Two servers that both may reuse the address can bind it; only one can listen.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {where}: {_reason(error)}; choose another --port or --host") from error
    return listener


def server_url(host: str, listener: socket.socket) -> str:
    """Where clients find the server, with the port the system chose if the config left it open."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def _reason(error: OSError | UnicodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class _Server(uvicorn.Server):
    """uvicorn, but a stop ends the running requests instead of waiting for them, and a signal is a normal end."""

    def __init__(self, config: uvicorn.Config, loader: ServiceLoader, closing: asyncio.Event) -> None:
        super().__init__(config)
        self._loader = loader
        self._closing = closing

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; at the second signal, without waiting. The signal is not raised again: the exit code is 0."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the service first, so that open streams end, then the connections."""
        self._closing.set()
        closed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def close() -> None:
            self._loader.close()
            loop.call_soon_threadsafe(closed.set)

        # Not the loop's thread pool: the interpreter would wait for it even after a second signal.
        threading.Thread(target=close, name="llamaserve-close", daemon=True).start()
        waiting = asyncio.ensure_future(closed.wait())
        while not waiting.done() and not self.force_exit:
            await asyncio.wait({waiting}, timeout=0.1)
        waiting.cancel()
        # Before uvicorn's own time is over: it would cancel the requests, with a traceback for each.
        cutting = loop.call_later(GRACE_S, self._cut_connections)
        await super().shutdown(sockets)
        cutting.cancel()

    def _cut_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
