"""Bodies that take long to prepare: how many at a time, and what becomes of those whose client has left."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from llamaserve.api.body_threads import PREPARING_THREADS, WAITING_BODIES
from llamaserve.chat.template import PLAIN_CHAT, ChatOptions, RenderedChat
from llamaserve.config import SchedulerConfig
from llamaserve.engine.fake import FakeEngine, scripted
from llamaserve.errors import BadTemplate
from tests.api.served import PATIENCE_S, SMALL_BODIES, LineTemplate, Served, serving, wait_until

N_IMPATIENT = 45
SLOW = "slow"


class GatedTemplate(LineTemplate):
    """Takes its time for conversations that are SLOW: until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = threading.Event()
        self.n_started = 0
        self.n_running = 0
        self.most_running = 0
        self._lock = threading.Lock()

    def render(self, messages: Sequence[Mapping[str, object]], options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
        """As ``LineTemplate``. Raises BadTemplate for the slow ones, at the end."""
        if messages[0]["content"] != SLOW:
            return super().render(messages, options)
        with self._lock:
            self.n_started += 1
            self.n_running += 1
            self.most_running = max(self.most_running, self.n_running)
        assert self.is_open.wait(PATIENCE_S)
        with self._lock:
            self.n_running -= 1
        raise BadTemplate("that took long")


@pytest.fixture
def template() -> Generator[GatedTemplate, None, None]:
    template = GatedTemplate()
    yield template
    template.is_open.set()


@pytest.fixture
def served(template: GatedTemplate) -> Generator[Served, None, None]:
    with serving(FakeEngine(continuation=scripted({"user: hi\nassistant: ": "Hello."})), template=template) as running:
        yield running
        template.is_open.set()


def send_slow(served: Served) -> socket.socket:
    """Send a whole slow request; the connection, whose answer nobody reads."""
    url = served.client.base_url
    body = json.dumps({"messages": [{"role": "user", "content": SLOW}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    connection = socket.create_connection((url.host, url.port or 80), timeout=PATIENCE_S)
    connection.sendall(head + body)
    return connection


def test_at_most_two_bodies_are_prepared_at_a_time_and_all_get_their_turn(
    served: Served, template: GatedTemplate
) -> None:
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(served.chat, SLOW) for _ in range(6)]
        wait_until(lambda: template.n_running == PREPARING_THREADS)
        template.is_open.set()
        assert {answer.result().status_code for answer in answers} == {400}
    assert (template.n_started, template.most_running) == (6, PREPARING_THREADS)


def n_left(caplog: pytest.LogCaptureFixture) -> int:
    """Requests the server has ended because their client left."""
    return sum(" /v1/chat/completions 499 " in message for message in caplog.messages)


def test_bodies_whose_clients_have_left_are_not_prepared(
    served: Served, template: GatedTemplate, caplog: pytest.LogCaptureFixture
) -> None:
    """S51: the next request waits for those that had begun, not for all that were sent."""
    caplog.set_level("INFO", logger="llamaserve.http")
    with ExitStack() as connections:
        for _ in range(N_IMPATIENT):
            connections.enter_context(send_slow(served))
        wait_until(lambda: template.n_running == PREPARING_THREADS)
    wait_until(lambda: n_left(caplog) == N_IMPATIENT)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(served.chat, "hi")
        template.is_open.set()
        assert answer.result().json()["choices"][0]["message"]["content"] == "Hello."
    assert template.n_started == PREPARING_THREADS


def test_what_is_prepared_for_nobody_still_counts_until_it_ends(
    served: Served, template: GatedTemplate, caplog: pytest.LogCaptureFixture
) -> None:
    """Else clients that come and go would have any number prepared at the same time."""
    caplog.set_level("INFO", logger="llamaserve.http")
    n_sent = 0
    for _ in range(3):
        with ExitStack() as connections:
            for _ in range(PREPARING_THREADS + 1):
                connections.enter_context(send_slow(served))
                n_sent += 1
            wait_until(lambda: template.n_running == PREPARING_THREADS)
        wait_until(lambda: n_left(caplog) == n_sent)  # noqa: B023 - called before the next round
    assert served.client.get("/health").status_code == 200
    template.is_open.set()
    assert served.chat("hi").status_code == 200
    assert template.most_running == PREPARING_THREADS


def test_other_routes_are_answered_meanwhile(served: Served, template: GatedTemplate) -> None:
    with ExitStack() as connections:
        for _ in range(PREPARING_THREADS + 1):
            connections.enter_context(send_slow(served))
        wait_until(lambda: template.n_running == PREPARING_THREADS)
        assert served.client.get("/health").status_code == 200
        assert served.client.get("/v1/models").status_code == 200


def test_a_full_queue_is_answered_before_anything_is_rendered(template: GatedTemplate) -> None:
    """S48."""
    engine = FakeEngine(n_slots=1, n_ctx=64_000, step_s=0.01)
    scheduler = SchedulerConfig(max_queue=1)
    with serving(engine, template=template, scheduler=scheduler) as served, ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(served.complete, "a") for _ in range(2)]
        wait_until(lambda: served.service.stats().queue_depth == 1)
        response = served.chat(SLOW)
        assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_full")
        assert int(response.headers["retry-after"]) >= 1
        assert (template.n_started, served.service.stats().queue_rejects) == (0, 1)
        served.service.close()
        assert {answer.result().status_code for answer in taken} == {503}


def test_bodies_that_wait_are_bounded_in_bytes(served: Served, template: GatedTemplate) -> None:
    filler = "x" * (SMALL_BODIES.max_body_bytes - 200)
    with ThreadPoolExecutor(2 * WAITING_BODIES) as pool:
        answers = [pool.submit(served.chat, SLOW, metadata={"filler": filler}) for _ in range(2 * WAITING_BODIES)]
        wait_until(lambda: sum(answer.done() for answer in answers) == WAITING_BODIES)
        refused = [answer.result() for answer in answers if answer.done()]
        assert {response.status_code for response in refused} == {429}
        assert {response.headers["x-should-retry"] for response in refused} == {"true"}
        template.is_open.set()
        assert (
            sorted(answer.result().status_code for answer in answers) == [400] * WAITING_BODIES + [429] * WAITING_BODIES
        )
    assert served.chat("hi", metadata={"filler": filler}).status_code == 200
