"""Many clients at once, and clients that do not behave: the others are served, and nothing is left behind."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import httpx

from llamaserve.config import HttpConfig, PriorityHeader, SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.request import Finished, GenerationRequest
from tests.api.served import PATIENCE_S, Served, serving, wait_until
from tests.api.test_streaming import raw_request

N_IDLE = 1000
N_QUEUED = 500


@contextmanager
def connections(url: httpx.URL, n: int) -> Generator[list[socket.socket], None, None]:
    """Connections that say nothing."""
    with ExitStack() as opened:
        address = (url.host, url.port or 80)
        yield [opened.enter_context(socket.create_connection(address, timeout=PATIENCE_S)) for _ in range(n)]


def assert_nothing_is_left(served: Served) -> None:
    """Every slot idle, nobody waiting, every held cell parked, and the next request is served."""
    wait_until(lambda: served.service.stats().idle_slots == served.service.stats().n_slots)
    stats = served.service.stats()
    assert (stats.queue_depth, stats.preempted_requests) == (0, 0)
    assert stats.used_cells == stats.prefix_gauges.parked_cells
    assert served.complete("a", max_tokens=2).status_code == 200


def test_a_thousand_idle_connections_do_not_keep_others_from_being_served() -> None:
    with serving(FakeEngine()) as served, connections(served.client.base_url, N_IDLE) as idle:
        for _ in range(20):
            assert served.complete("a", max_tokens=2).status_code == 200
        last = idle[-1]
        last.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert last.recv(64).startswith(b"HTTP/1.1 200 "), "and each of them can still ask something"
        assert_nothing_is_left(served)


def test_five_hundred_queued_requests_can_be_cancelled_at_once() -> None:
    """S51, S53: nothing is computed for any of them."""
    engine = FakeEngine(n_slots=1, n_ctx=64_000, step_s=0.002)
    with serving(engine, scheduler=SchedulerConfig(max_queue=0)) as served:
        running = raw_request(served, {"prompt": "a", "max_tokens": 60_000})
        wait_until(lambda: served.service.stats().active_slots == 1)
        with ExitStack() as clients:
            for number in range(N_QUEUED):
                body = {"prompt": f"queued {number}", "stream": number % 2 == 0}
                clients.enter_context(raw_request(served, body))
            wait_until(lambda: served.service.stats().queue_depth == N_QUEUED)
        wait_until(lambda: served.service.stats().queue_depth == 0)
        assert served.service.stats().active_slots == 1
        running.close()
        wait_until(lambda: served.service.stats().requests_cancelled == N_QUEUED + 1)
        assert_nothing_is_left(served)
        n_prompts = sum(len(plan.pieces) for plan in engine.plans)
    assert n_prompts == 2, "the one that ran, and the last"


def test_a_client_that_reads_a_byte_at_a_time_harms_nobody_and_gets_everything() -> None:
    n_tokens = 6000
    with serving(FakeEngine(n_ctx=64_000), send_buffer=4096) as served, socket.socket() as slow:
        url = served.client.base_url
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        slow.settimeout(PATIENCE_S)
        slow.connect((url.host, url.port))
        body = json.dumps({"prompt": "a", "max_tokens": n_tokens, "stream": True}).encode()
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        received = b""
        for _ in range(20):
            received += slow.recv(1)
            assert served.complete("b", max_tokens=5).status_code == 200
            time.sleep(0.01)
        # Its text is computed at the speed of the engine, and its slot is free, however slowly it reads.
        wait_until(lambda: served.service.stats().requests_done == 21)
        assert served.service.stats().active_slots == 0
        while not received.endswith(b"\r\n0\r\n\r\n"):
            received += slow.recv(2**16)
    head, _, chunks = received.partition(b"\r\n\r\n")
    assert b" 200 " in head
    assert b"data: [DONE]" in chunks
    assert len(chunks) < 60 * n_tokens, "with a chunk for every token it would be four times that"


def test_a_flood_of_short_streams_leaves_nothing_behind() -> None:
    """More than the queue takes: some are refused, none hangs, and the counters agree."""
    n_threads, n_each = 8, 25
    statuses: list[int] = []
    engine = FakeEngine(n_slots=2, step_s=0.0005)
    with serving(engine, scheduler=SchedulerConfig(max_queue=3)) as served:

        def flood() -> None:
            with httpx.Client(base_url=served.client.base_url, timeout=PATIENCE_S) as client:
                for number in range(n_each):
                    body = {"prompt": "a", "max_tokens": 5, "stream": number % 2 == 0}
                    statuses.append(client.post("/v1/completions", json=body).status_code)

        threads = [threading.Thread(target=flood) for _ in range(n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        stats = served.service.stats()
        assert len(statuses) == n_threads * n_each
        assert set(statuses) <= {200, 429}
        assert (stats.requests_done, stats.queue_rejects) == (statuses.count(200), statuses.count(429))
        assert_nothing_is_left(served)


def order_of_prompts(engine: FakeEngine) -> list[str]:
    """Prompts in the order in which they were begun."""
    pieces = [piece for plan in engine.plans for piece in plan.pieces]
    return [bytes(token for token in piece.tokens if token < 256).decode() for piece in pieces]


@contextmanager
def queue_behind_one(served: Served, bodies: list[dict[str, object]]) -> Generator[None, None, None]:
    """Requests that wait, in this order, for a slot that is free at the end of the block; then they are served."""
    with ExitStack() as clients:
        running = raw_request(served, {"prompt": "running", "max_tokens": 60_000})
        wait_until(lambda: served.service.stats().active_slots == 1)
        for number, body in enumerate(bodies):
            clients.enter_context(raw_request(served, {"max_tokens": 2, "cache_prompt": False, **body}))
            wait_until(lambda number=number: served.service.stats().queue_depth == number + 1)
        yield
        running.close()
        wait_until(lambda: served.service.stats().requests_done >= len(bodies))


def test_a_flood_of_urgent_requests_delays_a_normal_one_by_two() -> None:
    """K103: the third that gets a slot, whoever came before it and after it."""
    engine = FakeEngine(n_slots=1, n_ctx=64_000, step_s=0.001)
    http = HttpConfig(priority_header=PriorityHeader.ON)
    urgent: list[dict[str, object]] = [{"prompt": f"urgent {n}", "priority": "high"} for n in range(12)]
    bodies = [*urgent[:6], {"prompt": "normal"}, *urgent[6:]]
    with serving(engine, http=http) as served:
        with queue_behind_one(served, bodies):
            pass
        assert_nothing_is_left(served)
    assert order_of_prompts(engine)[1:].index("normal") == 2


def test_a_second_users_single_request_does_not_wait_for_the_first_users_crowd() -> None:
    """No longer than a quarter of it; here it comes through the service, with an API key it would be the same."""
    engine = FakeEngine(n_slots=1, n_ctx=64_000, step_s=0.001)
    bodies: list[dict[str, object]] = [{"prompt": f"first {n}"} for n in range(20)]
    ends: list[object] = []
    with serving(engine) as served:

        def second() -> None:
            request = GenerationRequest("second", tuple(b"second"), 2, cache_prompt=False, owner="second")
            ends.extend(served.service.stream_blocking(request, timeout_s=PATIENCE_S))

        thread = threading.Thread(target=second)
        with queue_behind_one(served, bodies):
            thread.start()
            wait_until(lambda: served.service.stats().queue_depth == 21)
        thread.join(PATIENCE_S)
        assert_nothing_is_left(served)
    assert isinstance(ends[-1], Finished)
    assert order_of_prompts(engine)[1:].index("second") <= 20 // 4
