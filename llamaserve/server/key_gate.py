"""Lets requests in that have an API key, before their body is read. Event loop only.

A client sends its key as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``. What balancers ask for is open to all.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llamaserve.api.caller import Caller, set_caller
from llamaserve.api.openai.errors import http_error_response
from llamaserve.api_key import ApiKey, ApiKeys
from llamaserve.server.probes import PROBE_PATHS

BEARER = "bearer "
_NO_KEY = 'Bearer realm="llamaserve"'
_WRONG_KEY = _NO_KEY + ', error="invalid_token"'


class KeyGate:
    """ASGI middleware: 401 without a key of ``keys``; with one, the request's scope says whose it is."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request, or refuse it."""
        if scope["type"] != "http" or not self._keys or scope["path"] in PROBE_PATHS:
            await self._app(scope, receive, send)
            return
        secrets = sent_secrets(Headers(scope=scope))
        key = self._first_known(secrets)
        if key is None:
            await _refusal(has_sent_one=bool(secrets))(scope, receive, send)
            return
        set_caller(scope, Caller(key.owner, key.most_urgent, is_apart=self._keys.n_owners > 1))
        await self._app(scope, receive, send)

    def _first_known(self, secrets: list[bytes]) -> ApiKey | None:
        known = [key for key in map(self._keys.find, secrets) if key is not None]
        return known[0] if known else None


def sent_secrets(headers: Headers) -> list[bytes]:
    """What a request offers as its key; one way of sending it is enough, so a proxy may use the other for itself."""
    authorization = headers.get("authorization", "").strip()
    offered = [authorization[len(BEARER) :].strip()] if authorization.lower().startswith(BEARER) else []
    offered.append(headers.get("x-api-key", "").strip())
    return [secret.encode("latin-1") for secret in offered if secret]


def _refusal(*, has_sent_one: bool) -> Response:
    if has_sent_one:
        return http_error_response(401, "the API key is not one of this server's", {"www-authenticate": _WRONG_KEY})
    message = "an API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
    return http_error_response(401, message, {"www-authenticate": _NO_KEY})
