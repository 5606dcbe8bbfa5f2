"""The fields that steer the prefix cache, and what answers say of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import httpx
import pytest

from llamaserve.api.sse import Take
from llamaserve.config import CacheConfig
from llamaserve.engine.fake import FakeEngine, scripted
from llamaserve.request import GenerationRequest
from tests.api.served import LineTemplate, Served, serving, wait_until

PROMPT = "a prompt of some length"


@pytest.fixture
def own_server() -> Iterator[Served]:
    """A server whose cache nobody else fills; its memory can share."""
    engine = FakeEngine(continuation=scripted({PROMPT: "!", "user: hi\nassistant: ": "Hello."}))
    with serving(engine, template=LineTemplate()) as served:
        yield served


@pytest.fixture
def requests(own_server: Served, monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """What reaches the service."""
    seen: list[GenerationRequest] = []
    listen = own_server.service.listen

    def recording_listen(requests: Sequence[GenerationRequest], takes: Sequence[Take]) -> Callable[[], None]:
        seen.extend(requests)
        return listen(requests, takes)

    monkeypatch.setattr(own_server.service, "listen", recording_listen)
    return seen


def cached(response: httpx.Response) -> int:
    n_tokens = response.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert isinstance(n_tokens, int)
    return n_tokens


def ask(served: Served, prompt: str = PROMPT, **fields: object) -> int:
    """Complete a prompt; the tokens of it that came from the cache. What it left can be found afterwards."""
    n_tokens = cached(served.complete(prompt, **fields))
    wait_until(lambda: served.service.stats().idle_slots == 4)
    return n_tokens


def test_the_same_prompt_again_is_cached_but_for_its_last_token(own_server: Served) -> None:
    """S18: without any field."""
    assert ask(own_server) == 0
    assert ask(own_server) == len(PROMPT)  # and a BOS token before it
    assert ask(own_server, PROMPT + " and more") >= len(PROMPT) + 1


def test_cache_prompt_false_neither_reuses_nor_leaves_anything(own_server: Served) -> None:
    """S17."""
    assert ask(own_server, cache_prompt=False) == 0
    assert ask(own_server) == 0
    assert ask(own_server, cache_prompt=False) == 0
    assert ask(own_server, cache_prompt=None) == len(PROMPT)


def test_a_server_may_have_it_off_and_a_request_may_turn_it_on() -> None:
    """S18."""
    with serving(FakeEngine(continuation=scripted({})), cache=CacheConfig(cache_prompt=False)) as served:
        assert [ask(served), ask(served), ask(served, cache_prompt=None)] == [0, 0, 0]
        assert [ask(served, cache_prompt=True), ask(served, cache_prompt=True)] == [0, len(PROMPT)]


def test_salts_keep_tenants_apart(own_server: Served) -> None:
    """K40."""
    assert ask(own_server, cache_salt="mine") == 0
    assert ask(own_server, cache_salt="theirs") == 0
    assert ask(own_server) == 0
    assert ask(own_server, cache_salt="mine") == len(PROMPT)
    assert ask(own_server, cache_salt="") == ask(own_server, cache_salt=None) == len(PROMPT)


def test_a_chat_reports_cached_tokens_too(own_server: Served) -> None:
    """S45."""
    assert cached(own_server.chat("hi")) == 0
    wait_until(lambda: own_server.service.stats().idle_slots == 4)
    assert cached(own_server.chat("hi")) == len("user: hi\nassistant: ")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_usage_chunk_of_a_stream_reports_cached_tokens(own_server: Served, path: str) -> None:
    question = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    body = {**question, "stream": True, "stream_options": {"include_usage": True}}
    usages = []
    for _ in range(2):
        lines = own_server.client.post(path, json=body).text.split("\n\n")
        usages.append(json.loads(lines[-3].removeprefix("data: "))["usage"])
        wait_until(lambda: own_server.service.stats().idle_slots == 4)
    details = [usage["prompt_tokens_details"] for usage in usages]
    assert details == [{"cached_tokens": 0}, {"cached_tokens": usages[0]["prompt_tokens"] - 1}]


def test_the_fields_reach_the_service(own_server: Served, requests: list[GenerationRequest]) -> None:
    fields = {"cache_prompt": False, "cache_salt": "s", "session": "c"}
    own_server.complete(**fields)
    own_server.chat(**fields)
    own_server.complete(**fields, stream=True)
    for request in requests:
        assert (request.cache_prompt, request.cache_salt, request.session) == (False, "s", "c")
    assert len(requests) == 3


def test_without_the_fields_a_request_belongs_to_nobody(own_server: Served, requests: list[GenerationRequest]) -> None:
    own_server.complete(cache_prompt=None, cache_salt=None, session=None)
    (request,) = requests
    assert (request.cache_prompt, request.cache_salt, request.session) == (True, "", None)


@pytest.mark.parametrize(
    ("header", "field", "session"),
    [("h", None, "h"), ("h", "b", "b"), ("", None, None), ("", "b", "b"), ("x" * 256, None, "x" * 256)],
)
def test_a_header_may_name_the_session_and_the_body_wins(
    own_server: Served, requests: list[GenerationRequest], header: str, field: str | None, session: str | None
) -> None:
    body = {"prompt": PROMPT, "session": field}
    own_server.client.post("/v1/completions", json=body, headers={"X-Session-Id": header}).raise_for_status()
    assert [request.session for request in requests] == [session]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cache_prompt": "yes"}, "cache_prompt: expected boolean or null, got string"),
        ({"cache_prompt": 0}, "cache_prompt: expected boolean or null, got integer"),
        ({"cache_salt": 5}, "cache_salt: expected string or null, got integer"),
        ({"cache_salt": "x" * 257}, "cache_salt has 257 characters: it must have at most 256"),
        ({"session": {}}, "session: expected string or null, got object"),
        ({"session": ""}, "session has 0 characters: it must have 1 to 256"),
        ({"session": "x" * 257}, "session has 257 characters: it must have 1 to 256"),
    ],
    ids=range(7),
)
def test_a_bad_field_is_named(own_server: Served, fields: dict[str, object], message: str) -> None:
    (name,) = fields
    for response in (own_server.complete(**fields), own_server.chat(**fields)):
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["message"], error["param"]) == (message, name)


def test_a_session_header_too_long_is_named(own_server: Served) -> None:
    headers = {"X-Session-Id": "x" * 257}
    response = own_server.client.post("/v1/completions", json={"prompt": PROMPT}, headers=headers)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "x-session-id"
    assert error["message"] == "the header x-session-id has 257 characters: it must have at most 256"


def test_the_ends_of_messages_are_passed_where_memory_cannot_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """K11."""
    with serving(FakeEngine(can_share=False), template=LineTemplate()) as served:
        seen: list[GenerationRequest] = []
        listen = served.service.listen

        def recording_listen(requests: Sequence[GenerationRequest], takes: Sequence[Take]) -> Callable[[], None]:
            seen.extend(requests)
            return listen(requests, takes)

        monkeypatch.setattr(served.service, "listen", recording_listen)
        messages = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
        served.chat(messages=messages, max_tokens=1)
        served.complete(max_tokens=1)
    chat, completion = seen
    history = 1 + len("user: x\nassistant: x\n")
    assert chat.boundaries == (history, history + len("user: x\n"))
    assert completion.boundaries == ()


def test_no_boundaries_are_looked_for_where_any_prefix_can_be_shared(
    own_server: Served, requests: list[GenerationRequest]
) -> None:
    own_server.chat("hi")
    assert requests[0].boundaries == ()
