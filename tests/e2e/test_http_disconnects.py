"""Clients that leave the real server: their slots are free at once and little is computed for nobody."""

from __future__ import annotations

import httpx

from tests.e2e.http_server import N_SLOTS, RealServer, wait_until

LONG = {"prompt": "Tell me everything about the sea.", "max_tokens": 2000, "ignore_eos": True, "stream": True}


def test_eight_dropped_streams_free_their_slots(http_server: RealServer) -> None:
    """S51, S52, S54"""
    service = http_server.service
    before = service.stats()
    for _ in range(N_SLOTS):
        with http_server.client.stream("POST", "/v1/completions", json=LONG) as response:
            lines = (line for line in response.iter_lines() if line)
            for _ in range(4):
                assert next(lines).startswith("data: {")
    answer = http_server.client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1})
    assert answer.status_code == 200
    wait_until(lambda: service.stats().active_slots == 0)
    after = service.stats()
    assert after.requests_cancelled - before.requests_cancelled == N_SLOTS
    # 4 tokens were read of each; a few more were drawn before the server learnt of the closed connection.
    assert after.generated_tokens - before.generated_tokens <= N_SLOTS * 20 + 1
    assert after.used_cells == after.prefix_gauges.parked_cells


def test_eight_streams_dropped_together_leave_parked_prefixes_only(http_server: RealServer) -> None:
    """S51"""
    service = http_server.service
    before = service.stats()
    with httpx.Client(base_url=http_server.url, timeout=60) as client:
        streams = [
            client.send(client.build_request("POST", "/v1/completions", json=LONG), stream=True) for _ in range(8)
        ]
        wait_until(lambda: service.stats().active_slots == N_SLOTS)
        for stream in streams:
            stream.close()
    wait_until(lambda: service.stats().active_slots == 0)
    assert service.stats().requests_cancelled - before.requests_cancelled == 8
    after = service.stats()
    assert after.used_cells == after.prefix_gauges.parked_cells


def test_an_answer_nobody_waits_for_is_not_computed_to_its_end(http_server: RealServer) -> None:
    """S51"""
    service = http_server.service
    before = service.stats()
    try:
        http_server.client.post("/v1/completions", json={**LONG, "stream": False}, timeout=0.3)
    except httpx.ReadTimeout:
        pass
    else:
        raise AssertionError("2000 tokens in 0.3 s")
    wait_until(lambda: service.stats().active_slots == 0)
    assert service.stats().requests_cancelled - before.requests_cancelled == 1
