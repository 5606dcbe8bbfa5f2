"""``GET /metrics`` of the real server: what its numbers say about a stream."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.http_server import RealServer, wait_until

N_TOKENS = 64


def scrape(client: httpx.Client) -> dict[str, float]:
    """The values of families without labels; of others the sum over their labels."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(client.get("/metrics").raise_for_status().text):
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


def test_nearly_every_step_of_a_lone_greedy_stream_runs_ahead(http_server: RealServer) -> None:
    client = http_server.client
    wait_until(lambda: http_server.service.stats().active_slots == 0)
    before = scrape(client)
    body = {"prompt": "Once upon a time", "max_tokens": N_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        assert [line for line in response.iter_lines() if line][-1] == "data: [DONE]"
    wait_until(lambda: http_server.service.stats().active_slots == 0)
    after = scrape(client)
    moved = {name: after[name] - number for name, number in before.items()}
    assert moved["llamaserve_generated_tokens_total"] == N_TOKENS
    assert moved["llamaserve_decode_steps_total"] == N_TOKENS - 1  # the prompt's step draws the first token
    assert moved["llamaserve_lookahead_steps_total"] / moved["llamaserve_decode_steps_total"] >= 0.9
    assert moved["llamaserve_lookahead_discards_total"] == 0  # an end by length is foreseen
    assert moved["llamaserve_step_seconds_total"] > 0
    assert after["llamaserve_kv_cells_used"] == after["llamaserve_parked_cells"]  # given up when they are wanted
