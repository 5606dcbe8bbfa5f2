"""``GET /metrics``: every number of the scheduler, under every name it has, in both formats."""

from __future__ import annotations

import dataclasses
import math
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from llamaserve.cache.prefix_memory import PrefixCounters, PrefixGauges
from llamaserve.config import SchedulerConfig
from llamaserve.engine.fake import FakeEngine, scripted
from llamaserve.scheduler.stats import Discard, SchedulerStats
from llamaserve.server.metric_families import ApiCounts, llama_server_families, own_families, vllm_families
from llamaserve.server.metrics import wants_open_metrics
from llamaserve.service import Service
from llamaserve.telemetry.histogram import Histogram, HistogramSnapshot
from llamaserve.telemetry.latencies import VLLM_FIRST_TOKEN_BOUNDS, Latencies, LatencySnapshot
from tests.api.served import MODEL, PATIENCE_S, Served, app_loading, listening, serving, wait_until

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# What Prometheus 3 sends.
PROMETHEUS_ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
API = ApiCounts(9001, 9002, HistogramSnapshot((0.01,), (9003, 9004), 9005.0))
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples_of(families: Iterable[Metric]) -> Samples:
    """All samples by name and labels; fails when one comes twice."""
    found: Samples = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} comes twice"
            found[key] = sample.value
    return found


def without_lag(samples: Samples) -> Samples:
    """Without what the event loop itself measures, which changes all the time."""
    return {key: value for key, value in samples.items() if "event_loop_lag" not in key[0]}


def scrape(served: Served) -> Samples:
    """A scrape in the text format."""
    response = served.client.get("/metrics")
    assert response.status_code == 200
    return samples_of(parse_text(response.text))


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def cached_tokens(own: Samples) -> float:
    """Over all sources."""
    return sum(number for (name, _), number in own.items() if name == "llamaserve_cached_tokens_total")


def values_without_labels(samples: Samples, prefix: str) -> dict[str, float]:
    """By name without the prefix, of families with one sample."""
    found = [(name.removeprefix(prefix), number) for (name, _), number in samples.items() if name.startswith(prefix)]
    assert len(found) == len(dict(found))
    return dict(found)


def is_of_a_histogram(name: str) -> bool:
    return name.endswith(("_seconds_bucket", "_seconds_sum", "_seconds_count"))


def some_stats() -> SchedulerStats:
    """A snapshot whose numbers are all different."""
    fields = dataclasses.fields(SchedulerStats)
    numbers: dict[str, object] = {field.name: 1000 + 7 * index for index, field in enumerate(fields)}
    numbers["active_slots"] = 5000
    numbers["lookahead_discards"] = {reason: 3000 + index for index, reason in enumerate(Discard)}
    counters = [field.name for field in dataclasses.fields(PrefixCounters)]
    numbers["prefix"] = PrefixCounters(**{name: 6000 + 7 * index for index, name in enumerate(counters)})
    gauges = [field.name for field in dataclasses.fields(PrefixGauges) if field.name != "shares"]
    numbers["prefix_gauges"] = PrefixGauges(**{name: 7000 + 7 * index for index, name in enumerate(gauges)})
    latencies = Latencies()
    for observe, seconds in {
        latencies.observe_queue_wait: 0.4,
        latencies.observe_first_token: 0.9,
        latencies.observe_gap: 0.03,
        latencies.observe_end: 3.0,
    }.items():
        observe(seconds)
    latencies.observe_step(0.0001, 0.02, 0.003)
    numbers["latencies"] = latencies.snapshot()
    return SchedulerStats(**numbers)  # type: ignore[arg-type]


def with_one_histogram_moved(latencies: LatencySnapshot) -> Iterator[LatencySnapshot]:
    """As many as there are histograms."""
    more = Histogram((1.0,)).snapshot()
    for field in dataclasses.fields(latencies):
        value = getattr(latencies, field.name)
        if isinstance(value, HistogramSnapshot):
            yield dataclasses.replace(latencies, **{field.name: more})
        else:
            for part in value:
                yield dataclasses.replace(latencies, **{field.name: {**value, part: more}})


@pytest.fixture
def own_server() -> Iterator[Served]:
    """A server of whose numbers nobody else moves any."""
    with serving(FakeEngine(continuation=scripted({"Hello": " world", "more": "!"}))) as served:
        yield served


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(SchedulerStats)])
def test_every_field_of_the_snapshot_moves_a_metric_of_ours(field: str) -> None:
    """A new field without a metric fails here."""
    stats = some_stats()
    before = samples_of(own_families(stats, API))
    number = getattr(stats, field)
    if isinstance(number, LatencySnapshot):
        for moved_latencies in with_one_histogram_moved(number):
            moved = dataclasses.replace(stats, **{field: moved_latencies})
            assert samples_of(own_families(moved, API)) != before
    elif dataclasses.is_dataclass(number):
        for part in dataclasses.fields(number):
            moved_part = dataclasses.replace(number, **{part.name: getattr(number, part.name) + 1})  # type: ignore[type-var]
            moved = dataclasses.replace(stats, **{field: moved_part})
            assert samples_of(own_families(moved, API)) != before, f"nothing shows {field}.{part.name}"
    elif isinstance(number, dict):
        for key in number:
            moved = dataclasses.replace(stats, **{field: number | {key: number[key] + 1}})
            assert samples_of(own_families(moved, API)) != before, f"nothing shows {field}[{key}]"
    else:
        assert samples_of(own_families(dataclasses.replace(stats, **{field: number + 1}), API)) != before


def test_what_the_api_refuses_and_gives_up_is_shown() -> None:
    samples = samples_of(own_families(some_stats(), API))
    assert value(samples, "llamaserve_rejections_total", reason="draining") == 9001
    assert value(samples, "llamaserve_deadlines_total") == 9002


def test_the_slots_by_state_are_all_slots() -> None:
    slots = {"active_slots": 5, "prefilling_slots": 2, "idle_slots": 3, "n_slots": 8}
    samples = samples_of(own_families(dataclasses.replace(some_stats(), **slots), API))  # type: ignore[arg-type]
    by_state = {
        state: value(samples, "llamaserve_slots", state=state) for state in ("idle", "prefilling", "generating")
    }
    assert by_state == {"idle": 3, "prefilling": 2, "generating": 3}
    assert value(samples, "llamaserve_slot_limit") == sum(by_state.values())


def test_llama_servers_names_have_our_numbers() -> None:
    stats = some_stats()
    own = samples_of(own_families(stats, API))
    waiting = value(own, "llamaserve_queue_depth") + value(own, "llamaserve_preempted_requests")
    used = value(own, "llamaserve_kv_cells_used")
    assert values_without_labels(samples_of(llama_server_families(stats)), "llamacpp:") == {
        "prompt_tokens_total": value(own, "llamaserve_prompt_tokens_total"),
        "prompt_tokens_cached_total": cached_tokens(own),
        "tokens_predicted_total": value(own, "llamaserve_generated_tokens_total"),
        "requests_processing": stats.active_slots,
        "requests_deferred": waiting,
        "kv_cache_usage_ratio": used / value(own, "llamaserve_kv_cell_limit"),
        "kv_cache_tokens": used,
    }


def test_vllms_names_have_our_numbers_and_vllms_labels() -> None:
    stats = some_stats()
    own = samples_of(own_families(stats, API))
    theirs = samples_of(vllm_families(stats, "m"))
    waiting = value(own, "llamaserve_queue_depth") + value(own, "llamaserve_preempted_requests")
    by_source = {
        dict(labels)["source"]: theirs.pop((name, labels))
        for name, labels in list(theirs)
        if name == "vllm:prompt_tokens_by_source_total"
    }
    assert by_source == {
        "local_compute": value(own, "llamaserve_prompt_tokens_total"),
        "local_cache_hit": value(own, "llamaserve_cached_tokens_total", source="cells"),
        "external_kv_transfer": value(own, "llamaserve_cached_tokens_total", source="ram")
        + value(own, "llamaserve_cached_tokens_total", source="disk"),
    }
    assert sum(by_source.values()) == value(theirs, "vllm:prompt_tokens_total", model_name="m", engine="0")
    theirs = {key: number for key, number in theirs.items() if not is_of_a_histogram(key[0])}
    assert {
        dict(labels)["reason"]: theirs.pop((name, labels))
        for name, labels in list(theirs)
        if name == "vllm:admission_rejections_total"
    } == {"max_num_queued_reqs": stats.queue_rejects, "max_num_queued_tokens": stats.token_rejects}
    assert values_without_labels(theirs, "vllm:") == {
        "num_requests_running": stats.active_slots,
        "num_requests_waiting": waiting,
        "kv_cache_usage_perc": value(own, "llamaserve_kv_cells_used") / value(own, "llamaserve_kv_cell_limit"),
        "prompt_tokens_total": value(own, "llamaserve_prompt_tokens_total") + cached_tokens(own),
        "prompt_tokens_cached_total": cached_tokens(own),
        "prefix_cache_queries_total": value(own, "llamaserve_prefix_query_tokens_total"),
        "prefix_cache_hits_total": value(own, "llamaserve_cached_tokens_total", source="cells"),
        "generation_tokens_total": value(own, "llamaserve_generated_tokens_total"),
        "num_preemptions_total": value(own, "llamaserve_preemptions_total"),
    }
    labels = {labels for name, labels in theirs}
    assert labels == {(("engine", "0"), ("model_name", "m"))}


def test_vllms_histograms_are_ours_with_vllms_bounds() -> None:
    stats = some_stats()
    own, theirs = samples_of(own_families(stats, API)), samples_of(vllm_families(stats, "m"))
    labels = {"model_name": "m", "engine": "0"}
    for their_name, own_name in {
        "vllm:time_to_first_token_seconds": "llamaserve_time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds": "llamaserve_inter_token_latency_seconds",
        "vllm:e2e_request_latency_seconds": "llamaserve_request_seconds",
        "vllm:request_queue_time_seconds": "llamaserve_queue_wait_seconds",
    }.items():
        for part in ("_sum", "_count"):
            assert value(theirs, their_name + part, **labels) == value(own, own_name + part)
        buckets = [dict(key[1])["le"] for key in theirs if key[0] == f"{their_name}_bucket"]
        assert all(
            value(theirs, f"{their_name}_bucket", le=le, **labels) == value(own, f"{own_name}_bucket", le=le)
            for le in buckets
        )
    bounds = [dict(key[1])["le"] for key in theirs if key[0] == "vllm:time_to_first_token_seconds_bucket"]
    assert [float(bound) for bound in bounds] == [*VLLM_FIRST_TOKEN_BOUNDS, math.inf]


def test_counters_move_with_requests(own_server: Served) -> None:
    before = scrape(own_server)
    assert own_server.complete("Hello").json()["usage"]["completion_tokens"] == 6
    wait_until(lambda: own_server.service.stats().idle_slots == 4)
    after = scrape(own_server)
    moved = {key: after[key] - number for key, number in before.items() if after[key] != number}
    moved = {key: number for key, number in moved.items() if not is_of_a_histogram(key[0])}
    step_counters = ("llamaserve_decode_steps_total", "llamaserve_lookahead_steps_total")
    n_decode_steps, n_lookahead_steps = (moved.pop((name, ())) for name in step_counters)
    assert 0 < n_lookahead_steps <= n_decode_steps
    vllm = (("engine", "0"), ("model_name", MODEL))
    assert moved == {
        ("llamaserve_requests_total", (("outcome", "finished"),)): 1,
        ("llamaserve_prompt_tokens_total", ()): 6,
        ("llamaserve_generated_tokens_total", ()): 6,
        ("llamaserve_decode_rows_total", ()): 6,  # the last draws the end-of-generation token
        ("llamaserve_steps_total", ()): n_decode_steps + 1,  # and one for the prompt
        ("llamaserve_prefix_cache_queries_total", ()): 1,
        ("llamaserve_prefix_cache_misses_total", ()): 1,
        ("llamaserve_prefix_query_tokens_total", ()): 6,
        ("llamaserve_parks_total", ()): 1,
        ("llamaserve_parked_sequences", ()): 1,
        ("llamaserve_parked_cells", ()): 12,
        ("llamaserve_kv_cells_used", ()): 12,
        ("llamacpp:kv_cache_tokens", ()): 12,
        ("llamacpp:kv_cache_usage_ratio", ()): 12 / 1024,
        ("llamacpp:prompt_tokens_total", ()): 6,
        ("llamacpp:tokens_predicted_total", ()): 6,
        ("vllm:kv_cache_usage_perc", vllm): 12 / 1024,
        ("vllm:prefix_cache_queries_total", vllm): 6,
        ("vllm:prompt_tokens_total", vllm): 6,
        ("vllm:prompt_tokens_by_source_total", (*vllm, ("source", "local_compute"))): 6,
        ("vllm:generation_tokens_total", vllm): 6,
    }


def test_a_second_request_for_the_same_prompt_moves_the_counters_of_the_cache(own_server: Served) -> None:
    own_server.complete("Hello")
    wait_until(lambda: own_server.service.stats().idle_slots == 4)
    before = scrape(own_server)
    own_server.complete("Hello")
    wait_until(lambda: own_server.service.stats().idle_slots == 4)
    after = scrape(own_server)
    moved = {key: after[key] - number for key, number in before.items() if after[key] != number}
    vllm = (("engine", "0"), ("model_name", MODEL))
    assert moved["llamaserve_prefix_cache_hits_total", ()] == 1
    assert ("llamaserve_prefix_cache_misses_total", ()) not in moved
    assert moved["llamaserve_cached_tokens_total", (("source", "cells"),)] == 5
    assert moved["llamaserve_prompt_tokens_total", ()] == moved["llamacpp:prompt_tokens_total", ()] == 1
    assert moved["llamacpp:prompt_tokens_cached_total", ()] == 5
    assert moved["vllm:prefix_cache_hits_total", vllm] == moved["vllm:prompt_tokens_cached_total", vllm] == 5
    assert moved["vllm:prefix_cache_queries_total", vllm] == moved["vllm:prompt_tokens_total", vllm] == 6


def test_running_waiting_refused_cancelled_and_failed_requests_are_seen() -> None:
    engine = FakeEngine(n_slots=1, n_ctx=64_000, step_s=0.01)
    with serving(engine, scheduler=SchedulerConfig(max_queue=1)) as served:
        waiter = threading.Thread(target=served.complete, args=("b",), kwargs={"max_tokens": 1})
        with served.client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as response:
            lines = response.iter_lines()  # kept: collecting it would close the stream
            next(lines)
            waiter.start()
            wait_until(lambda: value(scrape(served), "llamaserve_queue_depth") == 1)
            assert served.complete("c").status_code == 429
            samples = scrape(served)
            assert value(samples, "llamaserve_slots", state="generating") == 1
            assert value(samples, "llamacpp:requests_processing") == 1
            assert value(samples, "llamacpp:requests_deferred") == 1
            assert value(samples, "llamaserve_rejections_total", reason="queue_requests") == 1
            assert value(samples, "llamaserve_kv_cells_used") > 0
        waiter.join(PATIENCE_S)
        wait_until(lambda: value(scrape(served), "llamaserve_requests_total", outcome="finished") == 1)
        engine.fail_step(RuntimeError("scripted"))
        assert served.complete("a").status_code == 500
        samples = scrape(served)
        assert value(samples, "llamaserve_requests_total", outcome="cancelled") == 1
        assert value(samples, "llamaserve_requests_total", outcome="failed") == 1
        assert value(samples, "llamaserve_failed_steps_total") == 1


def test_two_scrapes_are_equal_when_nothing_happened(own_server: Served) -> None:
    own_server.complete("Hello")
    wait_until(lambda: own_server.service.stats().idle_slots == 4)
    assert own_server.client.get("/metrics").content == own_server.client.get("/metrics").content


def test_a_scrape_reads_one_snapshot(own_server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[SchedulerStats] = []
    take = own_server.service.stats

    def stats() -> SchedulerStats:
        taken.append(take())
        return taken[-1]

    monkeypatch.setattr(own_server.service, "stats", stats)
    scrape(own_server)
    assert len(taken) == 1


def test_the_build_and_the_model_are_named(own_server: Served) -> None:
    samples = scrape(own_server)
    (labels,) = (dict(labels) for name, labels in samples if name == "llamaserve_build_info")
    assert labels["model_name"] == MODEL
    assert re.match(r"\d+\.\d+", labels["version"])


def test_nothing_of_the_process_wide_registry_is_shown_or_added(own_server: Served) -> None:
    ours = {family.name for family in parse_text(own_server.client.get("/metrics").text)}
    assert ours.isdisjoint(family.name for family in REGISTRY.collect())


def test_the_text_format_is_the_default(own_server: Served) -> None:
    for headers in ({}, {"accept": "*/*"}, {"accept": "text/plain"}, {"accept": "application/json"}):
        response = own_server.client.get("/metrics", headers=headers)
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert samples_of(parse_text(response.text))
        assert response.headers["x-request-id"]


@pytest.mark.parametrize("accept", ["application/openmetrics-text", PROMETHEUS_ACCEPT])
def test_open_metrics_has_the_same_samples_for_whoever_asks(own_server: Served, accept: str) -> None:
    """Names with a colon too: the library's usual escaping would replace it in samples, and only there."""
    response = own_server.client.get("/metrics", headers={"accept": accept})
    assert response.headers["content-type"] == OPEN_METRICS
    assert response.text.endswith("# EOF\n")
    families = list(parse_open_metrics(response.text))
    assert without_lag(samples_of(families)) == without_lag(scrape(own_server))
    assert all(family.samples for family in families), "metadata without samples"
    assert {family.name: family.unit for family in families}["llamaserve_step_seconds"] == "seconds"


@pytest.mark.parametrize(
    ("accept", "is_wanted"),
    [
        ("", False),
        ("text/html, Application/OpenMetrics-Text ; Version=1.0.0", True),
        ("application/openmetrics-text; charset=utf-8", True),
        ("application/openmetrics-text; version=0.0.1", False),
        ("application/openmetrics-text; version=0.0.1, application/openmetrics-text; version=1.0.0", True),
        ("application/openmetrics-text; version=x", False),
        ("application/openmetrics-text; version=", False),
        ("application/openmetrics-texts", False),
        (";,;=,", False),
    ],
)
def test_open_metrics_is_wanted_by_name_and_version(accept: str, is_wanted: bool) -> None:
    assert wants_open_metrics(accept) == is_wanted


def test_an_accept_header_of_any_kind_is_answered(own_server: Served) -> None:
    for accept in ("application/openmetrics-text;version=abc", "text/plain;version=1.a", ";;,,=", "\xe9"):
        assert own_server.client.get("/metrics", headers=[(b"accept", accept.encode("latin-1"))]).status_code == 200


def test_there_are_no_metrics_before_the_model_is_there() -> None:
    may_load = threading.Event()

    def load() -> Service:
        assert may_load.wait(PATIENCE_S)
        return Service(FakeEngine(), None, SchedulerConfig(), MODEL)

    with listening(app_loading(load)) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        try:
            for headers in ({}, {"accept": "application/openmetrics-text"}):
                response = client.get("/metrics", headers=headers)
                assert response.status_code == 503
                assert response.json()["error"]["code"] == "unavailable"
                assert "loading" in response.json()["error"]["message"]
        finally:
            may_load.set()
        wait_until(lambda: client.get("/metrics").status_code == 200)


def test_an_engine_that_failed_still_shows_its_numbers() -> None:
    engine = FakeEngine()
    with serving(engine) as served:
        engine.lose_context("its context is lost")
        assert served.complete("a").status_code == 500
        wait_until(lambda: served.client.get("/health").status_code == 503)
        samples = scrape(served)
        assert value(samples, "llamaserve_requests_total", outcome="failed") == 1
        assert value(samples, "llamaserve_failed_steps_total") == 1


def test_only_get_and_head_are_taken(own_server: Served) -> None:
    assert own_server.client.head("/metrics").status_code == 200
    for method in ("POST", "PUT", "DELETE"):
        response = own_server.client.request(method, "/metrics")
        assert response.status_code == 405
        assert response.json()["error"]["code"] == "method_not_allowed"


def test_the_document_lists_every_metric_with_its_type_and_no_other(own_server: Served) -> None:
    rows = re.findall(
        r"^\| `((?:llamaserve_|llamacpp:|vllm:)\w+)` \| (\w+) \|", DOCUMENT.read_text("utf-8"), re.MULTILINE
    )
    response = own_server.client.get("/metrics", headers={"accept": "application/openmetrics-text"})
    suffixes = {"counter": "_total", "info": "_info"}
    shown = [(family.name + suffixes.get(family.type, ""), family.type) for family in parse_open_metrics(response.text)]
    assert sorted(rows) == sorted(shown)
