"""Reads the body of a request, as far as it may go. Event loop only."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from llamaserve.errors import Cancelled


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body. Raises HTTPException 413 as soon as it is known to be larger than the limit, Cancelled when the
    client leaves."""
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
