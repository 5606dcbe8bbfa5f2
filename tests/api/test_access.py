"""API keys and CORS over a real socket: who is let in, as whom, and what a web page may do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import pytest

from llamaserve.api_key import ApiKey
from llamaserve.config import HttpConfig, PriorityHeader
from llamaserve.engine.fake import FakeEngine, scripted
from llamaserve.request import Event, GenerationRequest, Lane
from llamaserve.service import Service
from tests.api.conftest import REPLIES
from tests.api.served import SMALL_BODIES, LineTemplate, Served, serving, wait_until
from tests.api.test_endpoints import error_of
from tests.api.test_slots import running

ANNA = {"Authorization": "Bearer sk-anna"}
BORIS = {"x-api-key": "sk-boris"}
TWO_KEYS = HttpConfig(api_keys=(ApiKey.of("sk-anna", "anna"), ApiKey.of("sk-boris", "boris", Lane.HIGH)))
PROTECTED = ["/metrics", "/slots", "/v1/models", "/v1/models/fake-model", "/nowhere", "/"]


def complete(served: Served, headers: Mapping[str, str], **fields: object) -> dict[str, object]:
    body = {"prompt": "Hello", "max_tokens": 2, **fields}
    response = served.client.post("/v1/completions", json=body, headers=dict(headers))
    assert response.status_code == 200, response.text
    answer = response.json()
    assert isinstance(answer, dict)
    return answer


def cached_tokens(answer: dict[str, object]) -> int:
    usage = answer["usage"]
    assert isinstance(usage, dict)
    return int(usage["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": "sk-anna"},
        {"Authorization": "Basic sk-anna"},
        {"x-api-key": "sk-ann"},
        {"x-api-key": "Bearer sk-anna"},
    ],
)
def test_without_a_key_nothing_but_health_is_answered(headers: dict[str, str]) -> None:
    with serving(FakeEngine(), http=TWO_KEYS) as served:
        for path in ("/health", "/v1/health", "/ready"):
            assert served.client.get(path, headers=headers).status_code == 200
        refused = [served.client.get(path, headers=headers) for path in PROTECTED]
        refused += [served.client.post("/v1/completions", content=b"not read", headers=headers)]
        for response in refused:
            assert response.status_code == 401
            assert error_of(response)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"].startswith('Bearer realm="llamaserve"')
        assert served.service.stats().requests_done == 0


@pytest.mark.parametrize(
    "headers",
    [
        ANNA,
        BORIS,
        {"authorization": "bearer  sk-anna"},
        {"Authorization": "Basic of-a-proxy", "x-api-key": "sk-anna"},
        {"Authorization": "Bearer of-a-proxy", "x-api-key": "sk-boris"},
    ],
)
def test_a_key_opens_everything_in_either_header(headers: dict[str, str]) -> None:
    with serving(FakeEngine(), http=TWO_KEYS) as served:
        assert complete(served, headers)
        for path in ("/metrics", "/slots", "/v1/models"):
            assert served.client.get(path, headers=headers).status_code == 200


def test_a_wrong_key_is_told_apart_from_none() -> None:
    with serving(FakeEngine(), http=TWO_KEYS) as served:
        none = served.client.get("/slots").headers["www-authenticate"]
        wrong = served.client.get("/slots", headers={"x-api-key": "x"}).headers["www-authenticate"]
    assert "invalid_token" not in none
    assert 'error="invalid_token"' in wrong


def test_no_key_is_logged_right_or_wrong(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), serving(FakeEngine(), http=TWO_KEYS) as served:
        complete(served, ANNA)
        served.client.get("/slots", headers={"x-api-key": "sk-wrong"})
    assert caplog.records
    for secret in ("sk-anna", "sk-wrong"):
        assert secret not in caplog.text


def test_a_body_is_not_read_without_a_key() -> None:
    """One that is too large would be a 413."""
    with serving(FakeEngine(), http=HttpConfig(max_body_bytes=1024, api_keys=TWO_KEYS.api_keys)) as served:
        assert served.client.post("/v1/completions", content=b"x" * 100_000).status_code == 401


def test_nothing_computed_for_one_key_is_reused_for_another() -> None:
    with serving(FakeEngine(continuation=scripted(REPLIES)), http=TWO_KEYS) as served:
        assert [cached_tokens(complete(served, headers)) for headers in (ANNA, BORIS, ANNA, BORIS)] == [0, 0, 5, 5]
        assert [cached_tokens(complete(served, ANNA, cache_salt="s")) for _ in range(2)] == [0, 5]
        response = served.client.post("/v1/completions", json={"prompt": "a", "cache_salt": "s" * 257}, headers=ANNA)
        assert error_of(response)["param"] == "cache_salt"


def test_keys_of_one_owner_share_what_was_computed() -> None:
    keys = (ApiKey.of("old", "anna"), ApiKey.of("new", "anna"))
    with serving(FakeEngine(), http=HttpConfig(api_keys=keys)) as served:
        answers = [complete(served, {"x-api-key": secret}) for secret in ("old", "new")]
        assert cached_tokens(answers[1]) == 5


def submitted(monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """What reaches the service from now on."""
    noted: list[GenerationRequest] = []
    listen = Service.listen

    def note(
        self: Service, requests: Sequence[GenerationRequest], takes: Sequence[Callable[[Event], None]]
    ) -> Callable[[], None]:
        noted.extend(requests)
        return listen(self, requests, takes)

    monkeypatch.setattr(Service, "listen", note)
    return noted


def test_a_keys_name_is_the_owner_of_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(FakeEngine(), template=LineTemplate(), http=TWO_KEYS) as served:
        requests = submitted(monkeypatch)
        complete(served, ANNA)
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        assert served.client.post("/v1/chat/completions", json=chat, headers=BORIS).status_code == 200
    assert [request.owner for request in requests] == ["anna", "boris"]


@pytest.mark.parametrize("header", list(PriorityHeader))
def test_a_keys_lane_is_what_its_requests_may_ask_for(header: PriorityHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tuple(ApiKey.of(lane.value, lane.value, lane) for lane in Lane)
    with serving(FakeEngine(), http=HttpConfig(api_keys=keys, priority_header=header)) as served:
        requests = submitted(monkeypatch)
        for lane in Lane:
            complete(served, {"x-api-key": lane.value}, priority="high")
            complete(served, {"x-api-key": lane.value})
    high, normal, low = Lane.HIGH, Lane.NORMAL, Lane.LOW
    assert [request.priority for request in requests] == [high, normal, normal, normal, low, low]


def test_slots_show_the_names_of_ones_own_requests_only() -> None:
    engine = FakeEngine(n_ctx=64_000, n_slots=1, step_s=0.005)
    with serving(engine, http=TWO_KEYS) as served:
        served.client.headers.update(ANNA)
        with running(served, session="talk"):
            (own,) = served.client.get("/slots").json()
            served.client.headers["Authorization"] = "Bearer sk-boris"
            (foreign,) = served.client.get("/slots").json()
        wait_until(lambda: served.service.stats().idle_slots == 1)
        parked = [served.client.get("/slots?parked=1", headers=headers).json()[-1] for headers in (ANNA, {})]
    assert own["session"] == "talk"
    assert own["request_id"].startswith("cmpl-")
    assert foreign["is_processing"]
    assert not {"session", "request_id"} & foreign.keys()
    assert [item.get("session") for item in parked] == ["talk", None]


ORIGIN = "https://app.example.com"


def test_a_web_page_gets_no_permission_unless_it_was_given() -> None:
    with serving(FakeEngine(), http=SMALL_BODIES) as served:
        response = served.client.get("/v1/models", headers={"Origin": ORIGIN})
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(("allowed", "answer"), [(ORIGIN, ORIGIN), ("*", "*"), ("https://other.example.com", None)])
def test_an_allowed_web_page_may_ask_and_learns_of_errors_too(allowed: str, answer: str | None) -> None:
    http = HttpConfig(cors_origins=(allowed,), api_keys=TWO_KEYS.api_keys)
    with serving(FakeEngine(), http=http) as served:
        asks = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
        asks["Access-Control-Request-Headers"] = "authorization,content-type"
        preflight = served.client.options("/v1/chat/completions", headers=asks)
        responses = [served.client.get("/v1/models", headers={"Origin": ORIGIN, **key}) for key in (ANNA, {})]
    assert preflight.status_code == (400 if answer is None else 200), "no key is asked of it"
    assert [response.status_code for response in responses] == [200, 401]
    for response in (preflight, *responses):
        assert response.headers.get("access-control-allow-origin") == answer
        assert "access-control-allow-credentials" not in response.headers
    if answer is not None:
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        assert "x-request-id" in responses[0].headers["access-control-expose-headers"]
