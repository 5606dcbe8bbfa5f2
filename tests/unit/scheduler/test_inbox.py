"""The inbox: what other threads may do, and whose step a flag stops."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from llamaserve.cache.prompt import Prompt, token_array
from llamaserve.engine.fake import FakeFlag
from llamaserve.errors import BadRequest, EngineDown, QueueFull
from llamaserve.request import GenerationRequest
from llamaserve.scheduler.inbox import Cancel, Command, Inbox, Stop, Submit

PATIENCE_S = 30.0
PROMPT = Prompt(token_array((1,)))


def request(request_id: str) -> GenerationRequest:
    """A request with an id."""
    return GenerationRequest(request_id, (1,))


def inbox_with(*request_ids: str) -> Inbox:
    """An inbox with live requests and no untaken command."""
    inbox = Inbox(n_slots=2, max_queue=2)
    for request_id in request_ids:
        inbox.submit(Submit(request(request_id), PROMPT, 0.0))
    inbox.take()
    return inbox


def test_commands_come_out_in_the_order_they_came_in() -> None:
    inbox = Inbox(n_slots=1, max_queue=0)
    inbox.submit(Submit(request("a"), PROMPT, 1.0))
    inbox.cancel("a")
    inbox.submit(Submit(request("b"), PROMPT, 2.0))
    inbox.stop(EngineDown("end"))
    assert inbox.take() == [Submit(request("a"), PROMPT, 1.0), Cancel("a"), Submit(request("b"), PROMPT, 2.0), Stop()]
    assert inbox.take() == []


def test_a_place_is_taken_until_the_request_leaves() -> None:
    """S48."""
    inbox = inbox_with("a", "b", "c", "d")
    with pytest.raises(QueueFull):
        inbox.submit(Submit(request("e"), PROMPT, 0.0))
    assert inbox.n_rejected == 1
    inbox.leave("b")
    inbox.submit(Submit(request("e"), PROMPT, 0.0))
    assert inbox.live == {"a", "c", "d", "e"}


def test_who_asks_first_learns_that_there_is_no_place() -> None:
    """S48."""
    inbox = inbox_with("a", "b", "c")
    inbox.check_room(0.0)
    inbox.submit(Submit(request("d"), PROMPT, 0.0))
    with pytest.raises(QueueFull) as caught:
        inbox.check_room(0.0)
    assert caught.value.retry_after_s >= 1
    assert inbox.n_rejected == 1
    inbox.begin("a")
    with pytest.raises(QueueFull):
        inbox.check_room(0.0)
    inbox.leave("b")
    inbox.check_room(0.0)
    Inbox(n_slots=1, max_queue=0).check_room(0.0)


def test_an_id_is_free_again_when_the_request_left() -> None:
    inbox = inbox_with("a")
    with pytest.raises(BadRequest):
        inbox.submit(Submit(request("a"), PROMPT, 0.0))
    inbox.cancel("a")
    inbox.leave("a")
    inbox.submit(Submit(request("a"), PROMPT, 0.0))
    assert not inbox.is_cancelled("a")


def test_requests_come_in_together_or_not_at_all() -> None:
    inbox = inbox_with("a", "b", "c")
    with pytest.raises(QueueFull):
        inbox.submit(*(Submit(request(name), PROMPT, 0.0) for name in "xy"))
    assert (inbox.live, inbox.take(), inbox.n_rejected) == ({"a", "b", "c"}, [], 2)
    inbox.leave("a")
    entries = [Submit(request(name), PROMPT, 0.0) for name in "xy"]
    inbox.submit(*entries)
    assert (inbox.live, inbox.take()) == ({"b", "c", "x", "y"}, entries)


@pytest.mark.parametrize("names", ["xa", "xx"])
def test_an_id_twice_takes_none_of_them_in(names: str) -> None:
    inbox = inbox_with("a")
    with pytest.raises(BadRequest, match="in use"):
        inbox.submit(*(Submit(request(name), PROMPT, 0.0) for name in names))
    assert (inbox.live, inbox.take()) == ({"a"}, [])


def test_a_prompt_that_several_share_waits_once() -> None:
    """It is computed once too."""
    tokens = tuple(range(60))
    inbox = Inbox(n_slots=1, max_queue=0, max_queue_tokens=100)
    inbox.submit(Submit(request("running"), PROMPT, 0.0))
    inbox.submit(Submit(request("waiting"), PROMPT, 0.0))
    prompt = Prompt(token_array(tokens))
    inbox.submit(*(Submit(GenerationRequest(name, tokens), prompt, 0.0) for name in "xyz"))
    with pytest.raises(QueueFull, match="61 prompt tokens wait, 60 more"):
        inbox.submit(Submit(GenerationRequest("w", tokens), prompt, 0.0))


def test_the_first_refusal_stays() -> None:
    inbox = inbox_with()
    inbox.refuse(EngineDown("first"))
    inbox.stop(EngineDown("second"))
    with pytest.raises(EngineDown, match="first"):
        inbox.submit(Submit(request("a"), PROMPT, 0.0))


def test_a_step_is_stopped_by_the_last_of_its_cancels() -> None:
    """S56: whether they come before or during the step."""
    inbox = inbox_with("a", "b", "c")
    inbox.cancel("a")
    flag = FakeFlag()
    inbox.begin_step(["a", "b"], (), flag)
    inbox.cancel("c")
    assert not flag.is_set
    inbox.cancel("b")
    assert flag.is_set


def test_a_step_whose_requests_were_all_cancelled_before_is_stopped_at_once() -> None:
    """S56: a cancel that came between taking commands and running."""
    inbox = inbox_with("a")
    inbox.cancel("a")
    flag = FakeFlag()
    inbox.begin_step(["a"], (), flag)
    assert flag.is_set


def test_a_step_is_stopped_when_nobody_waits_for_its_prompts_any_more() -> None:
    """S56, K12: a row of one token is soon computed again, a piece of a prompt is what takes long."""
    inbox = inbox_with("text", "prompt", "other")
    flag = FakeFlag()
    inbox.begin_step(["text", "prompt", "other"], ["prompt", "other"], flag)
    inbox.cancel("prompt")
    assert not flag.is_set
    inbox.cancel("other")
    assert flag.is_set


def test_a_step_whose_prompts_were_all_cancelled_before_is_stopped_at_once() -> None:
    """S56."""
    inbox = inbox_with("text", "prompt")
    inbox.cancel("prompt")
    flag = FakeFlag()
    inbox.begin_step(["text", "prompt"], ["prompt"], flag)
    assert flag.is_set


def test_a_cancelled_text_does_not_stop_the_prompts_beside_it() -> None:
    """S56: nor does it stop other texts in a step without prompts."""
    inbox = inbox_with("text", "other", "prompt")
    for prompting in (["prompt"], []):
        flag = FakeFlag()
        inbox.begin_step(["text", "other", *prompting], prompting, flag)
        inbox.cancel("text")
        assert not flag.is_set
        inbox.end_step()


def test_nothing_touches_the_flag_of_a_step_that_is_over() -> None:
    """S56."""
    inbox = inbox_with("a")
    flag = FakeFlag()
    inbox.begin_step(["a"], (), flag)
    inbox.end_step()
    inbox.cancel("a")
    inbox.stop(EngineDown("end"))
    assert not flag.is_set


def test_a_stop_ends_the_running_step_and_every_later_one() -> None:
    inbox = inbox_with("a")
    running, later = FakeFlag(), FakeFlag()
    inbox.begin_step(["a"], (), running)
    inbox.stop(EngineDown("end"))
    assert running.is_set
    inbox.end_step()
    inbox.begin_step(["a"], (), later)
    assert later.is_set


def test_everybody_left_is_told_who_left() -> None:
    inbox = inbox_with("a")
    inbox.submit(Submit(request("b"), PROMPT, 0.0))
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
    assert woken.wait(PATIENCE_S)
    thread.join()


class Interruption:
    """Stops an inbox from inside a call on it, before the n-th bytecode: a garbage collection that closes a service
    may run anywhere on the thread that uses it. Thread of the call only."""

    def __init__(self, inbox: Inbox, at: int) -> None:
        self._inbox = inbox
        self._n_left = at
        self.has_happened = False

    def during(self, call: Callable[[Inbox], object]) -> None:
        """Make the call."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call(self._inbox)
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Callable[[FrameType, str, Any], Any]:
        frame.f_trace_opcodes = True
        if event == "opcode" and not self.has_happened:
            if self._n_left == 0:
                self.has_happened = True
                self._inbox.stop(EngineDown("collected"))
            self._n_left -= 1
        return self._trace


def stop_inside(call: Callable[[Inbox], object], at: int) -> Inbox | None:
    """An inbox after a call that was stopped before its n-th bytecode; None if the call is shorter."""
    inbox = inbox_with("a", "b")
    interruption = Interruption(inbox, at)
    thread = threading.Thread(target=interruption.during, args=(call,), daemon=True)
    thread.start()
    thread.join(0.2)
    if not interruption.has_happened:
        inbox.cancel("b")  # for a call that waits for a command
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"stuck after a stop before bytecode {at}"
    return inbox if interruption.has_happened else None


def submit_if_taken(inbox: Inbox) -> None:
    """Submit, before or after the stop."""
    with contextlib.suppress(EngineDown):
        inbox.submit(Submit(request("c"), PROMPT, 0.0))


CALLS: dict[str, Callable[[Inbox], object]] = {
    "submit": submit_if_taken,
    "cancel": lambda inbox: inbox.cancel("a"),
    "wait": Inbox.wait,
    "begin_step": lambda inbox: inbox.begin_step(["b"], ["b"], FakeFlag()),
    "end_step": Inbox.end_step,
    "refuse": lambda inbox: inbox.refuse(EngineDown("broken")),
    "leave": lambda inbox: inbox.leave("a"),
    "leave_all": Inbox.leave_all,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_stop_from_inside_any_call_is_neither_lost_nor_in_the_way(name: str) -> None:
    """Whoever collects a forgotten service may hold its lock, and may be the thread that waits for a command."""
    at = 0
    while (inbox := stop_inside(CALLS[name], at)) is not None:
        assert inbox.is_stopping
        assert Stop() in inbox.take(), f"the stop before bytecode {at} was lost"
        at += 1
    assert at > 3


def test_a_stop_while_commands_are_taken_is_taken_too() -> None:
    """No command falls between reading and clearing."""
    taken: list[Command] = []

    def cancel_and_take(inbox: Inbox) -> None:
        inbox.cancel("b")
        taken.extend(inbox.take())

    at = 0
    while (inbox := stop_inside(cancel_and_take, at)) is not None:
        taken += inbox.take()
        assert Stop() in taken, f"the stop before bytecode {at} was lost"
        assert Cancel("b") in taken, f"the cancel was lost by a stop before bytecode {at}"
        taken.clear()
        at += 1
    assert at > 3
