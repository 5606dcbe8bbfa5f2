"""A thread that does jobs in their order."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from llamaserve.cache.job_thread import JobThread

PATIENCE_S = 30.0


def test_jobs_are_done_in_their_order_on_one_thread() -> None:
    thread = JobThread("jobs")
    done: list[tuple[int, str]] = []

    def note(index: int) -> None:
        done.append((index, threading.current_thread().name))

    for index in range(20):
        assert thread.post(partial(note, index))
    assert thread.drain(PATIENCE_S)
    assert done == [(index, "jobs") for index in range(20)]
    thread.close()
    thread.join(PATIENCE_S)


def test_there_is_no_thread_before_the_first_job_and_none_after_the_end() -> None:
    thread = JobThread("seldom needed")
    assert thread.drain(0.0)
    assert "seldom needed" not in {alive.name for alive in threading.enumerate()}
    thread.post(lambda: None)
    thread.close()
    thread.join(PATIENCE_S)
    assert "seldom needed" not in {alive.name for alive in threading.enumerate()}


def test_closing_ends_the_job_under_way_and_drops_the_others() -> None:
    thread = JobThread("jobs")
    is_entered, may_go_on = threading.Event(), threading.Event()
    heard: list[str] = []

    def long_job() -> None:
        is_entered.set()
        assert may_go_on.wait(PATIENCE_S)
        heard.append("long job")

    thread.post(long_job)
    thread.post(lambda: heard.append("never"), lambda: heard.append("dropped"))
    assert is_entered.wait(PATIENCE_S)
    assert not thread.drain(0.0)
    thread.close()
    assert heard == ["dropped"]
    assert not thread.post(lambda: heard.append("too late"))
    thread.join(0.0)
    may_go_on.set()
    thread.join(PATIENCE_S)
    thread.close()
    assert heard == ["dropped", "long job"]


def test_a_job_that_fails_is_logged_and_the_next_one_is_done(caplog: pytest.LogCaptureFixture) -> None:
    thread = JobThread("jobs")
    done = threading.Event()

    def fail() -> None:
        raise RuntimeError("no")

    thread.post(fail)
    thread.post(done.set)
    assert done.wait(PATIENCE_S)
    assert "a job of jobs failed" in caplog.text
    thread.close()
    thread.join(PATIENCE_S)
