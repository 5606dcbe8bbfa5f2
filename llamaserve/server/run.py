"""Runs the HTTP server until a signal ends it: listening socket, model load, ready line, graceful stop. Main thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from types import FrameType

import uvicorn

from llamaserve.api.drain import Drain
from llamaserve.config import HttpConfig
from llamaserve.errors import ConfigError
from llamaserve.server.app import build_app
from llamaserve.server.http_protocol import LimitedHttpProtocol
from llamaserve.server.loading import ServiceLoader
from llamaserve.server.open_files import allow_many_connections
from llamaserve.server.tls import check_certificate
from llamaserve.service import Service

KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that they close first and never lose a request
GRACE_S = 5  # for clients that do not read the end of their stream
HURRY_S = 1  # the same, and for the running step, once a second signal has come
BACKLOG = 1024
TICKS_PER_S = 10  # uvicorn's

logger = logging.getLogger("llamaserve.server")


def run_server(
    load: Callable[[], Service],
    config: HttpConfig,
    *,
    on_ready: Callable[[Service, str], None],
    cancel_load: Callable[[], None] | None = None,
    ends_process: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM, then only what was taken before, for at most ``config.drain_timeout_s``; what runs
    still ends with an error event then, and the function returns. A second signal cuts that time short, a third one
    does not even wait for the events. With ``ends_process`` further ones stay ignored after the return.

    ``load`` runs on a thread of its own, and so does ``on_ready``, with the service and the server's URL, once the
    model is loaded. ``cancel_load`` is called when the server must stop before that; it should make ``load`` return or
    raise soon.

    Raises ConfigError when the address cannot be listened on or the certificate not be used, before anything is loaded,
    and what ``load`` raised.
    """
    allow_many_connections()
    if config.ssl_certfile is not None and config.ssl_keyfile is not None:
        check_certificate(config.ssl_certfile, config.ssl_keyfile)
    with bind_socket(config) as listener:
        url = server_url(config.host, listener, config.scheme)
        failures: list[Exception] = []

        def stop_on_failure(error: Exception) -> None:
            failures.append(error)
            server.should_exit = True

        loader = ServiceLoader(
            load, on_ready=lambda service: on_ready(service, url), on_failed=stop_on_failure, cancel_load=cancel_load
        )
        drain = Drain()
        server = _Server(
            uvicorn.Config(
                build_app(loader, config, drain),
                http=LimitedHttpProtocol,
                ws="none",
                lifespan="on",
                access_log=False,
                log_config=None,
                log_level="warning",
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=2 * GRACE_S,
                backlog=BACKLOG,
                ssl_certfile=config.ssl_certfile,
                ssl_keyfile=config.ssl_keyfile,
            ),
            loader,
            drain,
            config.drain_timeout_s,
            ends_process=ends_process,
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


def server_url(host: str, listener: socket.socket, scheme: str = "http") -> str:
    """Where clients find the server, with the port the system chose if the config left it open."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listener.getsockname()[1]}"


def _reason(error: OSError | UnicodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class _Server(uvicorn.Server):
    """uvicorn, but a signal is a normal end: what was taken is served first, with the listening socket still open.

    The phases: serving; draining, from the first signal until nothing is open or the time is over; closing, when the
    service ends and with it what still ran; then uvicorn's own shutdown.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        loader: ServiceLoader,
        drain: Drain,
        drain_timeout_s: float,
        *,
        ends_process: bool,
    ) -> None:
        super().__init__(config)
        self._ends_process = ends_process
        self._loader = loader
        self._drain = drain
        self._drain_timeout_s = drain_timeout_s
        self._must_hurry = False
        self._is_closing = False
        self._silent: set[tuple[LimitedHttpProtocol, int]] = set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain; at the second signal, hurry; at the third, or the second while closing, wait for nothing. The signal
        is not raised again: the exit code is 0."""
        if not self.should_exit:
            self.should_exit = True
        elif not self._must_hurry and not self._is_closing:
            self._must_hurry = True
        else:
            self.force_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Between the end of the server and that of the process, one more signal is no reason for another exit code."""
        if self._ends_process and threading.current_thread() is threading.main_thread():
            for sig in (signal.SIGINT, signal.SIGTERM):
                signal.signal(sig, signal.SIG_IGN)  # what uvicorn restores in the end
        with super().capture_signals():
            yield

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second; whether to go over to ``shutdown``."""
        await super().on_tick(counter)  # keeps the Date header right
        if counter % (KEEP_ALIVE_S * TICKS_PER_S) == 0:
            self._close_silent()
        if not self.should_exit:
            return False
        self._begin_drain()
        return self._must_hurry or self._drain.is_over

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the service first, so that what still runs ends with an error, then the connections."""
        self._is_closing = True
        self._begin_drain()
        if not await self._close_service():
            self.force_exit = True
            self._loader.abandon()  # else the end of the application would wait for the same again
        # Before uvicorn's own time is over: it would cancel the requests, with a traceback for each.
        grace_s = HURRY_S if self._must_hurry else GRACE_S
        cutting = asyncio.get_running_loop().call_later(grace_s, self._cut_connections)
        await super().shutdown(sockets)
        cutting.cancel()
        if self.force_exit:  # uvicorn left it out, and would cancel it with a traceback
            await self.lifespan.shutdown()

    def _begin_drain(self) -> None:
        if self._drain.is_draining:
            return
        self._drain.begin(self._drain_timeout_s)
        if self._drain.n_open:
            logger.info(
                "shutting down: %d requests have %g s to end; another signal ends them",
                self._drain.n_open,
                self._drain_timeout_s,
            )

    async def _close_service(self) -> bool:
        """Whether it is closed: not so if it takes long and somebody is in a hurry."""
        closed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def close() -> None:
            self._loader.close()
            loop.call_soon_threadsafe(closed.set)

        # Not the loop's thread pool: the interpreter would wait for it even after a second signal.
        threading.Thread(target=close, name="llamaserve-close", daemon=True).start()
        waiting = asyncio.ensure_future(closed.wait())
        hurries_until = loop.time() + HURRY_S
        while not waiting.done() and not self.force_exit:
            if self._must_hurry and loop.time() >= hurries_until:
                break
            await asyncio.wait({waiting}, timeout=1 / TICKS_PER_S)
        waiting.cancel()
        return closed.is_set()

    def _close_silent(self) -> None:
        """Close connections that have owed the same request, or the rest of one that is answered, since the last time:
        nothing else would, and they are as many as somebody likes."""
        silent = set(_debts(self.server_state.connections))
        for connection, _ in silent & self._silent:
            connection.transport.close()
        self._silent = silent

    def _cut_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def _debts(connections: Iterable[object]) -> Iterator[tuple[LimitedHttpProtocol, int]]:
    for connection in connections:
        if isinstance(connection, LimitedHttpProtocol) and connection.owed is not None:
            yield connection, connection.owed
