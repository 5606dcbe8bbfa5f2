"""Whether the server works and whether it wants requests: /health and /ready. Event loop only; never wait for the
engine."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llamaserve.api.drain import Drain
from llamaserve.api.openai.errors import error_response
from llamaserve.errors import EngineDown
from llamaserve.service import Service

HEALTH_PATHS = ("/health", "/v1/health")
READY_PATH = "/ready"
PROBE_PATHS = (*HEALTH_PATHS, READY_PATH)


class Probes:
    """The probe routes. ``service`` gives the running service and raises EngineDown while there is none."""

    def __init__(self, service: Callable[[], Service], drain: Drain) -> None:
        self._service = service
        self._drain = drain

    def routes(self) -> list[Route]:
        """The routes, for an application's list."""
        health = [Route(path, self.health, methods=["GET"]) for path in HEALTH_PATHS]
        return [*health, Route(READY_PATH, self.ready, methods=["GET"])]

    async def health(self, request: Request) -> Response:
        """200 ``{"status": "ok"}`` once the model is loaded, while the server drains too; 503 before, when the engine
        is down, and at the end."""
        return _answer(self._failure())

    async def ready(self, request: Request) -> Response:
        """As ``health``, but 503 as soon as no request is taken any more."""
        draining = EngineDown("the server is shutting down") if self._drain.is_draining else None
        return _answer(self._failure() or draining)

    def _failure(self) -> EngineDown | None:
        try:
            return self._service().failure
        except EngineDown as error:
            return error


def _answer(failure: EngineDown | None) -> Response:
    return JSONResponse({"status": "ok"}) if failure is None else error_response(failure)
