"""The flags of ``llamaserve bench``, and the plan they make."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from llamaserve.errors import ConfigError, shown
from llamaserve.loadtest.call import DEFAULT_STALL_TIMEOUT
from llamaserve.loadtest.load import ClosedLoad, Load, parse_concurrencies, parse_rates
from llamaserve.loadtest.plan import Plan, server_url
from llamaserve.loadtest.slo import Slo
from llamaserve.loadtest.workload import Workload

API_KEY_VARIABLE = "LLAMASERVE_API_KEY"

_WORK = Workload()
_PLAN = Plan("http://127.0.0.1")

# What the sender sets itself; another value would be lost or break the counting.
_OWN_HEADERS = frozenset(("accept", "accept-encoding", "authorization", "connection", "content-length", "content-type"))
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

_load = partial(typer.Option, rich_help_panel="Load")
_request = partial(typer.Option, rich_help_panel="Requests")
_server = partial(typer.Option, rich_help_panel="Server")
_output = partial(typer.Option, rich_help_panel="Output")


@dataclass(frozen=True, slots=True)
class LoadFlags:
    """How hard the server is asked."""

    concurrency: Annotated[
        str | None,
        _load("--concurrency", help="Closed loop: requests at a time; 1,2,4 is a sweep.", show_default="1"),
    ] = None
    request_rate: Annotated[
        str | None,
        _load("--request-rate", help="Open loop: requests a second, at random times; 0.5,1,2 is a sweep."),
    ] = None
    requests: Annotated[int, _load("--requests", help="Measured requests of each point of the sweep.")] = (
        _PLAN.n_requests
    )
    warmup: Annotated[int, _load("--warmup", help="Requests before each point that do not count.")] = _PLAN.n_warmup

    @property
    def loads(self) -> tuple[Load, ...]:
        """The points of the sweep. Raises ConfigError."""
        if self.request_rate is None:
            return (ClosedLoad(1),) if self.concurrency is None else parse_concurrencies(self.concurrency)
        if self.concurrency is not None:
            raise ConfigError(
                f"--concurrency {self.concurrency} and --request-rate {self.request_rate} exclude each other: "
                "a loop is closed or open"
            )
        return parse_rates(self.request_rate)


@dataclass(frozen=True, slots=True)
class RequestFlags:
    """What each request asks for."""

    endpoint: Annotated[Literal["completions", "chat"], _request("--endpoint", help="What is called.")] = _WORK.endpoint
    input_tokens: Annotated[
        int, _request("--input-tokens", help="Length of a prompt in common words, about a token each.")
    ] = _WORK.input_tokens
    output_tokens: Annotated[int, _request("--output-tokens", help="Tokens each answer must have.")] = (
        _WORK.output_tokens
    )
    shared_prefix_tokens: Annotated[
        int, _request("--shared-prefix-tokens", help="Of the input tokens, those all requests begin with.")
    ] = _WORK.shared_prefix_tokens
    any_length: Annotated[
        bool, _request("--any-length", help="Let the model end its answers; --output-tokens is the most then.")
    ] = _WORK.any_length
    temperature: Annotated[float, _request("--temperature", help="0 takes the most likely token.")] = _WORK.temperature
    seed: Annotated[int, _request("--seed", "-s", help="Of prompts, arrival times and sampling.")] = _WORK.seed
    extra_body: Annotated[
        str | None, _request("--extra-body", help="A JSON object whose fields are added to each request.")
    ] = None

    @property
    def workload(self) -> Workload:
        """The requests. Raises ConfigError."""
        return Workload(
            endpoint=self.endpoint,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            shared_prefix_tokens=self.shared_prefix_tokens,
            any_length=self.any_length,
            temperature=self.temperature,
            seed=self.seed,
            extra_body={} if self.extra_body is None else parse_body(self.extra_body),
        )


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """How the server is spoken to."""

    model: Annotated[
        str | None, _server("--model", "-m", help="The model to name.", show_default="the first the server lists")
    ] = None
    api_key: Annotated[
        str | None,
        _server("--api-key", envvar=API_KEY_VARIABLE, show_envvar=True, help="Sent as Authorization: Bearer."),
    ] = None
    header: Annotated[list[str] | None, _server("--header", help='"Name: value"; may be given several times.')] = None
    stall_timeout: Annotated[
        float, _server("--stall-timeout", help="Seconds without an event after which a request has failed.")
    ] = DEFAULT_STALL_TIMEOUT

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request. Raises ConfigError."""
        headers = parse_headers(self.header or ())
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {_header_value('the API key', self.api_key)}"
        return headers


@dataclass(frozen=True, slots=True)
class OutputFlags:
    """What is judged and where it is written."""

    slo: Annotated[
        list[str] | None,
        _output("--slo", help="A limit in ms for goodput: ttft:500, itl:50, tpot:50 or e2e:9000; several times."),
    ] = None
    json_path: Annotated[
        Path | None, _output("--json", metavar="FILE", help="Write everything, each request included.")
    ] = None
    markdown_path: Annotated[Path | None, _output("--markdown", metavar="FILE", help="Write the tables.")] = None
    quiet: Annotated[bool, _output("--quiet", "-q", help="Show no progress.")] = False

    @property
    def limits(self) -> Slo | None:
        """The limits, if any. Raises ConfigError."""
        return Slo.parse(self.slo) if self.slo else None

    def check_paths(self) -> None:
        """Notice before the run what could not be written after it. Raises ConfigError."""
        if self.json_path is not None and self.json_path == self.markdown_path:
            raise ConfigError(f"--json and --markdown are both {str(self.json_path)!r}: one would overwrite the other")
        for flag, path in (("--json", self.json_path), ("--markdown", self.markdown_path)):
            if path is None:
                continue
            target = path if path.exists() else path.absolute().parent
            if path.is_dir() or not target.exists() or not os.access(target, os.W_OK):
                raise ConfigError(f"{flag} {path} cannot be written: it must be a file in a folder that exists")


def plan_of(url: str, load: LoadFlags, request: RequestFlags, server: ServerFlags, output: OutputFlags) -> Plan:
    """The plan of a command line. Raises ConfigError."""
    output.check_paths()
    return Plan(
        url=server_url(url),
        workload=request.workload,
        loads=load.loads,
        n_requests=load.requests,
        n_warmup=load.warmup,
        model=server.model,
        slo=output.limits,
        stall_timeout=server.stall_timeout,
        headers=server.headers,
    )


def parse_body(text: str) -> dict[str, Any]:
    """Fields out of a JSON object. Raises ConfigError."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ConfigError(f"--extra-body is {shown(text)}: it must be a JSON object ({error})") from error


def parse_headers(texts: Iterable[str]) -> dict[str, str]:
    """Headers out of texts like "Name: value". Raises ConfigError."""
    headers: dict[str, str] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"--header is {shown(text)}: it must be like 'Name: value'")
        if name.lower() in _OWN_HEADERS:
            raise ConfigError(
                f"--header sets {name}: the load generator sets that itself (--api-key for Authorization)"
            )
        headers[name] = _header_value(f"--header {name}", value.strip())
    return headers


def _header_value(name: str, value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise ConfigError(f"{name} has characters no header can have: it must be printable ASCII")
    return value
