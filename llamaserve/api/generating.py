"""From a request to its answer, streamed or whole, for every endpoint that computes. Event loop only."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from llamaserve.api.body_threads import BodyThreads
from llamaserve.api.caller import caller_of
from llamaserve.api.collecting import Broken, collect
from llamaserve.api.disconnect import until_disconnect
from llamaserve.api.openai.answer_plan import AnswerHead
from llamaserve.api.openai.answers import Answer
from llamaserve.api.openai.errors import error_response
from llamaserve.api.openai.limits import PRIORITY_HEADER, TIMEOUT_HEADER
from llamaserve.api.openai.nothing_to_compute import answer_at_once
from llamaserve.api.openai.preparing import SESSION_HEADER, IncomingRequest, Prepare, PreparedRequest
from llamaserve.api.sse import EventStreamResponse, Listen, StreamEncoder
from llamaserve.errors import DeadlineExceeded
from llamaserve.service import Service


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What differs between the endpoints: their ids, and what their answers look like. Both are called on preparing
    threads: an answer that goes on with a text begins by reading that."""

    id_prefix: str
    stream: Callable[[PreparedRequest, AnswerHead], StreamEncoder]
    answer: Callable[[PreparedRequest], Answer]


@dataclass(frozen=True, slots=True)
class _Stream:
    """A request that can be computed, and what writes its stream."""

    prepared: PreparedRequest
    encoder: StreamEncoder


@dataclass(frozen=True, slots=True)
class _Whole:
    """A request that can be computed, and what writes its whole answer."""

    prepared: PreparedRequest
    answer: Answer
    head: AnswerHead


class Generating:
    """Answers requests of one service.

    ``service`` gives the running service and raises EngineDown while there is none. While the server drains, requests
    are refused whose body is still on its way.
    """

    def __init__(self, service: Callable[[], Service], bodies: BodyThreads, *, system_fingerprint: str) -> None:
        self._service = service
        self._bodies = bodies
        self._system_fingerprint = system_fingerprint
        self.n_deadlines = 0
        """Requests that ended because their time was over."""

    async def generate(self, request: Request, endpoint: Endpoint, prepare: Prepare) -> Response:
        """The answer. Raises what makes none possible before anything is sent."""
        service = self._service()
        request_id = endpoint.id_prefix + secrets.token_hex(12)
        incoming = IncomingRequest(
            request_id=request_id,
            session_header=request.headers.get(SESSION_HEADER),
            timeout_header=request.headers.get(TIMEOUT_HEADER),
            priority_header=request.headers.get(PRIORITY_HEADER),
            caller=caller_of(request.scope),
        )
        # A full queue is answered before a template and a tokeniser have worked for nothing.
        make_ready = partial(self._ready, service, incoming, endpoint, prepare)
        ready = await self._bodies.prepared(request, make_ready, service.check_room)
        prepared = ready.prepared
        listen: Listen = partial(service.listen if prepared.is_computed else answer_at_once, prepared.requests)
        if isinstance(ready, _Stream):
            return EventStreamResponse(
                listen,
                ready.encoder,
                name=request_id,
                ping_interval_s=prepared.ping_interval_s,
                timeout_s=prepared.timeout_s,
                on_failure=self._count_failure,
            )
        take = ready.answer.take
        ends = await until_disconnect(
            request.receive, collect(listen, take, len(prepared.requests), timeout_s=prepared.timeout_s)
        )
        if isinstance(ends, Broken):
            self._count_failure(ends.error)
            return error_response(ends.error, has_spent_tokens=ends.n_tokens > 0)
        write = partial(ready.answer.whole, ready.head, ends)
        # A text is written in no time; a million probabilities would hold everybody else up for seconds.
        content = await self._bodies.run(write) if prepared.plan.shown.has_logprobs else write()
        return Response(content, media_type="application/json")

    def _ready(
        self, service: Service, incoming: IncomingRequest, endpoint: Endpoint, prepare: Prepare, body: bytes
    ) -> _Stream | _Whole:
        """Preparing threads only. Raises RequestError."""
        prepared = prepare(service, incoming, body)
        head = AnswerHead(incoming.request_id, int(time.time()), service.model_name, self._system_fingerprint)
        if prepared.is_streamed:
            return _Stream(prepared, endpoint.stream(prepared, head))
        return _Whole(prepared, endpoint.answer(prepared), head)

    def _count_failure(self, error: Exception) -> None:
        self.n_deadlines += isinstance(error, DeadlineExceeded)
