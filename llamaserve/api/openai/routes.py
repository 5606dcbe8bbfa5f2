"""The OpenAI endpoints. Event loop; decoding bodies, templates and tokenising run on threads of their own."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llamaserve.api.body_threads import BodyThreads
from llamaserve.api.caller import Caller, caller_of
from llamaserve.api.disconnect import until_disconnect
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
from llamaserve.api.openai.model_card import ModelCard, ModelList
from llamaserve.api.openai.prompts import PromptTokens, chat_prompt, completion_prompt
from llamaserve.api.openai.sampling import max_new_tokens, sampling_params, stop_strings
from llamaserve.api.sse import EventStreamResponse
from llamaserve.config import HttpConfig
from llamaserve.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineError,
    LlamaServeError,
    ModelNotFound,
)
from llamaserve.request import MAX_NAME_LENGTH, Event, Failed, Finished, GenerationRequest, TextDelta
from llamaserve.service import Service

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
    """What a request says before its body."""

    request_id: str
    session_header: str | None
    timeout_header: str | None
    priority_header: str | None
    caller: Caller


Prepare = Callable[[Service, IncomingRequest, bytes], PreparedRequest]


class OpenAIRoutes:
    """OpenAI's endpoints over one service.

    Event loop only. ``service`` gives the running service and raises EngineDown while there is none. While the server
    drains, requests are refused, and so are those whose body is still on its way.
    """

    def __init__(
        self,
        service: Callable[[], Service],
        drain: Drain,
        config: HttpConfig,
        bodies: BodyThreads,
        *,
        system_fingerprint: str,
    ) -> None:
        self._service = service
        self._drain = drain
        self._config = config
        self._n_deadlines = 0
        self._bodies = bodies
        self._system_fingerprint = system_fingerprint
        self._started = int(time.time())
        self._unknown_fields = UnknownFieldLog()

    def routes(self) -> list[Route]:
        """The routes, for an application's list."""
        return [
            Route("/v1/models", self.list_models, methods=["GET"]),
            Route("/models", self.list_models, methods=["GET"]),
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
        return await self._generate(request, COMPLETION, self._prepare_completion)

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        return await self._generate(request, CHAT, self._prepare_chat)

    async def _generate(self, request: Request, endpoint: Endpoint, prepare: Prepare) -> Response:
        service = self._service()
        incoming = IncomingRequest(
            request_id=endpoint.id_prefix + secrets.token_hex(12),
            session_header=request.headers.get(SESSION_HEADER),
            timeout_header=request.headers.get(TIMEOUT_HEADER),
            priority_header=request.headers.get(PRIORITY_HEADER),
            caller=caller_of(request.scope),
        )
        prepared = await self._bodies.prepared(request, partial(prepare, service, incoming))
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

    def _prepare_completion(self, service: Service, incoming: IncomingRequest, body: bytes) -> PreparedRequest:
        decoded = decode_body(body, CompletionBody, self._unknown_fields)
        check_model(decoded.model, service)
        tokens = completion_prompt(decoded, service.vocab, service.info.n_ctx_seq)
        return self._prepared(decoded, service, incoming, PromptTokens(tokens))

    def _prepare_chat(self, service: Service, incoming: IncomingRequest, body: bytes) -> PreparedRequest:
        decoded = decode_body(body, ChatBody, self._unknown_fields)
        check_model(decoded.model, service)
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
            sampling=sampling_params(body, service.vocab.n_tokens),
            cache_prompt=service.cache.cache_prompt if body.cache_prompt is None else body.cache_prompt,
            cache_salt=incoming.caller.cache_scope(body.cache_salt or ""),
            session=_session(body, incoming.session_header),
            boundaries=prompt.boundaries,
            return_progress=body.is_streamed and bool(body.return_progress),
            priority=lane(body, incoming.priority_header, self._config.priority_header, incoming.caller.most_urgent),
            owner=incoming.caller.owner,
        )
        return PreparedRequest(
            generation,
            is_streamed=body.is_streamed,
            wants_usage_chunk=body.wants_usage_chunk,
            timeout_s=timeout_s(body, incoming.timeout_header),
            ping_interval_s=ping_interval_s(body, self._config.sse_ping_interval_s),
        )


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


def check_model(name: str | None, service: Service) -> None:
    """Raise ModelNotFound for another name than that of the model that is served."""
    if name and name != service.model_name:
        raise ModelNotFound(name[:256], service.model_name)


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
