"""What happens to every request: an id, one log line, and a 500 instead of a dropped connection. Event loop only."""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llamaserve.api.openai.errors import internal_error_response
from llamaserve.server.metrics import METRICS_PATH
from llamaserve.server.probes import PROBE_PATHS
from llamaserve.server.slots import SLOTS_PATH

logger = logging.getLogger("llamaserve.http")

REQUEST_ID_HEADER = "x-request-id"
WATCHED_PATHS = (*PROBE_PATHS, METRICS_PATH, SLOTS_PATH)
# Nothing that could end a field of the log line or begin another.
_SANE_REQUEST_ID = re.compile(r"[\w.:\-]{1,128}", re.ASCII)


class RequestScope:
    """Gives every response an ``x-request-id``, logs one line a request (watchers' at DEBUG only), turns an unexpected
    exception into a 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        progress = _Progress(send, choose_request_id(Headers(scope=scope).get(REQUEST_ID_HEADER)))
        try:
            await self._app(scope, receive, progress.send)
        except Exception:
            logger.exception("unexpected error in request %s", progress.request_id)
            if not progress.has_started:
                await internal_error_response(progress.request_id)(scope, receive, progress.send)
        finally:
            progress.log(scope["method"], scope["path"])


def choose_request_id(wish: str | None) -> str:
    """The client's own id if it is 1 to 128 ASCII letters, digits and ``_.:-``, else a new one."""
    if wish is not None and _SANE_REQUEST_ID.fullmatch(wish):
        return wish
    return "req-" + secrets.token_hex(12)


class _Progress:
    """What is known of one response while it is sent."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.request_id = request_id
        self._send = send
        self._started = time.monotonic()
        self._status: int | None = None
        self._is_complete = False

    @property
    def has_started(self) -> bool:
        """Whether the status line was sent."""
        return self._status is not None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            MutableHeaders(scope=message)[REQUEST_ID_HEADER] = self.request_id
        elif message["type"] == "http.response.body":
            self._is_complete = not message.get("more_body", False)
        await self._send(message)

    def log(self, method: str, path: str) -> None:
        duration_ms = (time.monotonic() - self._started) * 1000
        ending = "" if self._is_complete else " (not sent to the end)"
        # Something asks every few seconds how the server is; that is no news.
        level = logging.DEBUG if path in WATCHED_PATHS else logging.INFO
        logger.log(
            level,
            "%s %s %s %.1f ms%s id=%s",
            method,
            ascii(path)[1:-1],
            self._status,
            duration_ms,
            ending,
            self.request_id,
        )
