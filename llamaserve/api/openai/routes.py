"""The OpenAI endpoints. Event loop; decoding bodies, templates and tokenising run on threads of their own."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from llamaserve.api.disconnect import until_disconnect, until_set
from llamaserve.api.drain import Drain, DrainGate
from llamaserve.api.openai.answers import (
    CHAT_CHUNKS,
    COMPLETION_CHUNKS,
    AnswerHead,
    ChunkEncoder,
    ChunkShape,
    chat_answer,
    completion_answer,
)
from llamaserve.api.openai.body import ChatBody, CompletionBody, GenerationBody, decode_body
from llamaserve.api.openai.errors import error_response
from llamaserve.api.openai.fields import UnknownFieldLog
from llamaserve.api.openai.limits import PRIORITY_HEADER, TIMEOUT_HEADER, lane, ping_interval_s, timeout_s
from llamaserve.api.openai.prompts import PromptTokens, chat_prompt, completion_prompt
from llamaserve.api.openai.sampling import max_new_tokens, sampling_params, stop_strings, stop_tokens
from llamaserve.api.sse import EventStreamResponse
from llamaserve.config import HttpConfig
from llamaserve.errors import (
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    EngineError,
    LlamaServeError,
    ModelNotFound,
)
from llamaserve.request import MAX_NAME_LENGTH, Event, Failed, Finished, GenerationRequest, TextDelta
from llamaserve.service import Service

PREPARING_THREADS = 2
"""Bodies that are decoded, rendered and tokenised at the same time: one large body must not hold up all others, and
many must not take the cores and the memory from the model."""
SESSION_HEADER = "x-session-id"
"""Names the session where the body does not: routers that keep a session on one server send it too."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What differs between the two generation endpoints."""

    id_prefix: str
    chunks: ChunkShape
    answer: Callable[[AnswerHead, str, Finished], bytes]


CHAT = Endpoint("chatcmpl-", CHAT_CHUNKS, chat_answer)
COMPLETION = Endpoint("cmpl-", COMPLETION_CHUNKS, completion_answer)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request body that was read, rendered and tokenised."""

    generation: GenerationRequest
    is_streamed: bool
    wants_usage_chunk: bool
    timeout_s: float | None
    """From the queue to the last token."""
    ping_interval_s: float


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request as it came, before its body is read."""

    request_id: str
    body: bytes
    session_header: str | None
    timeout_header: str | None
    priority_header: str | None


Prepare = Callable[[Service, IncomingRequest], PreparedRequest]


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
        self._n_deadlines = 0
        # Not the loop's pool: what waits for a thread here is dropped when its client leaves, and what runs keeps its
        # thread until it ends, so that there are never more than these.
        self._preparing = ThreadPoolExecutor(PREPARING_THREADS, thread_name_prefix="llamaserve-prepare")
        self._system_fingerprint = system_fingerprint
        self._started = int(time.time())
        self._unknown_fields = UnknownFieldLog()

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
        self._preparing.shutdown(wait=False, cancel_futures=True)

    async def list_models(self, request: Request) -> Response:
        """``GET /v1/models``."""
        return _json(msgspec.json.encode({"object": "list", "data": [self._model_card(self._service())]}))

    async def show_model(self, request: Request) -> Response:
        """``GET /v1/models/{id}``."""
        service = self._service()
        _check_model(request.path_params["model_id"], service)
        return _json(msgspec.json.encode(self._model_card(service)))

    async def complete(self, request: Request) -> Response:
        """``POST /v1/completions``."""
        return await self._generate(request, COMPLETION, self._prepare_completion)

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        return await self._generate(request, CHAT, self._prepare_chat)

    async def _generate(self, request: Request, endpoint: Endpoint, prepare: Prepare) -> Response:
        service = self._service()
        body = await until_set(
            self._drain.has_begun, _read_body(request, self._config.max_body_bytes), self._drain.refusal
        )
        incoming = IncomingRequest(
            request_id=endpoint.id_prefix + secrets.token_hex(12),
            body=body,
            session_header=request.headers.get(SESSION_HEADER),
            timeout_header=request.headers.get(TIMEOUT_HEADER),
            priority_header=request.headers.get(PRIORITY_HEADER),
        )
        prepared = await until_disconnect(request.receive, self._on_thread(prepare, service, incoming))
        del body, incoming  # up to megabytes, which the answer does not need
        generation = prepared.generation
        head = AnswerHead(generation.request_id, int(time.time()), service.model_name, self._system_fingerprint)
        if prepared.is_streamed:
            encoder = ChunkEncoder(endpoint.chunks, head, has_usage_chunk=prepared.wants_usage_chunk)
            return EventStreamResponse(
                partial(service.listen, generation),
                encoder,
                ping_interval_s=prepared.ping_interval_s,
                timeout_s=prepared.timeout_s,
                on_failure=self._count_failure,
            )
        events = service.stream(generation, timeout_s=prepared.timeout_s)
        outcome = await until_disconnect(request.receive, _collect(events))
        if isinstance(outcome, _Broken):
            self._count_failure(outcome.error)
            return error_response(outcome.error, has_spent_tokens=outcome.n_tokens > 0)
        return _json(endpoint.answer(head, outcome.text, outcome.finished))

    def _count_failure(self, error: Exception) -> None:
        self._n_deadlines += isinstance(error, DeadlineExceeded)

    async def _on_thread(self, prepare: Prepare, service: Service, incoming: IncomingRequest) -> PreparedRequest:
        return await asyncio.get_running_loop().run_in_executor(self._preparing, prepare, service, incoming)

    def _prepare_completion(self, service: Service, incoming: IncomingRequest) -> PreparedRequest:
        decoded = decode_body(incoming.body, CompletionBody, self._unknown_fields)
        _check_model(decoded.model, service)
        tokens = completion_prompt(decoded, service.vocab, service.info.n_ctx_seq)
        return self._prepared(decoded, service, incoming, PromptTokens(tokens))

    def _prepare_chat(self, service: Service, incoming: IncomingRequest) -> PreparedRequest:
        decoded = decode_body(incoming.body, ChatBody, self._unknown_fields)
        _check_model(decoded.model, service)
        prompt = chat_prompt(
            decoded,
            service.template,
            service.vocab,
            service.info.n_ctx_seq,
            wants_boundaries=service.wants_boundaries,
        )
        return self._prepared(decoded, service, incoming, prompt)

    def _prepared(
        self, body: GenerationBody, service: Service, incoming: IncomingRequest, prompt: PromptTokens
    ) -> PreparedRequest:
        generation = GenerationRequest(
            request_id=incoming.request_id,
            prompt=prompt.tokens,
            max_tokens=max_new_tokens(body),
            stop=tuple(dict.fromkeys(stop_strings(body) + prompt.stops)),
            stop_tokens=stop_tokens(body),
            sampling=sampling_params(body, service.vocab),
            cache_prompt=service.cache.cache_prompt if body.cache_prompt is None else body.cache_prompt,
            cache_salt="" if body.cache_salt is None else body.cache_salt,
            session=_session(body, incoming.session_header),
            boundaries=prompt.boundaries,
            return_progress=body.is_streamed and bool(body.return_progress),
            priority=lane(body, incoming.priority_header, self._config.priority_header),
        )
        return PreparedRequest(
            generation,
            is_streamed=body.is_streamed,
            wants_usage_chunk=body.wants_usage_chunk,
            timeout_s=timeout_s(body, incoming.timeout_header),
            ping_interval_s=ping_interval_s(body, self._config.sse_ping_interval_s),
        )

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


def _session(body: GenerationBody, header: str | None) -> str | None:
    """The body's session, else the header's; an empty header is none."""
    if body.session is not None or not header:
        return body.session
    if len(header) > MAX_NAME_LENGTH:
        raise BadRequest(
            f"the header {SESSION_HEADER} has {len(header)} characters: it must have at most {MAX_NAME_LENGTH}",
            SESSION_HEADER,
        )
    return header


def _check_model(name: str | None, service: Service) -> None:
    if name and name != service.model_name:
        raise ModelNotFound(name[:256], service.model_name)


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


@dataclass(frozen=True, slots=True)
class _Answered:
    """A request that is not streamed ended well."""

    text: str
    finished: Finished


@dataclass(frozen=True, slots=True)
class _Broken:
    """A request that is not streamed failed after it was admitted."""

    error: LlamaServeError
    n_tokens: int
    """Tokens generated before the failure."""


async def _collect(stream: AsyncGenerator[Event, None]) -> _Answered | _Broken:
    parts: list[str] = []
    n_tokens = 0
    async with aclosing(stream) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                parts.append(event.text)
                n_tokens += len(event.tokens)
            elif isinstance(event, Finished):
                return _Answered("".join(parts), event)
            elif isinstance(event, Failed):
                return _Broken(event.error, n_tokens)
    raise EngineError("the request ended without a last event")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
