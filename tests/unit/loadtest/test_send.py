"""One request against a server of our own: what it measures agrees with the server's record, and every way a server can
fail has its kind and never a hang."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llamaserve.loadtest import send as send_module
from llamaserve.loadtest.call import CHAT_PATH, Call
from llamaserve.loadtest.outcome import MAX_DETAIL, Outcome
from llamaserve.loadtest.send import new_session, send
from tests.unit.loadtest.own_server import Exchange, Hangup, OwnServer, Script, event_bytes, well

SLACK_S = 2.0
"""More than a busy machine delays anything; less than any stall timeout that must not be waited for."""


def call(n_tokens: int = 3, **options: Any) -> Call:
    return Call({"prompt": "hello", "max_tokens": n_tokens}, **{"expected_tokens": n_tokens, **options})


def send_one(url: str, one: Call, **options: Any) -> Outcome:
    async def run() -> Outcome:
        async with new_session() as session:
            return await send(session, url, one, **options)

    return asyncio.run(run())


def wait_until(is_true: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 10
    while not is_true():
        assert time.monotonic() < ends_at, "it did not happen in time"
        time.sleep(0.005)


def test_the_request_streams_and_asks_for_usage(server: OwnServer) -> None:
    body = {"messages": [], "max_tokens": 1, "stream_options": {"continuous_usage_stats": False}}
    assert send_one(server.url + "/", Call(body, path=CHAT_PATH)).failure is None
    got = server.exchanges[0]
    assert (got.method, got.path) == ("POST", CHAT_PATH)
    assert got.body == {
        "messages": [],
        "max_tokens": 1,
        "stream": True,
        "stream_options": {"continuous_usage_stats": False, "include_usage": True},
    }
    assert got.headers["content-type"] == "application/json"
    assert got.headers["accept-encoding"] == "identity"


def test_times_agree_with_the_servers_own_record(server: OwnServer) -> None:
    """The server writes at known times; the client can see no event earlier, and sees it soon after."""

    async def slowly(exchange: Exchange) -> None:
        await exchange.head()
        for delay in (0.15, 0.02, 0.08, 0.04):
            await asyncio.sleep(delay)
            await exchange.token("ab")
        await exchange.finish(4, n_prompt=11)

    server.script = slowly
    outcome = send_one(server.url, call(4))
    got = server.exchanges[0]
    assert outcome.failure is None
    assert (outcome.text, outcome.prompt_tokens, outcome.completion_tokens) == ("abababab", 11, 4)
    assert len(outcome.token_times) == len(got.writes) == 4
    assert outcome.submitted == outcome.sent <= got.arrived
    for seen, written in zip(outcome.token_times, got.writes, strict=True):
        assert written <= seen <= written + SLACK_S
    assert outcome.ttft is not None
    assert outcome.ttft >= got.writes[0] - got.arrived >= 0.15
    assert sum(outcome.itl) == pytest.approx(outcome.token_times[-1] - outcome.token_times[0])
    assert outcome.tpot is not None
    assert outcome.tpot == pytest.approx((got.writes[-1] - got.writes[0]) / 3, abs=0.05)
    assert outcome.itl == pytest.approx([0.02, 0.08, 0.04], abs=0.05)
    assert outcome.finished >= outcome.token_times[-1]


def test_a_request_that_was_due_earlier_counts_from_then(server: OwnServer) -> None:
    due = time.perf_counter() - 1.0
    outcome = send_one(server.url, call(), submitted=due)
    assert outcome.submitted == due
    assert outcome.queue >= 1.0
    assert outcome.ttft is not None
    assert outcome.ttft >= outcome.queue


def test_events_of_one_piece_share_its_time(server: OwnServer) -> None:
    async def in_a_lump(exchange: Exchange) -> None:
        await exchange.head()
        one = event_bytes(choices=[{"text": "x"}])
        await exchange.piece(one * 3)
        await exchange.finish(3)

    server.script = in_a_lump
    counts: list[int] = []
    outcome = send_one(server.url, call(), on_tokens=counts.append)
    assert outcome.failure is None
    assert outcome.itl == (0, 0)
    assert counts == [3]


def test_an_event_may_come_one_byte_at_a_time(server: OwnServer) -> None:
    async def bytewise(exchange: Exchange) -> None:
        await exchange.head()
        for byte in event_bytes(choices=[{"text": "é"}]):
            await exchange.piece(bytes([byte]))
            await asyncio.sleep(0)
        await exchange.finish(1)

    server.script = bytewise
    outcome = send_one(server.url, call(1))
    assert (outcome.failure, outcome.text, len(outcome.token_times)) == (None, "é", 1)


def test_a_call_that_is_to_be_dropped_ends_at_its_token_and_closes_the_connection(server: OwnServer) -> None:
    """The server goes on until writing fails, which it does soon: the connection is closed, not kept."""

    async def endless(exchange: Exchange) -> None:
        await exchange.head()
        while True:
            await exchange.token()
            await asyncio.sleep(0.002)

    server.script = endless
    outcome = send_one(server.url, call(1000, stop_after=4))
    assert outcome.failure is None
    assert outcome.is_abandoned
    assert len(outcome.token_times) >= 4
    wait_until(lambda: server.exchanges[0].is_over)
    assert server.exchanges[0].was_dropped


def test_an_answer_shorter_than_its_drop_is_no_failure(server: OwnServer) -> None:
    outcome = send_one(server.url, call(2, stop_after=5))
    assert (outcome.failure, outcome.is_abandoned, outcome.completion_tokens) == (None, False, 2)


def test_missing_usage_is_unknown_and_no_failure(server: OwnServer) -> None:
    async def no_usage(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.token()
        await exchange.event(choices=[{"text": "", "finish_reason": "length"}])
        await exchange.done()

    server.script = no_usage
    outcome = send_one(server.url, call(3))
    assert outcome.failure is None
    assert (outcome.prompt_tokens, outcome.completion_tokens, outcome.tpot) == (None, None, None)


def test_an_end_without_done_is_an_end_if_it_has_a_reason(server: OwnServer) -> None:
    async def no_done(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.token()
        await exchange.event(choices=[{"text": "", "finish_reason": "length"}], usage={"completion_tokens": 1})
        await exchange.end_body()

    server.script = no_done
    assert send_one(server.url, call(1)).failure is None


def test_a_connection_left_open_after_done_is_no_failure(server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_module, "END_OF_BODY_TIMEOUT", 0.05)

    async def lingering(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.token()
        await exchange.event(choices=[], usage={"completion_tokens": 1})
        await exchange.piece(b"data: [DONE]\n\n")
        await asyncio.sleep(30)

    server.script = lingering
    outcome = send_one(server.url, call(1))
    assert outcome.failure is None
    assert outcome.e2e is not None
    assert outcome.e2e < SLACK_S


# Failures ------------------------------------------------------------------------------------------------------------


async def refuse(exchange: Exchange) -> None:
    await exchange.head("500 Internal Server Error", "application/json")
    await exchange.piece(b'{"error": {"message": "out of\n cheese"}}' + b"x" * 5000)
    await exchange.end_body()


async def redirect(exchange: Exchange) -> None:
    await exchange.raw(b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n")


async def close_at_once(exchange: Exchange) -> None:
    raise Hangup


async def close_after_head(exchange: Exchange) -> None:
    await exchange.head()
    raise Hangup


async def close_mid_stream(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    raise Hangup


async def end_mid_stream(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    await exchange.end_body()


async def end_mid_event(exchange: Exchange) -> None:
    await exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
    await exchange.raw(event_bytes(choices=[{"text": "x"}]) + b'data: {"choi')
    raise Hangup


async def reset(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    sock = exchange.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise Hangup


async def bad_json(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    await exchange.piece(b"data: {oops}\n\n")
    await exchange.finish(3)


async def bad_json_and_more_to_come(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.piece(b"data: {oops}\n\n")
    await asyncio.sleep(30)


async def not_events(exchange: Exchange) -> None:
    await exchange.head(content_type="text/html")
    await exchange.piece(b"<html><body>Welcome</body></html>")
    await exchange.end_body()


async def unstreamed(exchange: Exchange) -> None:
    body = b'{"choices": [{"text": "x", "finish_reason": "length"}], "usage": {"completion_tokens": 3}}'
    await exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
    await exchange.raw(body)


async def not_http(exchange: Exchange) -> None:
    await exchange.raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    raise Hangup


async def error_event(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    await exchange.event(error={"message": "no room", "code": 503})
    await exchange.end_body()


async def named_error_event(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.piece(b"event: error\ndata: no room\n\n")
    await exchange.end_body()


async def too_short(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    await exchange.finish(1, reason="stop")


async def too_long(exchange: Exchange) -> None:
    await exchange.head()
    for _ in range(4):
        await exchange.token()
    await exchange.finish(4)


async def endless_text(exchange: Exchange) -> None:
    await exchange.head()
    while True:
        await exchange.token()


async def endless_nothing(exchange: Exchange) -> None:
    await exchange.head()
    while True:
        await exchange.event(choices=[])


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        (refuse, "status", '500: {"error": {"message": "out of cheese"}}xxx'),
        (redirect, "status", "307"),
        (close_at_once, "closed", "disconnected"),
        (close_after_head, "closed", ""),
        (close_mid_stream, "closed", ""),
        (end_mid_stream, "closed", "after 1 events with text, without [DONE]"),
        (end_mid_event, "closed", "after 1 events"),
        (reset, "closed", ""),
        (bad_json, "malformed", "{oops}"),
        (not_events, "malformed", "<html>"),
        (unstreamed, "malformed", "not a server-sent event"),
        (not_http, "malformed", ""),
        (error_event, "error_event", "no room"),
        (named_error_event, "error_event", "no room"),
        (too_short, "length", "asked for 3 tokens, got 1 (finish_reason stop)"),
        (too_long, "length", "asked for 3 tokens, got 4"),
        (endless_text, "length", "still sending"),
        (endless_nothing, "length", "still sending"),
    ],
)
def test_every_way_to_fail_has_its_kind(server: OwnServer, script: Script, kind: str, words: str) -> None:
    server.script = script
    outcome = send_one(server.url, call(3), stall_timeout=30)
    assert outcome.failure is not None
    assert outcome.failure.kind == kind
    assert words in outcome.failure.detail
    assert len(outcome.failure.detail) <= MAX_DETAIL
    assert "\n" not in outcome.failure.detail
    assert outcome.submitted <= outcome.sent <= outcome.finished


def test_tokens_before_a_failure_are_kept(server: OwnServer) -> None:
    server.script = close_mid_stream
    outcome = send_one(server.url, call(3))
    assert (len(outcome.token_times), outcome.text) == (1, " x")


def test_any_length_is_good_where_none_is_expected(server: OwnServer) -> None:
    server.script = too_short
    assert send_one(server.url, call(3, expected_tokens=None)).failure is None


def test_every_request_has_a_connection_of_its_own(server: OwnServer) -> None:
    """Some servers close a connection that they promised to keep; a request must not meet that moment."""

    async def run() -> None:
        async with new_session() as session:
            for script in (well, end_mid_stream, bad_json_and_more_to_come, well):
                server.script = script
                await send(session, server.url, call())

    asyncio.run(run())
    assert [exchange.connection for exchange in server.exchanges] == [0, 1, 2, 3]
    assert {exchange.headers["connection"] for exchange in server.exchanges} == {"close"}


def test_a_good_answer_is_read_to_its_end(server: OwnServer) -> None:
    """A client that closes at [DONE] looks to the server as if it had left."""

    async def ends_late(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.token()
        await exchange.event(choices=[], usage={"completion_tokens": 1})
        await exchange.piece(b"data: [DONE]\n\n")
        await asyncio.sleep(0.1)
        assert not exchange.reader.at_eof()
        await exchange.end_body()
        reached.append(exchange.number)

    reached: list[int] = []
    server.script = ends_late
    assert send_one(server.url, call(1)).failure is None
    wait_until(lambda: server.exchanges[0].is_over)
    assert reached == [0]


async def silence(exchange: Exchange) -> None:
    await asyncio.sleep(30)


async def silence_after_head(exchange: Exchange) -> None:
    await exchange.head()
    await asyncio.sleep(30)


async def silence_mid_stream(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    await asyncio.sleep(30)


async def only_comments(exchange: Exchange) -> None:
    await exchange.head()
    while True:
        await exchange.piece(b": still here\n\n")
        await asyncio.sleep(0.01)


async def half_an_event(exchange: Exchange) -> None:
    await exchange.head()
    while True:
        await exchange.piece(b"data: ")
        await asyncio.sleep(0.01)


async def half_an_error_body(exchange: Exchange) -> None:
    await exchange.head("503 Service Unavailable")
    await exchange.piece(b"busy")
    await asyncio.sleep(30)


@pytest.mark.parametrize(
    "script", [silence, silence_after_head, silence_mid_stream, only_comments, half_an_event, half_an_error_body]
)
def test_a_server_that_goes_silent_is_left_after_the_stall_timeout(server: OwnServer, script: Script) -> None:
    server.script = script
    outcome = send_one(server.url, call(3), stall_timeout=0.15)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.detail) == ("stalled", "no event for 0.15 s")
    last = outcome.token_times[-1] if outcome.token_times else outcome.sent
    assert 0.15 <= outcome.finished - last < 0.15 + SLACK_S


def test_a_slow_server_that_keeps_sending_does_not_stall(server: OwnServer) -> None:
    async def steady(exchange: Exchange) -> None:
        await exchange.head()
        for _ in range(8):
            await asyncio.sleep(0.05)
            await exchange.token()
        await exchange.finish(8)

    server.script = steady
    outcome = send_one(server.url, call(8), stall_timeout=0.35)
    assert outcome.failure is None
    assert outcome.e2e is not None
    assert outcome.e2e > 0.35


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port nobody listens on, kept from others."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_port_nobody_listens_on_is_unreachable(closed_port: int) -> None:
    outcome = send_one(f"http://127.0.0.1:{closed_port}", call())
    assert outcome.failure is not None
    assert outcome.failure.kind == "unreachable"
    assert outcome.token_times == ()


@pytest.mark.parametrize("name", ["no..name", "a" * 64])
def test_a_name_nobody_can_have_is_unreachable(name: str) -> None:
    """These fail without asking a name server."""
    outcome = send_one(f"http://{name}", call())
    assert outcome.failure is not None
    assert outcome.failure.kind == "unreachable"


def test_a_server_that_speaks_no_tls_is_unreachable_over_it(server: OwnServer) -> None:
    outcome = send_one(server.url.replace("http:", "https:"), call(), stall_timeout=0.4)
    assert outcome.failure is not None
    assert outcome.failure.kind == "unreachable"


def test_a_cancelled_request_is_not_left_running(server: OwnServer) -> None:
    server.script = silence_after_head

    async def run() -> int:
        async with new_session() as session:
            task = asyncio.ensure_future(send(session, server.url, call()))
            await asyncio.to_thread(server.started.acquire)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1
