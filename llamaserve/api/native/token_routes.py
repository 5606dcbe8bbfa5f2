"""llama-server's routes about tokens: they compute nothing. Event loop; tokenisers and templates run on threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llamaserve.api.body_threads import BodyThreads
from llamaserve.api.drain import Drain, computing_route
from llamaserve.api.native.token_bodies import (
    DetokenizeAnswer,
    DetokenizeBody,
    InputTokensAnswer,
    TemplateAnswer,
    TemplateBody,
    TokenizeAnswer,
    TokenizeBody,
)
from llamaserve.api.native.tokens import text_of, tokenized
from llamaserve.api.openai.body import decode_body
from llamaserve.api.openai.chat_prompt import chat_text
from llamaserve.api.openai.fields import UnknownFieldLog
from llamaserve.api.openai.preparing import check_model
from llamaserve.api.openai.tokenizing import tokenize
from llamaserve.service import Service

Answer = Callable[[Service, bytes], msgspec.Struct]


class TokenRoutes:
    """The routes over one service. ``service`` gives the running one and raises EngineDown while there is none."""

    def __init__(self, service: Callable[[], Service], drain: Drain, bodies: BodyThreads) -> None:
        self._service = service
        self._drain = drain
        self._bodies = bodies
        self._unknown_fields = UnknownFieldLog()

    def routes(self) -> list[Route]:
        """The routes, for an application's list."""
        return [
            self._route("/tokenize", self.tokenize),
            self._route("/detokenize", self.detokenize),
            self._route("/apply-template", self.apply_template),
            self._route("/chat/completions/input_tokens", self.count_chat),
            self._route("/v1/chat/completions/input_tokens", self.count_chat),
        ]

    def _route(self, path: str, answer: Answer) -> Route:
        async def endpoint(request: Request) -> Response:
            encoded = await self._bodies.prepared(request, partial(_encoded, answer, self._service()))
            return Response(encoded, media_type="application/json")

        return computing_route(path, endpoint, self._drain)

    def tokenize(self, service: Service, body: bytes) -> TokenizeAnswer:
        """The tokens of a text. Raises BadRequest, BadToken."""
        asked = decode_body(body, TokenizeBody, self._unknown_fields)
        check_model(asked.model, service)
        return tokenized(asked, service.vocab, service.info.n_ctx_seq)

    def detokenize(self, service: Service, body: bytes) -> DetokenizeAnswer:
        """The text of tokens. Raises BadRequest, BadToken."""
        asked = decode_body(body, DetokenizeBody, self._unknown_fields)
        check_model(asked.model, service)
        text = text_of(asked, service.vocab)
        return DetokenizeAnswer(text, text)

    def apply_template(self, service: Service, body: bytes) -> TemplateAnswer:
        """A conversation as the model reads it. Raises BadRequest, BadTemplate, PromptTooLong."""
        asked = decode_body(body, TemplateBody, self._unknown_fields)
        check_model(asked.model, service)
        return TemplateAnswer(chat_text(asked, service.template, service.info.n_ctx_seq))

    def count_chat(self, service: Service, body: bytes) -> InputTokensAnswer:
        """How many tokens a conversation has. Raises BadRequest, BadTemplate, PromptTooLong for one far over the
        context."""
        asked = decode_body(body, TemplateBody, self._unknown_fields)
        check_model(asked.model, service)
        n_ctx = service.info.n_ctx_seq
        return InputTokensAnswer(len(tokenize(chat_text(asked, service.template, n_ctx), service.vocab, n_ctx)))


def _encoded(answer: Answer, service: Service, body: bytes) -> bytes:
    """On the preparing thread too: it may be megabytes."""
    return msgspec.json.encode(answer(service, body))
