"""The OpenAI endpoints. Event loop; decoding bodies, templates and tokenising run on threads of their own."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llamaserve.api.drain import Drain, computing_route
from llamaserve.api.generating import Endpoint, Generating
from llamaserve.api.openai.answers import ChatAnswer, CompletionAnswer
from llamaserve.api.openai.chunks import chat_stream, completion_stream
from llamaserve.api.openai.model_card import ModelCard, ModelList
from llamaserve.api.openai.preparing import Preparer, check_model
from llamaserve.service import Service

CHAT = Endpoint(
    "chatcmpl-",
    lambda prepared, head: chat_stream(prepared.plan, head),
    lambda prepared: ChatAnswer(prepared.plan),
)
COMPLETION = Endpoint(
    "cmpl-",
    lambda prepared, head: completion_stream(prepared.plan, head),
    lambda prepared: CompletionAnswer(prepared.plan),
)


class OpenAIRoutes:
    """OpenAI's endpoints over one service.

    Event loop only. ``service`` gives the running service and raises EngineDown while there is none.
    """

    def __init__(
        self, service: Callable[[], Service], drain: Drain, generating: Generating, preparer: Preparer
    ) -> None:
        self._service = service
        self._drain = drain
        self._generating = generating
        self._preparer = preparer
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        """The routes, for an application's list."""
        return [
            Route("/v1/models", self.list_models, methods=["GET"]),
            Route("/models", self.list_models, methods=["GET"]),
            Route("/v1/models/{model_id:path}", self.show_model, methods=["GET"]),
            computing_route("/v1/completions", self.complete, self._drain),
            computing_route("/v1/chat/completions", self.chat, self._drain),
            computing_route("/chat/completions", self.chat, self._drain),
        ]

    async def list_models(self, request: Request) -> Response:
        """``GET /v1/models``."""
        return _json(msgspec.json.encode(ModelList([ModelCard.of(self._service(), self._started)])))

    async def show_model(self, request: Request) -> Response:
        """``GET /v1/models/{id}``."""
        service = self._service()
        check_model(request.path_params["model_id"], service)
        return _json(msgspec.json.encode(ModelCard.of(service, self._started)))

    async def complete(self, request: Request) -> Response:
        """``POST /v1/completions``."""
        return await self._generating.generate(request, COMPLETION, self._preparer.completion)

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        return await self._generating.generate(request, CHAT, self._preparer.chat)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
