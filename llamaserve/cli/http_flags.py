"""The flags of the HTTP server: where it listens, who may use it, and what it shows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from llamaserve.api_key import ApiKey, read_key_file
from llamaserve.cli.bench_flags import API_KEY_VARIABLE
from llamaserve.config import HttpConfig, PriorityHeader

MIB = 2**20
_HTTP = HttpConfig()

_http = partial(typer.Option, rich_help_panel="HTTP")
_access = partial(typer.Option, rich_help_panel="Access")


@dataclass(frozen=True, slots=True)
class HttpFlags:
    """Where the server listens, and what it shows."""

    host: Annotated[str, _http("--host", help="Address to listen on.")] = _HTTP.host
    port: Annotated[int, _http("--port", min=0, max=65535, help="0 = the system chooses one.")] = _HTTP.port
    alias: Annotated[
        str | None, _http("--alias", "-a", help="The model's name for clients.", show_default="-m, or its file's name")
    ] = None
    show_slots: Annotated[bool, _http("--slots/--no-slots", help="Show at /slots what each slot does.")] = (
        _HTTP.shows_slots
    )
    drain_timeout: Annotated[
        float, _http("--drain-timeout", min=0, help="Seconds that requests have to end in after the first signal.")
    ] = _HTTP.drain_timeout_s
    sse_ping_interval: Annotated[
        float,
        _http("--sse-ping-interval", min=0, help="Seconds of silence before a stream sends a comment; 0 = never."),
    ] = _HTTP.sse_ping_interval_s
    priority_header: Annotated[
        PriorityHeader,
        _http(
            "--priority-header",
            help="What of clients' priorities is honoured: nothing, none above normal (cap), or all.",
        ),
    ] = _HTTP.priority_header
    max_body_size: Annotated[
        int, _http("--max-body-size", min=1, max=1024, help="MiB that a request's body may have.")
    ] = _HTTP.max_body_bytes // MIB
    body_timeout: Annotated[
        float, _http("--body-timeout", help="Seconds that a request's body may take to arrive.")
    ] = _HTTP.body_timeout_s

    def config(self, access: AccessFlags) -> HttpConfig:
        """The HTTP server's configuration. Raises ConfigError."""
        return HttpConfig(
            host=self.host,
            port=self.port,
            shows_slots=self.show_slots,
            drain_timeout_s=self.drain_timeout,
            sse_ping_interval_s=self.sse_ping_interval,
            priority_header=self.priority_header,
            max_body_bytes=self.max_body_size * MIB,
            body_timeout_s=self.body_timeout,
            api_keys=access.api_keys,
            cors_origins=access.cors_origins,
            ssl_certfile=access.ssl_certfile,
            ssl_keyfile=access.ssl_keyfile,
        )


@dataclass(frozen=True, slots=True)
class AccessFlags:
    """Who may use the server."""

    api_key: Annotated[
        list[str] | None,
        _access(
            "--api-key",
            envvar=API_KEY_VARIABLE,
            metavar="KEY",
            help="A key clients must send, or several with commas; may be given several times.",
            show_default="none",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        _access(
            "--api-key-file", help="A file of keys, one a line: KEY, NAME KEY or NAME KEY LANE.", show_default="none"
        ),
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        _access(
            "--cors-origin",
            "--cors-origins",
            metavar="ORIGIN",
            help="Let web pages from there use the server, * = all; several with commas or several times.",
            show_default="none",
        ),
    ] = None
    ssl_certfile: Annotated[
        Path | None,
        _access("--ssl-certfile", "--ssl-cert-file", help="Certificate for HTTPS, in PEM.", show_default="none"),
    ] = None
    ssl_keyfile: Annotated[
        Path | None, _access("--ssl-keyfile", "--ssl-key-file", help="Its private key.", show_default="none")
    ] = None

    @property
    def api_keys(self) -> tuple[ApiKey, ...]:
        """All keys. Raises ConfigError."""
        keys = [ApiKey.of(secret) for secret in _items(self.api_key)]
        return (*keys, *([] if self.api_key_file is None else read_key_file(self.api_key_file)))

    @property
    def cors_origins(self) -> tuple[str, ...]:
        """All origins."""
        return tuple(_items(self.cors_origin))


def _items(values: list[str] | None) -> list[str]:
    """What stands between the commas, as in llama-server's lists; nothing there is an item too, and no good one."""
    return [item.strip() for value in values or () for item in value.split(",")]
