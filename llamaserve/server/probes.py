"""Whether the server can answer: /health. Event loop only; never waits for the engine."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llamaserve.api.openai.errors import error_response
from llamaserve.errors import EngineDown
from llamaserve.service import Service

PROBE_PATHS = ("/health", "/v1/health")


class Probes:
    """The probe routes. ``service`` gives the running service and raises EngineDown while there is none."""

    def __init__(self, service: Callable[[], Service]) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """The routes, for an application's list."""
        return [Route(path, self.health, methods=["GET"]) for path in PROBE_PATHS]

    async def health(self, request: Request) -> Response:
        """200 ``{"status": "ok"}`` once the model is loaded, 503 before, when the engine is down, and at the end."""
        try:
            failure = self._service().failure
        except EngineDown as error:
            failure = error
        if failure is not None:
            return error_response(failure)
        return JSONResponse({"status": "ok"})
