"""Loads the model beside the running server, so that /health can say "loading", and closes it at the end.

One thread runs the load; everything else may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from llamaserve.errors import EngineDown, LlamaServeError
from llamaserve.service import Service

logger = logging.getLogger("llamaserve.server")


class ServiceLoader:
    """Holds the service while it is loading, running, or closed.

    ``on_ready`` and ``on_failed`` run on the load thread, at most one of them, once, and not after ``close`` began.
    """

    def __init__(
        self,
        load: Callable[[], Service],
        *,
        on_ready: Callable[[Service], None],
        on_failed: Callable[[Exception], None],
        cancel_load: Callable[[], None] | None = None,
    ) -> None:
        self._load = load
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._cancel_load = cancel_load
        # A daemon: a second Ctrl-C must end the process even while a huge file is being read.
        self._thread = threading.Thread(target=self._run, name="llamaserve-load", daemon=True)
        self._lock = threading.Lock()
        self._service: Service | None = None
        self._why_down = "the model is still loading"
        self._is_closing = False
        self._is_abandoned = False

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def service(self) -> Service:
        """The running service. Raises EngineDown, saying why, while there is none."""
        service = self._service
        if service is None:
            raise EngineDown(self._why_down)
        return service

    def close(self) -> None:
        """End the load or close the service, and return when it is done. Requests that run end with EngineDown.

        May be called several times.
        """
        if self._is_abandoned:
            return
        with self._lock:
            self._is_closing = True
        self._why_down = "the server is shutting down"
        if self._cancel_load is not None and self._thread.is_alive():
            self._cancel_load()
        if self._thread.ident is not None:
            self._thread.join()
        service, self._service = self._service, None
        if service is not None:
            service.close()

    def abandon(self) -> None:
        """Wait for the load and the service no more: the process ends, whatever they do."""
        self._is_abandoned = True

    def _run(self) -> None:
        try:
            service = self._load()
        except Exception as error:  # noqa: BLE001 - whatever it was, the server must learn of it
            self._fail(error)
            return
        with self._lock:
            self._service = service
            is_wanted = not self._is_closing
        if is_wanted:
            self._on_ready(service)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            is_wanted = not self._is_closing
            # Not the error itself, which may name files of this machine: anybody may ask for the health.
            self._why_down = "the model could not be loaded; the server's log says why"
        if is_wanted:
            if not isinstance(error, LlamaServeError):  # a bug or a broken machine: its place matters
                logger.error("unexpected error while loading the model", exc_info=error)
            self._on_failed(error)
