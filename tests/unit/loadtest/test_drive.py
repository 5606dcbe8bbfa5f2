"""Many requests by a rule, counted by the server."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from llamaserve.loadtest.call import Call
from llamaserve.loadtest.drive import closed_loop, open_loop, together
from llamaserve.loadtest.event_loop import run
from llamaserve.loadtest.outcome import Outcome
from tests.unit.loadtest.own_server import Exchange, Hangup, OwnServer, well


def calls(n: int, *, at: Sequence[float] | None = None) -> list[Call]:
    return [
        Call({"prompt": f"number {i}", "max_tokens": i + 1}, expected_tokens=i + 1, at=None if at is None else at[i])
        for i in range(n)
    ]


def numbers(outcomes: Sequence[Outcome]) -> list[Any]:
    return [outcome.call.body["prompt"] for outcome in outcomes]


def in_company(n: int) -> Any:
    """A script that answers as soon as so many requests run: if fewer are ever sent at a time, it does not answer."""
    gate: list[asyncio.Event] = []

    async def script(exchange: Exchange) -> None:
        if not gate:
            gate.append(asyncio.Event())
        waiting.append(exchange.number)
        if len(waiting) >= n:
            gate[0].set()
        await gate[0].wait()
        await well(exchange)

    waiting: list[int] = []
    return script


def test_a_closed_loop_keeps_exactly_its_concurrency(server: OwnServer) -> None:
    server.script = in_company(3)
    outcomes = run(closed_loop(server.url, calls(9), concurrency=3, stall_timeout=10))
    assert [outcome.failure for outcome in outcomes] == [None] * 9
    assert server.most_running == 3
    assert {outcome.queue for outcome in outcomes} == {0.0}


def test_outcomes_are_in_the_order_of_the_calls_and_reported_in_that_of_their_ends(server: OwnServer) -> None:
    second_is_answered = asyncio.Event()

    async def first_last(exchange: Exchange) -> None:
        if exchange.body["prompt"] == "number 0":
            await second_is_answered.wait()
        await well(exchange)
        if exchange.body["prompt"] == "number 1":
            second_is_answered.set()

    server.script = first_last
    ended: list[Outcome] = []
    outcomes = run(closed_loop(server.url, calls(2), concurrency=2, on_outcome=ended.append))
    assert numbers(outcomes) == ["number 0", "number 1"]
    assert numbers(ended) == ["number 1", "number 0"]


def test_all_together_means_all_at_once(server: OwnServer) -> None:
    server.script = in_company(6)
    outcomes = run(together(server.url, calls(6), stall_timeout=10))
    assert [outcome.completion_tokens for outcome in outcomes] == [1, 2, 3, 4, 5, 6]
    assert server.most_running == 6


def test_no_calls_are_no_outcomes(server: OwnServer) -> None:
    assert run(closed_loop(server.url, [], concurrency=4)) == []
    assert run(open_loop(server.url, [])) == []
    assert run(together(server.url, [])) == []


def test_an_open_loop_sends_each_call_at_its_time_answered_or_not(server: OwnServer) -> None:
    """The server answers nothing until all have arrived, so an earlier answer cannot have been waited for."""
    server.script = in_company(4)
    at = [0.15, 0.0, 0.05, 0.1]
    outcomes = run(open_loop(server.url, calls(4, at=at), stall_timeout=10))
    assert [outcome.failure for outcome in outcomes] == [None] * 4
    assert numbers(outcomes) == [f"number {i}" for i in range(4)]
    assert numbers(sorted(outcomes, key=lambda outcome: outcome.sent)) == [f"number {i}" for i in (1, 2, 3, 0)]
    start = outcomes[1].submitted
    assert [outcome.submitted - start for outcome in outcomes] == pytest.approx(at)
    for outcome in outcomes:
        assert outcome.queue >= 0
    for exchange in server.exchanges:
        assert exchange.arrived >= start + at[int(exchange.body["prompt"][-1])]


def test_a_late_generator_shows_in_its_own_queue_and_in_ttft(server: OwnServer) -> None:
    async def go() -> list[Outcome]:
        task = asyncio.ensure_future(open_loop(server.url, calls(2, at=[0.0, 0.01])))
        await asyncio.to_thread(server.started.acquire)
        blocked_until = asyncio.get_running_loop().time() + 0.2
        while asyncio.get_running_loop().time() < blocked_until:
            pass
        return await task

    outcomes = run(go())
    late = outcomes[1]
    assert late.queue >= 0.1
    assert late.ttft is not None
    assert late.ttft >= late.queue


def test_a_failing_server_does_not_end_the_run(server: OwnServer) -> None:
    async def every_other(exchange: Exchange) -> None:
        if exchange.number % 2:
            raise Hangup
        await well(exchange)

    server.script = every_other
    outcomes = run(closed_loop(server.url, calls(6), concurrency=1))
    assert [outcome.failure and outcome.failure.kind for outcome in outcomes] == [None, "closed"] * 3


def test_headers_go_with_every_request(server: OwnServer) -> None:
    run(closed_loop(server.url, calls(2), concurrency=1, headers={"Authorization": "Bearer key"}))
    assert [exchange.headers["authorization"] for exchange in server.exchanges] == ["Bearer key"] * 2


def test_token_events_are_told_as_they_come(server: OwnServer) -> None:
    counts: list[int] = []
    run(closed_loop(server.url, calls(3), concurrency=2, on_tokens=counts.append))
    assert sum(counts) == 1 + 2 + 3


def test_a_stopped_run_leaves_no_request_behind_and_has_told_what_ended(server: OwnServer) -> None:
    async def only_the_first(exchange: Exchange) -> None:
        if exchange.number:
            await exchange.head()
            await asyncio.sleep(30)
        await well(exchange)

    server.script = only_the_first
    ended: list[Outcome] = []

    async def go(*, is_open: bool) -> int:
        loop = (
            open_loop(server.url, calls(5, at=[0.0, 0.0, 0.0, 0.0, 60.0]), on_outcome=ended.append)
            if is_open
            else closed_loop(server.url, calls(5), concurrency=2, on_outcome=ended.append)
        )
        task = asyncio.ensure_future(loop)
        for _ in range(3):
            await asyncio.to_thread(server.started.acquire)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks())

    for is_open in (False, True):
        assert run(go(is_open=is_open)) == 1
        server.exchanges.clear()
        while server.started.acquire(blocking=False):
            pass
    assert {outcome.failure for outcome in ended} == {None}
    assert len(ended) == 2


@pytest.mark.parametrize("concurrency", [0, -1])
def test_a_concurrency_below_1_is_refused(concurrency: int) -> None:
    with pytest.raises(ValueError, match=f"concurrency is {concurrency}: it must be at least 1"):
        run(closed_loop("http://127.0.0.1:1", calls(1), concurrency=concurrency))


def test_a_call_with_a_time_belongs_into_an_open_loop_only() -> None:
    with pytest.raises(ValueError, match=r"call 0 is due at 0\.5 s"):
        run(closed_loop("http://127.0.0.1:1", calls(1, at=[0.5]), concurrency=1))
    with pytest.raises(ValueError, match="call 0 is due at None"):
        run(open_loop("http://127.0.0.1:1", calls(1)))
    with pytest.raises(ValueError, match="call 1 is due at -1"):
        run(open_loop("http://127.0.0.1:1", calls(2, at=[0, -1])))


def test_without_uvloop_the_standard_event_loop_does(server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert [outcome.failure for outcome in run(together(server.url, calls(2)))] == [None, None]
