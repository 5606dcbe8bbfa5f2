"""The latencies of a snapshot as metric families: with our bounds under our names, with vLLM's under vLLM's. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from llamaserve.telemetry.histogram import HistogramSnapshot
from llamaserve.telemetry.latencies import (
    VLLM_FIRST_TOKEN_BOUNDS,
    VLLM_GAP_BOUNDS,
    VLLM_REQUEST_BOUNDS,
    LatencySnapshot,
)


def own_histograms(latencies: LatencySnapshot) -> Iterator[Metric]:
    """Everything that was measured."""
    yield histogram_family("llamaserve_queue_wait_seconds", "Submission to a slot.", {"": latencies.queue_wait})
    yield histogram_family(
        "llamaserve_time_to_first_token_seconds", "Submission to the first token.", {"": latencies.first_token}
    )
    yield histogram_family(
        "llamaserve_inter_token_latency_seconds",
        "Between two tokens of a request, when they are drawn.",
        {"": latencies.token_gap},
    )
    yield histogram_family(
        "llamaserve_request_seconds", "Submission to the end, of finished requests.", {"": latencies.request}
    )
    yield histogram_family(
        "llamaserve_step_part_seconds", "A step's time, by part.", latencies.step_parts, label="part"
    )


def vllm_histograms(latencies: LatencySnapshot, labels: Mapping[str, str]) -> Iterator[Metric]:
    """What vLLM measures too, with its bounds and these labels."""
    for name, own_name, snapshot, bounds in (
        ("time_to_first_token", "time_to_first_token", latencies.first_token, VLLM_FIRST_TOKEN_BOUNDS),
        ("inter_token_latency", "inter_token_latency", latencies.token_gap, VLLM_GAP_BOUNDS),
        ("e2e_request_latency", "request", latencies.request, VLLM_REQUEST_BOUNDS),
        ("request_queue_time", "queue_wait", latencies.queue_wait, VLLM_REQUEST_BOUNDS),
    ):
        meaning = f"As llamaserve_{own_name}_seconds."
        family = HistogramMetricFamily(f"vllm:{name}_seconds", meaning, labels=list(labels), unit="seconds")
        _add(family, list(labels.values()), snapshot.coarsened(bounds))
        yield family


def histogram_family(
    name: str, meaning: str, snapshots: Mapping[str, HistogramSnapshot], *, label: str | None = None
) -> Metric:
    """A family of histograms in seconds: by the values of ``label``, or one without."""
    family = HistogramMetricFamily(name, meaning, labels=[] if label is None else [label], unit="seconds")
    for value, snapshot in snapshots.items():
        _add(family, [] if label is None else [value], snapshot)
    return family


def _add(family: HistogramMetricFamily, labels: list[str], snapshot: HistogramSnapshot) -> None:
    buckets = [
        ("+Inf" if math.isinf(bound) else repr(bound), float(n_below)) for bound, n_below in snapshot.cumulative()
    ]
    family.add_metric(labels, buckets, snapshot.total)
