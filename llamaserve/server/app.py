"""The Starlette application: routes, error handlers, and the life of the service behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from llamaserve import __version__
from llamaserve.api.drain import Drain
from llamaserve.api.openai.errors import error_response, http_error_response
from llamaserve.api.openai.routes import OpenAIRoutes
from llamaserve.config import HttpConfig
from llamaserve.errors import LlamaServeError
from llamaserve.server.loading import ServiceLoader
from llamaserve.server.loop_lag import LoopLag
from llamaserve.server.metric_families import ApiCounts
from llamaserve.server.metrics import Metrics
from llamaserve.server.middleware import RequestScope
from llamaserve.server.probes import Probes
from llamaserve.server.slots import Slots


def build_app(loader: ServiceLoader, config: HttpConfig, drain: Drain | None = None) -> Starlette:
    """The application over a loader that was not started yet: it loads the model when it starts, and closes it when it
    stops. Until the model is there /health answers 503.

    Begin ``drain`` when the server is to stop: whoever wants something computed from then on gets a 503.
    """
    if drain is None:
        drain = Drain()
    openai = OpenAIRoutes(loader.service, drain, config, system_fingerprint=f"llamaserve-{__version__}")

    lag = LoopLag()

    def api_counts() -> ApiCounts:
        return ApiCounts(drain.n_refused, openai.n_deadlines, lag.snapshot())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None, None]:
        loader.start()
        watch = asyncio.create_task(lag.run())
        try:
            yield
        finally:
            watch.cancel()
            openai.close()
            await run_in_threadpool(loader.close)

    app = Starlette(
        routes=[
            *Probes(loader.service, drain).routes(),
            *Metrics(loader.service, api_counts, __version__).routes(),
            *Slots(loader.service, are_shown=config.shows_slots).routes(),
            *openai.routes(),
        ],
        middleware=[Middleware(RequestScope)],
        exception_handlers={LlamaServeError: _answer_our_error, HTTPException: _answer_http_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirected POST loses its body in many clients
    return app


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
