"""uvicorn's HTTP protocol with limits on what is no body, and answers to broken requests in our shape. Event loop only.

llhttp bounds nothing: a head without end, headers without end, or trailers and chunk sizes around a tiny body would
take memory for as long as somebody sends.
"""

from __future__ import annotations

import logging

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llamaserve.api.openai.errors import http_error_response
from llamaserve.server.middleware import REQUEST_ID_HEADER, choose_request_id

logger = logging.getLogger("llamaserve.http")

MAX_HEADERS = 128
MAX_HEAD_BYTES = 64 * 1024
"""Of a request's line and headers."""
MAX_FRAMING = 16
"""Bytes of chunk sizes and trailers for each byte of the body, beyond ``MAX_HEAD_BYTES``; chunks of one byte need 5."""


HEADER_FRAMING = 4
"""Bytes around a header's name and value."""


class _HeadTooLarge(Exception):
    """Ends the parsing of a request."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection.

    A request whose head is too large, or broken, is answered with 431 or 400, and the connection is closed.
    """

    _n_messages = 0
    _is_in_head = False
    _is_in_message = False
    _n_received = 0
    """Bytes since the request began, but for those that came in one piece with its beginning."""
    _n_body = 0
    _n_head = 0
    """Bytes of the request's address and headers."""
    _is_head_too_large = False

    @property
    def owed(self) -> int | None:
        """The number of the request that the client should send, or the rest of it, where nothing waits for that and
        so no time is running; None when nothing is owed."""
        is_answered = self.cycle is not None and self.cycle.response_complete
        is_owed = self.cycle is None or self._is_in_head or (self._is_in_message and is_answered)
        return self._n_messages if is_owed else None

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._n_received += len(data)
        super().data_received(data)
        framing = self._n_received - self._n_body
        if framing > MAX_HEAD_BYTES + MAX_FRAMING * self._n_body and not self.transport.is_closing():
            self._is_head_too_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._n_messages += 1
        self._is_in_head = self._is_in_message = True
        self._n_received = self._n_body = self._n_head = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the address."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or trailer."""
        self._count_head(len(name) + len(value) + HEADER_FRAMING, is_too_large=len(self.headers) >= MAX_HEADERS)
        super().on_header(name, value)

    def _count_head(self, n_bytes: int, *, is_too_large: bool = False) -> None:
        self._n_head += n_bytes
        if is_too_large or self._n_head > MAX_HEAD_BYTES:
            self._is_head_too_large = True
            raise _HeadTooLarge

    def on_headers_complete(self) -> None:
        """The head is over."""
        self._is_in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._n_body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is over."""
        self._is_in_message = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be a request, or is too large a one, and close the connection."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self._refuse()
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # now: what the application says after this belongs to no answer
            cycle.message_event.set()
        self.transport.close()

    def _refuse(self) -> None:
        if self._is_head_too_large:
            status, reason = 431, b"Request Header Fields Too Large"
            message = f"a request may have {MAX_HEADERS} headers, and {MAX_HEAD_BYTES} bytes before its body"
        else:
            status, reason, message = 400, b"Bad Request", "the request is not valid HTTP"
        request_id = choose_request_id(None)  # the client's own would be in a head that nobody reads
        response = http_error_response(status, message, {"connection": "close", REQUEST_ID_HEADER: request_id})
        lines = [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join([b"HTTP/1.1 %d %s" % (status, reason), *lines, b"", bytes(response.body)]))
        logger.info("(not a request) %d %s id=%s", status, message, request_id)
