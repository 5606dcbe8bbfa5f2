"""From the start to the end of a server: loading, failing, the port, signals."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
import threading
import time

import httpx
import pytest

from llamaserve.config import HttpConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.errors import ConfigError, EngineDown, ModelLoad
from llamaserve.server.loading import ServiceLoader
from llamaserve.server.open_files import ENOUGH, allow_many_connections
from llamaserve.server.run import bind_socket, run_server, server_url
from llamaserve.service import Service
from tests.api.process import first_line, server_process
from tests.api.served import MODEL, PATIENCE_S, app_loading, fail_loudly, listening, serving, wait_until


def fake_service(engine: FakeEngine | None = None) -> Service:
    return Service(engine or FakeEngine(), None, SchedulerConfig(), MODEL)


def test_health_is_503_while_the_model_loads_and_200_afterwards() -> None:
    may_load = threading.Event()

    def load() -> Service:
        assert may_load.wait(PATIENCE_S)
        return fake_service()

    with listening(app_loading(load)) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        for path in ("/health", "/v1/health", "/v1/models"):
            response = client.get(path)
            assert response.status_code == 503
            assert response.json()["error"]["type"] == "unavailable_error"
            assert "loading" in response.json()["error"]["message"]
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 503
        may_load.set()
        wait_until(lambda: client.get("/health").status_code == 200)
        assert client.get("/v1/models").status_code == 200


def test_a_model_that_cannot_be_loaded_is_reported_once_and_health_says_so_but_not_why() -> None:
    """Anybody may ask for the health, and the reason may name files."""
    failures: list[Exception] = []

    def load() -> Service:
        raise ModelLoad("/home/me/x.gguf is no GGUF file")

    with (
        listening(app_loading(load, failures=failures)) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_S) as client,
    ):
        wait_until(lambda: bool(failures))
        response = client.get("/health")
        assert response.status_code == 503
        assert "could not be loaded" in response.json()["error"]["message"]
        assert "x.gguf" not in response.text
    assert [str(failure) for failure in failures] == ["/home/me/x.gguf is no GGUF file"]


def test_the_service_is_closed_when_the_application_ends() -> None:
    engine = FakeEngine()
    with serving(engine):
        assert not engine.is_shut_down
    assert engine.is_shut_down


def test_health_is_503_when_the_engine_is_down() -> None:
    with serving(FakeEngine()) as served:
        served.service.close()
        assert served.client.get("/health").status_code == 503
        assert served.complete("a").status_code == 503


def test_health_is_503_after_llama_cpp_threw() -> None:
    """E11: the context is lost; the request that ran is answered, and health tells everybody else."""
    engine = FakeEngine()
    with serving(engine) as served:
        engine.lose_context("its context is lost: bad_alloc")
        first = served.complete("a")
        assert (first.status_code, first.json()["error"]["code"]) == (500, "decode_failed")
        health = served.client.get("/health")
        assert health.status_code == 503
        assert "bad_alloc" in health.json()["error"]["message"]
        second = served.complete("a")
        assert (second.status_code, second.json()["error"]["code"]) == (503, "unavailable")


def test_open_streams_end_with_an_error_event_when_the_service_closes() -> None:
    with serving(FakeEngine(n_ctx=64_000, step_s=0.002)) as served:
        body = {"prompt": "a", "stream": True}
        with served.client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            served.service.close()
            *_, last = (line for line in lines if line)
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "unavailable"


def test_a_loader_that_is_closed_while_loading_stops_the_load_and_closes_what_it_brought() -> None:
    engine = FakeEngine()
    is_cancelled = threading.Event()
    calls: list[object] = []

    def load() -> Service:
        assert is_cancelled.wait(PATIENCE_S)
        return fake_service(engine)

    loader = ServiceLoader(load, on_ready=calls.append, on_failed=calls.append, cancel_load=is_cancelled.set)
    loader.start()
    loader.close()
    loader.close()
    assert engine.is_shut_down
    assert calls == []
    with pytest.raises(EngineDown, match="shutting down"):
        loader.service()


def test_a_loader_that_never_started_can_be_closed() -> None:
    loader = ServiceLoader(fake_service, on_ready=fail_on_ready, on_failed=fail_loudly)
    loader.close()
    with pytest.raises(EngineDown):
        loader.service()


def fail_on_ready(service: Service) -> None:
    raise AssertionError("nothing was started")


def test_a_port_in_use_is_an_error_naming_host_and_port_before_anything_loads() -> None:
    def load() -> Service:
        raise AssertionError("the model must not be loaded")

    with bind_socket(HttpConfig(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            run_server(load, HttpConfig(port=port), on_ready=lambda service, url: None)


@pytest.mark.parametrize("host", ["192.0.2.1", "x" * 300])
def test_a_host_that_is_not_ours_is_an_error_naming_it(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen on " + host[:5]):
        bind_socket(HttpConfig(host=host, port=0))


def test_an_ipv6_address_is_written_in_brackets() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        assert server_url("::1", listener).startswith("http://[::1]:")


SERVER = """
import sys, threading, time
from llamaserve.config import HttpConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.errors import ModelLoad
from llamaserve.server.open_files import ENOUGH, allow_many_connections
from llamaserve.server.run import run_server
from llamaserve.service import Service

cancelled = threading.Event()

def load():
    if sys.argv[1] == "slow":
        print("loading", flush=True)
        cancelled.wait(30)
        raise ModelLoad("cancelled")
    if sys.argv[1] == "broken":
        raise ModelLoad("not a GGUF file")
    return Service(FakeEngine(n_ctx=64_000, step_s=0.002), None, SchedulerConfig(), "fake")

try:
    run_server(
        load,
        HttpConfig(port=0),
        on_ready=lambda _, url: print(url, flush=True),
        cancel_load=cancelled.set,
        ends_process=True,
    )
except ModelLoad as error:
    sys.exit(f"error: {error}")
"""


@pytest.mark.parametrize("gap_s", [0.0, 0.05, 0.1, 0.2, 0.3, 0.5])
@pytest.mark.parametrize("n_signals", [2, 3])
def test_more_signals_than_needed_are_no_failure(gap_s: float, n_signals: int) -> None:
    """Whenever they come: no traceback, and the same exit code."""
    with server_process(SERVER, "ready") as process:
        first_line(process)
        for _ in range(n_signals):
            process.send_signal(signal.SIGTERM)
            time.sleep(gap_s)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")


def test_a_body_that_is_still_on_its_way_does_not_hold_up_the_end() -> None:
    """Neither for the time that what was taken gets, nor with a traceback."""
    with server_process(SERVER, "ready") as process:
        url = httpx.URL(first_line(process))
        with contextlib.ExitStack() as connections:
            for sent in (
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n",
            ):
                address = (url.host, url.port or 80)
                connection = connections.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
                connection.sendall(sent)
            assert httpx.get(url.join("/health")).status_code == 200  # it has read what was sent before
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert errors == ""


SERVER_WITH_SMALL_BUFFERS = """
import socket, sys, time
from llamaserve.config import HttpConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.server import run
from llamaserve.service import Service

run.GRACE_S = 0.2
bind_socket = run.bind_socket

def bind_with_small_buffer(config):
    listener = bind_socket(config)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # accepted sockets inherit it
    return listener

def say_when_blocked(service, url):
    print(url, flush=True)
    while service.stats().generated_tokens < 5000:  # a megabyte of events
        time.sleep(0.01)
    print("blocked", flush=True)

run.bind_socket = bind_with_small_buffer
run.run_server(
    lambda: Service(FakeEngine(n_ctx=64_000), None, SchedulerConfig(), "fake"),
    HttpConfig(port=0, drain_timeout_s=0.2),
    on_ready=say_when_blocked,
)
"""


def test_a_client_that_does_not_read_is_cut_off_at_the_end_without_a_traceback() -> None:
    with server_process(SERVER_WITH_SMALL_BUFFERS) as process, socket.socket() as client:
        url = httpx.URL(first_line(process))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((url.host, url.port))
        body = b'{"prompt": "a", "stream": true}'
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert first_line(process) == "blocked"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert errors == ""


SERVER_WITHOUT_PATIENCE = """
from llamaserve.config import HttpConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.server import run
from llamaserve.service import Service

run.KEEP_ALIVE_S = 0.2
run.run_server(
    lambda: Service(FakeEngine(n_ctx=64_000, step_s=0.002), None, SchedulerConfig(), "fake"),
    HttpConfig(port=0),
    on_ready=lambda _, url: print(url, flush=True),
)
"""


def test_a_connection_that_never_asks_anything_is_closed_and_one_that_is_answered_is_not() -> None:
    """Else whoever opens enough of them leaves no file for anybody."""
    with server_process(SERVER_WITHOUT_PATIENCE) as process, contextlib.ExitStack() as cleanup:
        url = httpx.URL(first_line(process))
        silent = []
        for sent in (b"", b"GET /health HTTP/1.1\r\nHo"):
            address = (url.host, url.port or 80)
            connection = cleanup.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
            connection.sendall(sent)
            silent.append(connection)
        body = {"prompt": "a", "stream": True}
        streamed = cleanup.enter_context(httpx.stream("POST", url.join("/v1/completions"), json=body))
        lines = streamed.iter_lines()
        assert [connection.recv(1) for connection in silent] == [b"", b""]
        assert all(next(line for line in lines if line).startswith("data: {") for _ in range(20))


def test_a_process_may_have_as_many_connections_as_the_system_lets_it() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        allow_many_connections()
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert allowed == (ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH), hard)


def test_a_signal_while_loading_ends_the_process() -> None:
    with server_process(SERVER, "slow") as process:
        assert first_line(process) == "loading"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0


def test_a_model_that_cannot_be_loaded_ends_the_process_with_1() -> None:
    with server_process(SERVER, "broken") as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "error: not a GGUF file" in errors
    assert "Traceback" not in errors
