"""The inbox: what other threads may do, and whose step a flag stops."""

from __future__ import annotations

import threading

import pytest

from llamaserve.engine.fake import FakeFlag
from llamaserve.errors import BadRequest, EngineDown, QueueFull
from llamaserve.request import GenerationRequest
from llamaserve.scheduler.inbox import Cancel, Inbox, Stop, Submit


def request(request_id: str) -> GenerationRequest:
    """A request with an id."""
    return GenerationRequest(request_id, (1,))


def inbox_with(*request_ids: str) -> Inbox:
    """An inbox with live requests and no untaken command."""
    inbox = Inbox(n_slots=2, max_queue=2)
    for request_id in request_ids:
        inbox.submit(request(request_id), 0.0)
    inbox.take()
    return inbox


def test_commands_come_out_in_the_order_they_came_in() -> None:
    inbox = Inbox(n_slots=1, max_queue=0)
    inbox.submit(request("a"), 1.0)
    inbox.cancel("a")
    inbox.submit(request("b"), 2.0)
    inbox.stop(EngineDown("end"))
    assert inbox.take() == [Submit(request("a"), 1.0), Cancel("a"), Submit(request("b"), 2.0), Stop()]
    assert inbox.take() == []


def test_a_place_is_taken_until_the_request_leaves() -> None:
    """S48."""
    inbox = inbox_with("a", "b", "c", "d")
    with pytest.raises(QueueFull):
        inbox.submit(request("e"), 0.0)
    assert inbox.n_rejected == 1
    inbox.leave("b")
    inbox.submit(request("e"), 0.0)
    assert inbox.live == {"a", "c", "d", "e"}


def test_an_id_is_free_again_when_the_request_left() -> None:
    inbox = inbox_with("a")
    with pytest.raises(BadRequest):
        inbox.submit(request("a"), 0.0)
    inbox.cancel("a")
    inbox.leave("a")
    inbox.submit(request("a"), 0.0)
    assert not inbox.is_cancelled("a")


def test_the_first_refusal_stays() -> None:
    inbox = inbox_with()
    inbox.refuse(EngineDown("first"))
    inbox.stop(EngineDown("second"))
    with pytest.raises(EngineDown, match="first"):
        inbox.submit(request("a"), 0.0)


def test_a_step_is_stopped_by_the_last_of_its_cancels() -> None:
    """S56: whether they come before or during the step."""
    inbox = inbox_with("a", "b", "c")
    inbox.cancel("a")
    flag = FakeFlag()
    inbox.begin_step(["a", "b"], flag)
    inbox.cancel("c")
    assert not flag.is_set
    inbox.cancel("b")
    assert flag.is_set


def test_a_step_whose_requests_were_all_cancelled_before_is_stopped_at_once() -> None:
    """S56: a cancel that came between taking commands and running."""
    inbox = inbox_with("a")
    inbox.cancel("a")
    flag = FakeFlag()
    inbox.begin_step(["a"], flag)
    assert flag.is_set


def test_nothing_touches_the_flag_of_a_step_that_is_over() -> None:
    """S56."""
    inbox = inbox_with("a")
    flag = FakeFlag()
    inbox.begin_step(["a"], flag)
    inbox.end_step()
    inbox.cancel("a")
    inbox.stop(EngineDown("end"))
    assert not flag.is_set


def test_a_stop_ends_the_running_step_and_every_later_one() -> None:
    inbox = inbox_with("a")
    running, later = FakeFlag(), FakeFlag()
    inbox.begin_step(["a"], running)
    inbox.stop(EngineDown("end"))
    assert running.is_set
    inbox.end_step()
    inbox.begin_step(["a"], later)
    assert later.is_set


def test_everybody_left_is_told_who_left() -> None:
    inbox = inbox_with("a")
    inbox.submit(request("b"), 0.0)
    assert sorted(inbox.leave_all()) == ["a", "b"]
    assert inbox.leave_all() == []


def test_a_waiting_thread_wakes_up_for_a_command() -> None:
    inbox = inbox_with("a")
    woken = threading.Event()

    def wait() -> None:
        inbox.wait()
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not woken.is_set()
    inbox.cancel("a")
    assert woken.wait(10)
    thread.join()
