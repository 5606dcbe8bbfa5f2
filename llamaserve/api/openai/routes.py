"""The OpenAI endpoints. Event loop; decoding bodies, templates and tokenising run on threads of their own."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from llamaserve.api.collecting import Broken, collect
from llamaserve.api.disconnect import until_disconnect, until_set
from llamaserve.api.drain import Drain, DrainGate
from llamaserve.api.openai.answer_plan import AnswerHead, AnswerPlan
from llamaserve.api.openai.answers import Answer, ChatAnswer, CompletionAnswer
from llamaserve.api.openai.chunks import AnswerStream, chat_stream, completion_stream
from llamaserve.api.openai.errors import error_response
from llamaserve.api.openai.limits import PRIORITY_HEADER, TIMEOUT_HEADER
from llamaserve.api.openai.nothing_to_compute import answer_at_once
from llamaserve.api.openai.preparing import (
    SESSION_HEADER,
    IncomingRequest,
    Prepare,
    PreparedRequest,
    Preparer,
    check_model,
)
from llamaserve.api.sse import EventStreamResponse, Listen
from llamaserve.config import HttpConfig
from llamaserve.errors import Cancelled, DeadlineExceeded
from llamaserve.service import Service


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What differs between the two generation endpoints."""

    id_prefix: str
    stream: Callable[[AnswerPlan, AnswerHead], AnswerStream]
    answer: Callable[[AnswerPlan], Answer]


CHAT = Endpoint("chatcmpl-", chat_stream, ChatAnswer)
COMPLETION = Endpoint("cmpl-", completion_stream, CompletionAnswer)


class OpenAIRoutes:
    """OpenAI's endpoints over one service.

    Event loop only. ``service`` gives the running service and raises EngineDown while there is none. While the server
    drains, requests are refused, and so are those whose body is still on its way.
    """

    def __init__(
        self, service: Callable[[], Service], drain: Drain, config: HttpConfig, *, system_fingerprint: str
    ) -> None:
        self._service = service
        self._drain = drain
        self._config = config
        self._preparer = Preparer(config)
        self._n_deadlines = 0
        self._system_fingerprint = system_fingerprint
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        """The routes, for an application's list."""
        return [
            Route("/v1/models", self.list_models, methods=["GET"]),
            Route("/v1/models/{model_id:path}", self.show_model, methods=["GET"]),
            self._computing("/v1/completions", self.complete),
            self._computing("/v1/chat/completions", self.chat),
            self._computing("/chat/completions", self.chat),
        ]

    @property
    def n_deadlines(self) -> int:
        """Requests that ended because their time was over."""
        return self._n_deadlines

    def _computing(self, path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
        return Route(path, endpoint, methods=["POST"], middleware=[Middleware(DrainGate, drain=self._drain)])

    def close(self) -> None:
        """End the threads; what waits for one is dropped. May be called twice."""
        self._preparer.close()

    async def list_models(self, request: Request) -> Response:
        """``GET /v1/models``."""
        return _json(msgspec.json.encode({"object": "list", "data": [self._model_card(self._service())]}))

    async def show_model(self, request: Request) -> Response:
        """``GET /v1/models/{id}``."""
        service = self._service()
        check_model(request.path_params["model_id"], service)
        return _json(msgspec.json.encode(self._model_card(service)))

    async def complete(self, request: Request) -> Response:
        """``POST /v1/completions``."""
        return await self._generate(request, COMPLETION, self._preparer.completion)

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        return await self._generate(request, CHAT, self._preparer.chat)

    async def _generate(self, request: Request, endpoint: Endpoint, prepare: Prepare) -> Response:
        service = self._service()
        request_id = endpoint.id_prefix + secrets.token_hex(12)
        prepared = await self._prepare(request, request_id, service, prepare)
        head = AnswerHead(request_id, int(time.time()), service.model_name, self._system_fingerprint)
        listen: Listen = partial(service.listen if prepared.is_computed else answer_at_once, prepared.requests)
        if prepared.is_streamed:
            return EventStreamResponse(
                listen,
                endpoint.stream(prepared.plan, head),
                name=request_id,
                ping_interval_s=prepared.ping_interval_s,
                timeout_s=prepared.timeout_s,
                on_failure=self._count_failure,
            )
        answer = endpoint.answer(prepared.plan)
        ends = await until_disconnect(
            request.receive, collect(listen, answer.take, len(prepared.requests), timeout_s=prepared.timeout_s)
        )
        if isinstance(ends, Broken):
            self._count_failure(ends.error)
            return error_response(ends.error, has_spent_tokens=ends.n_tokens > 0)
        return _json(answer.whole(head, ends))

    async def _prepare(self, request: Request, request_id: str, service: Service, prepare: Prepare) -> PreparedRequest:
        body = await until_set(
            self._drain.has_begun, _read_body(request, self._config.max_body_bytes), self._drain.refusal
        )
        incoming = IncomingRequest(
            request_id=request_id,
            body=body,
            session_header=request.headers.get(SESSION_HEADER),
            timeout_header=request.headers.get(TIMEOUT_HEADER),
            priority_header=request.headers.get(PRIORITY_HEADER),
        )
        return await until_disconnect(request.receive, self._preparer.on_thread(prepare, service, incoming))

    def _count_failure(self, error: Exception) -> None:
        self._n_deadlines += isinstance(error, DeadlineExceeded)

    def _model_card(self, service: Service) -> dict[str, object]:
        info = service.info
        return {
            "id": service.model_name,
            "object": "model",
            "created": self._started,
            "owned_by": "llamaserve",
            "meta": {
                "n_vocab": info.n_vocab,
                "n_ctx": info.n_ctx_seq,
                "n_ctx_train": info.n_ctx_train,
                "n_embd": info.n_embd,
                "n_params": info.n_params,
                "size": info.size_bytes,
            },
        }


async def _read_body(request: Request, limit_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:19]) > limit_bytes:
        raise _body_too_large(declared, limit_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit_bytes:
                raise _body_too_large(f"at least {size}", limit_bytes)
            chunks.append(chunk)
    except ClientDisconnect as error:
        raise Cancelled from error
    return b"".join(chunks)


def _body_too_large(size: str, limit_bytes: int) -> HTTPException:
    return HTTPException(413, f"the request body has {size[:20]} bytes: at most {limit_bytes} are allowed")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
