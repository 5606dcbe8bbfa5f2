"""A snapshot of the scheduler as metric families: under our names, and under those of llama-server and vLLM. Pure.

Another server's name is used only where our number means what theirs does; docs/metrics.md lists them all, with the
differences that are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from llamaserve.cache.prefix_memory import PrefixCounters, PrefixGauges
from llamaserve.scheduler.stats import SchedulerStats
from llamaserve.server.histogram_families import histogram_family, own_histograms, vllm_histograms
from llamaserve.telemetry.histogram import HistogramSnapshot

VLLM_ENGINE = "0"
"""vLLM numbers the engines behind one server; there is one here."""


class ApiCounts(NamedTuple):
    """What only the HTTP side knows of."""

    refused_draining: int
    """Requests refused because the server was shutting down."""
    deadlines: int
    """Requests whose time was over; for the scheduler they were cancelled."""
    loop_lag: HistogramSnapshot
    """How late the event loop woke, in seconds."""


def build_family(version: str, model_name: str) -> Metric:
    """What runs, and the model it serves."""
    labels = {"version": version, "model_name": model_name}
    return InfoMetricFamily("llamaserve_build", "The version that runs, and the name of its model.", labels)


def own_families(stats: SchedulerStats, api: ApiCounts) -> Iterator[Metric]:
    """Every field of both."""
    yield from _gauges(stats)
    yield from _request_counters(stats, api)
    yield from _token_counters(stats)
    yield from _step_counters(stats)
    yield from _reuse_counters(stats.prefix)
    yield from _kept_counters(stats.prefix)
    yield from _prefix_gauges(stats.prefix_gauges)
    yield from own_histograms(stats.latencies)
    yield histogram_family(
        "llamaserve_event_loop_lag_seconds", "How late the event loop woke up for something due.", {"": api.loop_lag}
    )


def _gauges(stats: SchedulerStats) -> Iterator[Metric]:
    states = {
        "idle": stats.idle_slots,
        "prefilling": stats.prefilling_slots,
        "generating": stats.active_slots - stats.prefilling_slots,
    }
    yield _labelled(GaugeMetricFamily("llamaserve_slots", "Slots by what they do.", labels=["state"]), states)
    yield _gauge("llamaserve_slot_limit", "Slots there are.", stats.n_slots)
    yield _gauge("llamaserve_queue_depth", "Requests that wait for their first slot.", stats.queue_depth)
    yield _gauge(
        "llamaserve_preempted_requests", "Requests that gave their slot up and wait for one.", stats.preempted_requests
    )
    yield _gauge("llamaserve_kv_cells_used", "KV cells held, as of the last tick.", stats.used_cells)
    yield _gauge("llamaserve_kv_cell_limit", "KV cells of the context, over all slots.", stats.n_ctx)
    yield _gauge("llamaserve_step_token_limit", "Most tokens a step may compute.", stats.n_batch)


def _request_counters(stats: SchedulerStats, api: ApiCounts) -> Iterator[Metric]:
    outcomes = {
        "finished": stats.requests_done,
        "cancelled": stats.requests_cancelled,
        "failed": stats.requests_failed,
    }
    yield _labelled(
        CounterMetricFamily("llamaserve_requests_total", "Requests that ended, by how.", labels=["outcome"]), outcomes
    )
    rejections = CounterMetricFamily(
        "llamaserve_rejections_total", "Requests that were refused, by why.", labels=["reason"]
    )
    reasons = {
        "queue_requests": stats.queue_rejects,
        "queue_tokens": stats.token_rejects,
        "draining": api.refused_draining,
    }
    yield _labelled(rejections, reasons)
    yield _counter("llamaserve_deadlines_total", "Requests that ended because their time was over.", api.deadlines)
    yield _counter(
        "llamaserve_preemptions_total", "Times a request gave its slot up for want of KV cells.", stats.preemptions
    )


def _token_counters(stats: SchedulerStats) -> Iterator[Metric]:
    yield _counter("llamaserve_prompt_tokens_total", "Prompt tokens computed.", stats.prompt_tokens)
    yield _counter(
        "llamaserve_recomputed_tokens_total",
        "Tokens computed again for requests that came back without their cells.",
        stats.recomputed_tokens,
    )
    yield _counter(
        "llamaserve_generated_tokens_total", "Tokens drawn, without end-of-generation tokens.", stats.generated_tokens
    )
    yield _counter("llamaserve_decode_rows_total", "Decode rows computed, over all steps.", stats.decode_tokens)


def _step_counters(stats: SchedulerStats) -> Iterator[Metric]:
    yield _counter("llamaserve_steps_total", "Steps run.", stats.ticks)
    yield _counter("llamaserve_decode_steps_total", "Steps without a prompt piece.", stats.decode_steps)
    yield _counter(
        "llamaserve_lookahead_steps_total",
        "Decode steps that were computed before the step before was acted on.",
        stats.lookahead_steps,
    )
    discards = CounterMetricFamily(
        "llamaserve_lookahead_discards_total",
        "Steps that ran ahead in vain, by what took them back.",
        labels=["reason"],
    )
    yield _labelled(discards, {reason.value: count for reason, count in stats.lookahead_discards.items()})
    yield _counter("llamaserve_failed_steps_total", "Steps in which nothing worked.", stats.failed_steps)
    yield _counter(
        "llamaserve_batch_splits_total", "Times a batch was halved because it did not fit.", stats.batch_splits
    )
    yield _counter(
        "llamaserve_kv_purges_total", "Parked sequences forgotten because no cell was free.", stats.kv_purges
    )
    seconds = CounterMetricFamily(
        "llamaserve_step_seconds_total", "Seconds all steps took, by part.", labels=["part"], unit="seconds"
    )
    parts = {"build": stats.build_s, "decode": stats.decode_s, "sample": stats.sample_s, "gather": stats.gather_s}
    yield _labelled(seconds, parts)


def _reuse_counters(prefix: PrefixCounters) -> Iterator[Metric]:
    """What requests found."""
    yield _counter(
        "llamaserve_prefix_cache_queries_total",
        "Requests that looked for a computed prefix of their prompt.",
        prefix.hits + prefix.misses,
    )
    yield _counter("llamaserve_prefix_cache_hits_total", "Those of them that reused at least one token.", prefix.hits)
    yield _counter("llamaserve_prefix_cache_misses_total", "Those of them that found nothing.", prefix.misses)
    yield _counter("llamaserve_prefix_query_tokens_total", "Prompt tokens of those requests.", prefix.tokens_queried)
    sources = {"cells": prefix.tokens_from_cells, "ram": prefix.tokens_from_ram, "disk": prefix.tokens_from_disk}
    yield _labelled(
        CounterMetricFamily(
            "llamaserve_cached_tokens_total", "Prompt tokens that were not computed, by source.", labels=["source"]
        ),
        sources,
    )
    yield _counter(
        "llamaserve_unstable_prefixes_total",
        "Prompts that changed near their beginning, so that the cache could not help.",
        prefix.unstable_prefixes,
    )


def _kept_counters(prefix: PrefixCounters) -> Iterator[Metric]:
    """What became of what requests left."""
    yield _counter("llamaserve_parks_total", "Times a request left a computed prefix behind.", prefix.parked)
    yield _counter(
        "llamaserve_merged_tokens_total",
        "KV cells freed because another sequence had the same tokens.",
        prefix.merged_tokens,
    )
    yield _counter("llamaserve_evictions_total", "Runs of kept KV cells freed to make room.", prefix.evictions)
    yield _counter("llamaserve_evicted_tokens_total", "Tokens of those runs.", prefix.evicted_tokens)
    yield _counter("llamaserve_prefix_saves_total", "Copies of prefixes made before they were freed.", prefix.saves)
    yield _counter("llamaserve_prefix_restores_total", "Copies put back into the KV cache.", prefix.restores)


def _prefix_gauges(prefix: PrefixGauges) -> Iterator[Metric]:
    yield _gauge("llamaserve_prefix_sharing", "1 when any slot can use what another computed.", int(prefix.shares))
    yield _gauge(
        "llamaserve_parked_sequences", "Sequences kept for their prefix that no request has.", prefix.parked_sequences
    )
    yield _gauge("llamaserve_parked_cells", "KV cells that only these hold.", prefix.parked_cells)
    yield _gauge("llamaserve_prefix_ram_entries", "Copies of prefixes in RAM.", prefix.ram_entries)
    yield _gauge("llamaserve_prefix_ram_bytes", "What they take.", prefix.ram_bytes)
    yield _gauge("llamaserve_prefix_disk_entries", "Copies of prefixes on disk.", prefix.disk_entries)
    yield _gauge("llamaserve_prefix_disk_bytes", "What they take.", prefix.disk_bytes)
    events = {
        "written": prefix.disk_written,
        "fetched": prefix.disk_fetched,
        "evicted": prefix.disk_evicted,
        "refused": prefix.disk_refused,
        "bad": prefix.disk_bad_files,
    }
    files = CounterMetricFamily("llamaserve_prefix_disk_files_total", "Files of the disk tier.", labels=["event"])
    yield _labelled(files, events)


def llama_server_families(stats: SchedulerStats) -> Iterator[Metric]:
    """What llama-server's ``/metrics`` has and this server knows; the two about the KV cache are of its older
    versions, and dashboards still ask for them."""
    yield _counter("llamacpp:prompt_tokens_total", "As llamaserve_prompt_tokens_total.", stats.prompt_tokens)
    yield _counter(
        "llamacpp:prompt_tokens_cached_total", "As llamaserve_cached_tokens_total.", _cached_tokens(stats.prefix)
    )
    yield _counter("llamacpp:tokens_predicted_total", "As llamaserve_generated_tokens_total.", stats.generated_tokens)
    yield _gauge("llamacpp:requests_processing", "Slots that are not idle.", stats.active_slots)
    yield _gauge("llamacpp:requests_deferred", "Requests that wait for a slot.", _waiting_requests(stats))
    yield _gauge("llamacpp:kv_cache_usage_ratio", "KV cells held, 1 is all of them.", _cell_ratio(stats))
    yield _gauge("llamacpp:kv_cache_tokens", "As llamaserve_kv_cells_used.", stats.used_cells)


def vllm_families(stats: SchedulerStats, model_name: str) -> Iterator[Metric]:
    """What vLLM's ``/metrics`` has and this server knows, with vLLM's labels."""
    labels = {"model_name": model_name, "engine": VLLM_ENGINE}

    def gauge(name: str, meaning: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, meaning, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def counter(name: str, meaning: str, value: float) -> Metric:
        return _counted(name, meaning, labels, value)

    yield gauge("vllm:num_requests_running", "Slots that are not idle.", stats.active_slots)
    yield gauge("vllm:num_requests_waiting", "Requests that wait for a slot.", _waiting_requests(stats))
    yield gauge("vllm:kv_cache_usage_perc", "KV cells held, 1 is all of them.", _cell_ratio(stats))
    yield from _vllm_prompt_tokens(stats, labels)
    yield counter("vllm:generation_tokens_total", "As llamaserve_generated_tokens_total.", stats.generated_tokens)
    yield counter("vllm:num_preemptions_total", "As llamaserve_preemptions_total.", stats.preemptions)
    # The one family that vLLM does not count by engine.
    rejects = CounterMetricFamily(
        "vllm:admission_rejections_total",
        "As llamaserve_rejections_total, of the queue.",
        labels=["model_name", "reason"],
    )
    rejects.add_metric([model_name, "max_num_queued_reqs"], stats.queue_rejects)
    rejects.add_metric([model_name, "max_num_queued_tokens"], stats.token_rejects)
    yield rejects
    yield from vllm_histograms(stats.latencies, labels)


def _vllm_prompt_tokens(stats: SchedulerStats, labels: Mapping[str, str]) -> Iterator[Metric]:
    """Prompt tokens, which vLLM counts whether they were computed or not, and where they came from. Its local cache is
    what stands in KV cells; whatever is copied back into them comes from outside."""
    prefix = stats.prefix
    copied = prefix.tokens_from_ram + prefix.tokens_from_disk
    cached = _cached_tokens(prefix)
    yield _counted("vllm:prompt_tokens_total", "Prompt tokens, computed or not.", labels, stats.prompt_tokens + cached)
    yield _counted("vllm:prompt_tokens_cached_total", "As llamaserve_cached_tokens_total.", labels, cached)
    sources = {
        "local_compute": stats.prompt_tokens,
        "local_cache_hit": prefix.tokens_from_cells,
        "external_kv_transfer": copied,
    }
    by_source = CounterMetricFamily(
        "vllm:prompt_tokens_by_source_total", "Prompt tokens by source.", labels=[*labels, "source"]
    )
    for source, n_tokens in sources.items():
        by_source.add_metric([*labels.values(), source], n_tokens)
    yield by_source
    yield _counted(
        "vllm:prefix_cache_queries_total", "As llamaserve_prefix_query_tokens_total.", labels, prefix.tokens_queried
    )
    yield _counted(
        "vllm:prefix_cache_hits_total", "Prompt tokens that stood in KV cells.", labels, prefix.tokens_from_cells
    )


def _cached_tokens(prefix: PrefixCounters) -> int:
    return prefix.tokens_from_cells + prefix.tokens_from_ram + prefix.tokens_from_disk


def _waiting_requests(stats: SchedulerStats) -> int:
    """As both other servers count: whoever has no slot, whether it had one before or not."""
    return stats.queue_depth + stats.preempted_requests


def _cell_ratio(stats: SchedulerStats) -> float:
    return stats.used_cells / stats.n_ctx


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=value)


def _counter(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(name, meaning, value=value)


def _counted(name: str, meaning: str, labels: Mapping[str, str], value: float) -> Metric:
    """A counter with labels that has one sample."""
    family = CounterMetricFamily(name, meaning, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _labelled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    """The family with one sample for each value of its only label."""
    for label, value in values.items():
        family.add_metric([label], value)
    return family
