"""``GET /metrics``: the scheduler's numbers in the text formats of Prometheus. Event loop only.

A scrape reads one snapshot, resets nothing and never waits for the engine. Nothing is counted here: the numbers are
those of the scheduler, and of the API where it refuses or gives up on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPEN_METRICS_CONTENT_TYPE
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llamaserve.server.metric_families import (
    ApiCounts,
    build_family,
    llama_server_families,
    own_families,
    vllm_families,
)
from llamaserve.service import Service

METRICS_PATH = "/metrics"

_OPEN_METRICS = "application/openmetrics-text"
_TEXT_ENCODER, TEXT_CONTENT_TYPE = choose_encoder("")
# The library's other way to escape, underscores, also replaces the colons of "vllm:" and "llamacpp:", and in samples
# only (prometheus/client_python#1177). Our names have nothing that needs escaping.
_OPEN_METRICS_ENCODER, _ = choose_encoder(f"{_OPEN_METRICS}; version=1.0.0; escaping=allow-utf-8")


class Metrics:
    """The metrics route, over a registry of its own. ``service`` gives the running service and raises EngineDown while
    there is none; ``api_counts`` never fails."""

    def __init__(self, service: Callable[[], Service], api_counts: Callable[[], ApiCounts], version: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_SnapshotCollector(service, api_counts, version))

    def routes(self) -> list[Route]:
        """The route, for an application's list."""
        return [Route(METRICS_PATH, self.show, methods=["GET"])]

    async def show(self, request: Request) -> Response:
        """All families, in OpenMetrics if the client takes it, else in Prometheus' text format. Raises EngineDown while
        the model loads and at the end; an engine that has failed still has its numbers."""
        if wants_open_metrics(",".join(request.headers.getlist("accept"))):
            body, content_type = _OPEN_METRICS_ENCODER(self._registry), OPEN_METRICS_CONTENT_TYPE
        else:
            body, content_type = _TEXT_ENCODER(self._registry), TEXT_CONTENT_TYPE
        return Response(body, headers={"content-type": content_type})


def wants_open_metrics(accept: str) -> bool:
    """Whether an Accept header names OpenMetrics 1.0.0, or OpenMetrics without a version. Never fails.

    Decided here because the library's own choice raises on a version that is no number, and escapes names in ways that
    its samples and their metadata disagree on.
    """
    for item in accept.lower().split(","):
        media_type, *parameters = (part.strip() for part in item.split(";"))
        versions = [part for part in parameters if part.startswith("version=")]
        if media_type == _OPEN_METRICS and versions in ([], ["version=1.0.0"]):
            return True
    return False


class _SnapshotCollector(Collector):
    """One snapshot of the scheduler a scrape."""

    def __init__(self, service: Callable[[], Service], api_counts: Callable[[], ApiCounts], version: str) -> None:
        self._service = service
        self._api_counts = api_counts
        self._version = version

    def collect(self) -> Iterator[Metric]:
        """Every family. Raises EngineDown while there is no service."""
        service = self._service()
        stats = service.stats()
        yield build_family(self._version, service.model_name)
        yield from own_families(stats, self._api_counts())
        yield from llama_server_families(stats)
        yield from vllm_families(stats, service.model_name)
