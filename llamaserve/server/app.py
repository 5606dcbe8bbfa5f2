"""The Starlette application: routes, error handlers, and the life of the service behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from llamaserve import __version__
from llamaserve.api.body_threads import BodyThreads
from llamaserve.api.drain import Drain
from llamaserve.api.generating import Generating
from llamaserve.api.native.completion_routes import CompletionRoutes
from llamaserve.api.native.props import PropsRoutes
from llamaserve.api.native.token_routes import TokenRoutes
from llamaserve.api.openai.errors import error_response, http_error_response
from llamaserve.api.openai.preparing import Preparer
from llamaserve.api.openai.routes import OpenAIRoutes
from llamaserve.api_key import ApiKeys
from llamaserve.config import HttpConfig
from llamaserve.errors import LlamaServeError
from llamaserve.server.body_timeout import BodyTimeout
from llamaserve.server.key_gate import KeyGate
from llamaserve.server.loading import ServiceLoader
from llamaserve.server.loop_lag import LoopLag
from llamaserve.server.metric_families import ApiCounts
from llamaserve.server.metrics import Metrics
from llamaserve.server.middleware import REQUEST_ID_HEADER, RequestScope
from llamaserve.server.openapi.routes import OpenApiRoutes
from llamaserve.server.probes import Probes
from llamaserve.server.slots import Slots

BUILD = f"llamaserve-{__version__}"
EXPOSED_HEADERS = (REQUEST_ID_HEADER, "retry-after", "x-should-retry")
"""What a web page may read of an answer's headers, beside the harmless ones."""


def build_app(loader: ServiceLoader, config: HttpConfig, drain: Drain | None = None) -> Starlette:
    """The application over a loader that was not started yet: it loads the model when it starts, and closes it when it
    stops. Until the model is there /health answers 503.

    Begin ``drain`` when the server is to stop: whoever wants something computed from then on gets a 503.
    """
    if drain is None:
        drain = Drain()
    bodies = BodyThreads(drain, config.max_body_bytes)
    generating = Generating(loader.service, bodies, system_fingerprint=BUILD)
    preparer = Preparer(config)

    lag = LoopLag()

    def api_counts() -> ApiCounts:
        return ApiCounts(drain.n_refused, generating.n_deadlines, lag.snapshot())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None, None]:
        loader.start()
        watch = asyncio.create_task(lag.run())
        try:
            yield
        finally:
            watch.cancel()
            bodies.close()
            await run_in_threadpool(loader.close)

    app = Starlette(
        routes=[
            *Probes(loader.service, drain).routes(),
            *Metrics(loader.service, api_counts, __version__).routes(),
            *Slots(loader.service, are_shown=config.shows_slots).routes(),
            *OpenAIRoutes(loader.service, drain, generating, preparer).routes(),
            *CompletionRoutes(loader.service, drain, generating, preparer).routes(),
            *TokenRoutes(loader.service, drain, bodies).routes(),
            *PropsRoutes(loader.service, BUILD, shows_slots=config.shows_slots).routes(),
            *OpenApiRoutes(__version__, needs_key=bool(config.api_keys)).routes(),
        ],
        middleware=_middleware(config),
        exception_handlers={LlamaServeError: _answer_our_error, HTTPException: _answer_http_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirected POST loses its body in many clients
    return app


def _middleware(config: HttpConfig) -> list[Middleware]:
    """Outermost first: what every answer has, who may ask, and how long asking may take."""
    cors = Middleware(
        CORSMiddleware,
        allow_origins=config.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=EXPOSED_HEADERS,
    )
    return [
        Middleware(RequestScope),
        *([cors] if config.cors_origins else []),  # before the key: a browser asks without one first
        Middleware(KeyGate, keys=ApiKeys(config.api_keys)),
        Middleware(BodyTimeout, timeout_s=config.body_timeout_s),
    ]


async def _answer_our_error(request: Request, error: Exception) -> Response:
    return error_response(error)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise TypeError(f"expected an HTTPException, got {error!r}")
    messages = {
        404: f"there is no {request.method} {request.url.path} here",
        405: f"{request.url.path} does not take {request.method}",
    }
    message = messages.get(error.status_code, error.detail)
    return http_error_response(error.status_code, message, error.headers)
