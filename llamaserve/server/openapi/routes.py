"""``GET /openapi.json``, and ``GET /`` for people who look what this is. Event loop only; there before the model is."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from llamaserve.server.openapi.document import openapi_document
from llamaserve.server.openapi.operations import OPERATIONS


class OpenApiRoutes:
    """The routes over a document that is written once."""

    def __init__(self, version: str, *, needs_key: bool) -> None:
        self._document = msgspec.json.encode(openapi_document(OPERATIONS, version=version, needs_key=needs_key))
        lines = [f"{operation.method:5}{path}" for operation in OPERATIONS for path in operation.paths]
        self._text = "\n".join([f"llamaserve {version}", "", *lines, ""])

    def routes(self) -> list[Route]:
        """The routes, for an application's list."""
        return [
            Route("/", self.show_text, methods=["GET"]),
            Route("/openapi.json", self.show_document, methods=["GET"]),
        ]

    async def show_document(self, request: Request) -> Response:
        """The document."""
        return Response(self._document, media_type="application/json")

    async def show_text(self, request: Request) -> Response:
        """The routes, one a line."""
        return PlainTextResponse(self._text)
