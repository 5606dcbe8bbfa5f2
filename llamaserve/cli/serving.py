"""``llamaserve serve``: load beside the listening socket, then say where the server is and how to try it."""

from __future__ import annotations

import json
import logging
import shlex
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

from rich.console import Console

from llamaserve.cli.bench_flags import API_KEY_VARIABLE
from llamaserve.cli.model_facts import parameters, quantisation
from llamaserve.cli.parts import Parts
from llamaserve.cli.progress import LoadBar
from llamaserve.config import CacheConfig, EngineConfig, HttpConfig, SchedulerConfig
from llamaserve.service import Service

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def serve(
    parts: Parts,
    engine_config: EngineConfig,
    scheduler_config: SchedulerConfig,
    cache_config: CacheConfig,
    http_config: HttpConfig,
    *,
    model_name: str,
    progress_console: Console,
) -> None:
    """Serve a model under a name until a signal. Raises ConfigError, ModelLoad."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("llamaserve").setLevel(logging.INFO)  # one line a request
    bar = LoadBar(progress_console, model_name)

    def load() -> Service:
        with bar:
            return parts.load_service(engine_config, scheduler_config, model_name, bar.advance, cache=cache_config)

    parts.run_server(
        load, http_config, on_ready=partial(print_ready, needs_key=bool(http_config.api_keys)), cancel_load=bar.cancel
    )


def print_ready(service: Service, url: str, *, needs_key: bool) -> None:
    """Say what is served and where. Output that nobody takes does not end the server."""
    with suppress(OSError):
        print(ready_text(service, url, needs_key=needs_key), flush=True)


def ready_text(service: Service, url: str, *, needs_key: bool) -> str:
    """What is served, where, and a command to try it with."""
    info = service.info
    kind = [info.architecture, f"{parameters(info.n_params)} parameters", quantisation(info.description)]
    slots = f"{info.n_slots} slot{'s' if info.n_slots > 1 else ''}"
    return (
        f"llamaserve serves {service.model_name} at {url}\n"
        f"  model    {', '.join(part for part in kind if part)}, {info.size_bytes / 1e6:.0f} MB\n"
        f"  context  {info.n_ctx} tokens, {slots}, at most {info.n_ctx_seq} tokens each\n"
        f"\nTry it:\n\n  {curl_command(service, url, needs_key=needs_key)}\n\nCtrl-C stops the server."
    )


def curl_command(service: Service, url: str, *, needs_key: bool) -> str:
    """A command for the shell that asks the model something; a key is taken from the environment, not shown."""
    if service.template is not None:
        path = "/v1/chat/completions"
        body: dict[str, object] = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    else:
        path, body = "/v1/completions", {"prompt": "The sky is blue because"}
    body = {"model": service.model_name, **body, "max_tokens": 100}
    address, data = shlex.quote(reachable(url) + path), shlex.quote(json.dumps(body))
    key = f' -H "Authorization: Bearer ${API_KEY_VARIABLE}"' if needs_key else ""
    return f"curl {address} -H 'Content-Type: application/json'{key} -d {data}"


def reachable(url: str) -> str:
    """The URL with an address to connect to, where the server listens on all."""
    parsed = urlsplit(url)
    host = ANY_ADDRESS.get(parsed.hostname or "")
    if host is None:
        return url
    return f"{parsed.scheme}://{f'[{host}]' if ':' in host else host}:{parsed.port}"
