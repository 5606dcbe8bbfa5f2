"""``GET /slots``: what it shows, what it hides, and how it is turned off."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import httpx
import pytest

from llamaserve.api.caller import ANYBODY, Caller
from llamaserve.cache.prefix_memory import Holder
from llamaserve.config import HttpConfig, SchedulerConfig
from llamaserve.engine.fake import FakeEngine, scripted
from llamaserve.scheduler.slot_view import SlotView
from llamaserve.server.slots import sequence_items
from llamaserve.service import Service
from tests.api.served import MODEL, PATIENCE_S, Served, app_loading, listening, serving, wait_until

SECRET_PROMPT = "a prompt nobody else may see"
SECRET_SALT = "tenant-secret"


@contextmanager
def running(served: Served, **fields: object) -> Generator[None, None, None]:
    """A stream that has given its first token and goes on."""
    body = {"prompt": SECRET_PROMPT, "stream": True, **fields}
    with served.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()  # kept: collecting it would close the stream
        next(lines)
        yield


def slots_of(served: Served, query: str = "") -> list[dict[str, object]]:
    response = served.client.get(f"/slots{query}")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    items = response.json()
    assert isinstance(items, list)
    return items


def endless(n_slots: int = 2) -> FakeEngine:
    return FakeEngine(n_ctx=64_000, n_slots=n_slots, step_s=0.005)


def test_idle_slots_say_so_and_nothing_else() -> None:
    with serving(FakeEngine(n_slots=2, n_ctx=512)) as served:
        expected = {"n_ctx": 512, "is_processing": False, "state": "idle", "n_tokens": 0, "n_shared": 0}
        assert slots_of(served) == [{"id": 0, **expected}, {"id": 1, **expected}]
        assert slots_of(served, "?parked=true") == slots_of(served)


def test_a_running_slot_says_whose_it_is_and_how_far() -> None:
    with serving(endless()) as served, running(served, session="talk"):
        busy, idle = sorted(slots_of(served), key=lambda item: str(item["state"]))
        assert (busy["state"], busy["is_processing"], idle["is_processing"]) == ("generating", True, False)
        assert busy["session"] == "talk"
        assert str(busy["request_id"]).startswith("cmpl-")
        n_prompt = 1 + len(SECRET_PROMPT)
        assert (busy["n_prompt_tokens"], busy["n_prompt_tokens_processed"], busy["n_prompt_tokens_cache"]) == (
            n_prompt,
            n_prompt,
            0,
        )
        assert isinstance(busy["next_token"], list)
        assert busy["next_token"][0]["n_decoded"] >= 1
        assert "request_id" not in idle


def test_tokens_from_the_cache_are_told_apart_from_computed_ones() -> None:
    with serving(endless()) as served:
        served.complete(SECRET_PROMPT, max_tokens=1)
        wait_until(lambda: served.service.stats().idle_slots == 2)
        with running(served):
            (busy,) = (item for item in slots_of(served) if item["is_processing"])
            assert busy["n_prompt_tokens_cache"] == len(SECRET_PROMPT)
            assert busy["n_prompt_tokens_processed"] == 1


def test_parked_sequences_are_listed_behind_the_slots_when_asked_for() -> None:
    """The array stays one item a slot for those who do not ask."""
    engine = FakeEngine(n_slots=2, continuation=scripted({}))
    with serving(engine) as served:
        served.complete("one", session="talk")
        wait_until(lambda: served.service.stats().idle_slots == 2)
        assert [item["id"] for item in slots_of(served)] == [0, 1]
        _, _, parked = slots_of(served, "?parked=true")
        assert parked["id"] not in (0, 1)
        assert (parked["state"], parked["is_processing"], parked["session"]) == ("parked", False, "talk")
        assert parked["n_tokens"] == 4
        assert slots_of(served, "?parked=0") == slots_of(served, "?parked=false") == slots_of(served)


def test_an_idle_slot_shows_what_it_keeps_where_sequences_cannot_share() -> None:
    """S25: then nothing is parked outside the slots."""
    with serving(FakeEngine(n_slots=2, can_share=False, continuation=scripted({}))) as served:
        served.complete("one", session="talk")
        wait_until(lambda: served.service.stats().idle_slots == 2)
        items = slots_of(served, "?parked=true")
        assert [item["id"] for item in items] == [0, 1]
        (keeping,) = (item for item in items if item["n_tokens"])
        assert (keeping["state"], keeping["n_tokens"], keeping["session"]) == ("idle", 4, "talk")
        assert "request_id" not in keeping


def test_no_prompt_no_text_and_no_salt_is_shown() -> None:
    """K40."""
    with serving(endless(), scheduler=SchedulerConfig()) as served:
        served.complete(SECRET_PROMPT, max_tokens=1, cache_salt=SECRET_SALT)
        with running(served, cache_salt=SECRET_SALT):
            text = served.client.get("/slots?parked=1").text
    assert SECRET_SALT not in text
    assert SECRET_PROMPT not in text
    assert "abc" not in text  # what the engine draws


def test_items_join_slots_with_what_they_hold() -> None:
    slots = [SlotView(0, "idle"), SlotView(1, "prefilling", "r", "s", n_prompt=100, n_computed=60, n_cached=50)]
    holders = [Holder(7, 30, 0, "old"), Holder(0, 20, 10, "kept"), Holder(1, 60, 50), Holder(5, 9, 9)]
    idle, busy, *parked = sequence_items(slots, holders, 4096, ANYBODY)
    assert (idle.state, idle.is_processing, idle.n_tokens, idle.n_shared, idle.session) == (
        "idle",
        False,
        20,
        10,
        "kept",
    )
    assert idle.n_prompt_tokens is None
    assert (busy.state, busy.is_processing, busy.n_tokens, busy.n_shared, busy.session) == (
        "prefilling",
        True,
        60,
        50,
        "s",
    )
    assert (busy.n_prompt_tokens, busy.n_prompt_tokens_processed, busy.n_prompt_tokens_cache) == (100, 10, 50)
    assert [(item.id, item.state, item.n_tokens, item.session) for item in parked] == [
        (5, "parked", 9, None),
        (7, "parked", 30, "old"),
    ]


def test_a_slot_seen_between_two_changes_has_no_negative_number() -> None:
    (item,) = sequence_items([SlotView(0, "prefilling", "r", n_prompt=9, n_computed=2, n_cached=5)], [], 64, ANYBODY)
    assert item.n_prompt_tokens_processed == 0


@pytest.mark.parametrize("query", ["parked=yes", "parked=", "fail_on_no_slot=2"])
def test_a_query_that_is_neither_yes_nor_no_is_named(query: str) -> None:
    with serving(FakeEngine()) as served:
        response = served.client.get(f"/slots?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.partition("=")[0]


def test_whoever_wants_an_idle_slot_gets_a_503_when_there_is_none() -> None:
    with serving(endless(n_slots=1)) as served:
        assert served.client.get("/slots?fail_on_no_slot=1").status_code == 200
        with running(served):
            assert served.client.get("/slots?fail_on_no_slot=0").status_code == 200
            response = served.client.get("/slots?fail_on_no_slot=1")
            assert response.status_code == 503
            assert response.json()["error"]["message"] == "no slot is idle"


def test_slots_that_are_not_to_be_shown_are_a_501() -> None:
    service = Service(FakeEngine(), None, SchedulerConfig(), MODEL)
    app = app_loading(lambda: service, HttpConfig(shows_slots=False))
    with listening(app) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        wait_until(lambda: client.get("/health").status_code == 200)
        response = client.get("/slots")
    assert response.status_code == 501
    assert response.json()["error"]["code"] == "not_supported"
    assert "--no-slots" in response.json()["error"]["message"]


def test_there_are_no_slots_before_the_model_is_there() -> None:
    may_load = threading.Event()

    def load() -> Service:
        assert may_load.wait(PATIENCE_S)
        return Service(FakeEngine(), None, SchedulerConfig(), MODEL)

    with listening(app_loading(load)) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        try:
            response = client.get("/slots")
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "unavailable"
        finally:
            may_load.set()
        wait_until(lambda: client.get("/slots").status_code == 200)


def test_names_are_shown_to_those_who_gave_them_where_several_have_keys() -> None:
    anna, boris = Caller("anna", is_apart=True), Caller("boris", is_apart=True)
    slots = [SlotView(0, "idle"), SlotView(1, "generating", "r", "s", n_prompt=9, owner="anna")]
    holders = [Holder(0, 20, 0, "kept", session_scope=boris.cache_scope("")), Holder(1, 9, 0)]
    holders.append(Holder(7, 30, 0, "old", session_scope=anna.cache_scope("a salt")))

    def names(caller: Caller) -> list[tuple[str | None, str | None]]:
        return [(item.session, item.request_id) for item in sequence_items(slots, holders, 64, caller)]

    assert names(anna) == [(None, None), ("s", "r"), ("old", None)]
    assert names(boris) == [("kept", None), (None, None), (None, None)]
    assert names(Caller("anna")) == names(ANYBODY) == [("kept", None), ("s", "r"), ("old", None)]
