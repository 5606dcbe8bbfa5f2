"""The endpoints over a real socket and a fake engine, answers that are not streamed."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from llamaserve.chat.template import PLAIN_CHAT, ChatOptions, RenderedChat
from llamaserve.config import SchedulerConfig
from llamaserve.engine.fake import BOS, FakeEngine
from llamaserve.errors import DecodeFailed
from tests.api.conftest import REPLIES
from tests.api.served import MODEL, LineTemplate, Served, serving, wait_until


def error_of(response: httpx.Response) -> dict[str, object]:
    """The error object; fails if the body is anything else."""
    body = response.json()
    assert list(body) == ["error"]
    detail = body["error"]
    assert isinstance(detail, dict)
    assert {"message", "type", "param", "code"} <= detail.keys()
    assert response.headers["x-request-id"]
    return detail


def assert_still_serves(served: Served) -> None:
    """The request after a bad one is answered as ever."""
    assert served.complete("Hello").json()["choices"][0]["text"] == " world, good morning"


def test_health_is_ok(served: Served) -> None:
    for path in ("/health", "/v1/health"):
        response = served.client.get(path)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_the_model_is_listed_and_shown(served: Served) -> None:
    listed = served.client.get("/v1/models").json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert (model["id"], model["object"], model["meta"]["n_vocab"]) == (MODEL, "model", 258)
    assert isinstance(model["created"], int)
    assert served.client.get(f"/v1/models/{MODEL}").json() == model


def test_a_model_nobody_serves_is_not_found(served: Served) -> None:
    for response in (served.client.get("/v1/models/hf:some/other"), served.complete(model="other")):
        assert response.status_code == 404
        assert error_of(response)["code"] == "model_not_found"
    assert_still_serves(served)


@pytest.mark.parametrize("model", [MODEL, "", None])
def test_the_served_model_may_be_named_or_not(served: Served, model: str | None) -> None:
    assert served.complete(model=model).json()["model"] == MODEL


def test_a_completion_has_text_reason_and_usage(served: Served) -> None:
    body = served.complete("Hello", cache_prompt=False).json()
    assert body["id"].startswith("cmpl-")
    assert isinstance(body["created"], int)
    assert body["system_fingerprint"].startswith("llamaserve-")
    assert body["choices"] == [{"text": " world, good morning", "finish_reason": "stop", "index": 0, "logprobs": None}]
    assert body["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 20,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_chat_has_a_message_reason_and_usage(served: Served) -> None:
    """S41"""
    for path in ("/v1/chat/completions", "/chat/completions"):
        body = served.client.post(path, json={"messages": [{"role": "user", "content": "hi"}]}).json()
        assert body["id"].startswith("chatcmpl-")
        assert body["choices"][0]["message"]["content"] == "Hello there."
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        ([{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}], "Hi."),
        ([{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}], "parts"),
        ([{"role": "assistant"}, {"role": "user", "content": "go on"}], "went on"),
        ([{"role": "tool", "content": "42", "tool_call_id": "c"}], "forty-two"),
    ],
    ids=["developer", "parts", "assistant without content", "tool"],
)
def test_messages_of_every_shape_reach_the_template(served: Served, messages: object, answer: str) -> None:
    assert served.chat(messages=messages).json()["choices"][0]["message"]["content"] == answer


def test_a_prompt_of_token_ids_is_used_as_it_is(served: Served) -> None:
    body = served.complete([BOS, *b"Hello"]).json()
    assert body["choices"][0]["text"] == " world, good morning"
    assert body["usage"]["prompt_tokens"] == 6


def test_max_tokens_and_stop_end_the_text(served: Served) -> None:
    """E7"""
    choice = served.complete(max_tokens=3).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (" wo", "length")
    choice = served.complete(stop=", good").json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (" world", "stop")
    choice = served.complete(stop=["zzz", "morn"]).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (" world, good ", "stop")


def test_text_is_never_cut_inside_a_character(served: Served) -> None:
    """S61"""
    assert served.complete("euro").json()["choices"][0]["text"] == "5 € a 🍏!"
    assert served.complete("euro", max_tokens=3).json()["choices"][0]["text"] == "5 \ufffd"


def test_the_templates_stop_strings_end_a_chat() -> None:
    engine = FakeEngine(continuation=lambda history: b"yes. user:"[len(history) - len(b"?user: hi\nassistant: ")])
    with serving(engine, template=LineTemplate(("user:",))) as served:
        assert served.chat("hi").json()["choices"][0]["message"]["content"] == "yes. "


def test_sampling_fields_reach_the_engine() -> None:
    engine = FakeEngine()
    with serving(engine) as served:
        fields = {"temperature": 0, "top_k": 3, "seed": 11, "logit_bias": {"65": -100}, "ignore_eos": True}
        assert served.complete(max_tokens=2, **fields).status_code == 200
    sampling = engine.opened[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (0.0, 3, 11)
    assert (dict(sampling.logit_bias), sampling.ignore_eos) == ({65: -100.0}, True)


def test_without_max_tokens_the_context_is_the_limit() -> None:
    with serving(FakeEngine(n_ctx=64)) as served:
        body = served.complete("Hello").json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] >= 64


BAD_BODIES = {
    "malformed JSON": (b'{"prompt": "x"', 400, None),
    "invalid UTF-8": (b'{"prompt": "\xff\xfe"}', 400, None),
    "not an object": (b"[]", 400, None),
    "nothing": (b"", 400, None),
    "a nesting bomb": (b"[" * 60_000, 400, None),
    "a nesting bomb in a field": (b'{"prompt": "x", "tools": ' + b"[" * 60_000 + b"}", 400, None),
    "a wrong type": (b'{"prompt": "x", "temperature": "hot"}', 400, "temperature"),
    "temperature -1": (b'{"prompt": "x", "temperature": -1}', 400, "temperature"),
    "max_tokens -2": (b'{"prompt": "x", "max_tokens": -2}', 400, "max_tokens"),
    "an empty prompt": (b'{"prompt": ""}', 400, "prompt"),
    "no prompt": (b"{}", 400, "prompt"),
    "a token id too large": (b'{"prompt": [1, 258]}', 400, "prompt"),
    "a huge token id": (b'{"prompt": [1' + b"0" * 300 + b"]}", 400, "prompt"),
    "a negative token id": (b'{"prompt": [-1]}', 400, "prompt"),
    "token ids beside a text": (b'{"prompt": ["a", 1]}', 400, "prompt"),
    "an empty text in a batch": (b'{"prompt": ["a", ""]}', 400, "prompt"),
    "too many prompts": (b'{"prompt": [' + b'"a",' * 128 + b'"a"]}', 400, "prompt"),
    "more choices than wait and run": (b'{"prompt": ["a", "b"], "n": 35}', 400, "prompt"),
    "logprobs true": (b'{"prompt": "x", "logprobs": true}', 400, "logprobs"),
    "logprobs -1": (b'{"prompt": "x", "logprobs": -1}', 400, "logprobs"),
    "logprobs 101": (b'{"prompt": "x", "logprobs": 101}', 400, "logprobs"),
    "n_probs 101": (b'{"prompt": "x", "n_probs": 101}', 400, "n_probs"),
    "prompt_logprobs 101": (b'{"prompt": "x", "prompt_logprobs": 101}', 400, "prompt_logprobs"),
    "prompt_logprobs true": (b'{"prompt": "x", "prompt_logprobs": true}', 400, "prompt_logprobs"),
    "a suffix without tokens for it": (b'{"prompt": "x", "suffix": "y"}', 400, "suffix"),
    "best_of": (b'{"prompt": "x", "n": 2, "best_of": 3}', 400, "best_of"),
    "n 0": (b'{"prompt": "x", "n": 0}', 400, "n"),
    "n 129": (b'{"prompt": "x", "n": 129}', 400, "n"),
    "n_cmpl 0": (b'{"prompt": "x", "n_cmpl": 0}', 400, "n_cmpl"),
    "an empty stop string": (b'{"prompt": "x", "stop": ""}', 400, "stop"),
    "two": (b'{"prompt": "x", "n": "two"}', 400, "n"),
    "an unknown model": (b'{"prompt": "x", "model": "gpt-7"}', 404, "model"),
    "a body over the limit": (b'{"prompt": "' + b"x" * 70_000 + b'"}', 413, None),
    "a prompt over the context": (b'{"prompt": "' + b"x" * 20_000 + b'"}', 400, "prompt"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("body", "status", "param"), BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_bad_input_is_named_and_the_next_request_is_served(
    served: Served, body: bytes, status: int, param: str | None, stream: bool
) -> None:
    if stream and body.startswith(b"{") and body.endswith(b"}") and len(body) > 2:
        body = body[:-1] + b', "stream": true}'
    response = served.client.post("/v1/completions", content=body)
    assert response.status_code == status, response.text
    assert error_of(response)["param"] == param
    assert response.headers["content-type"] == "application/json"
    assert_still_serves(served)


@pytest.mark.parametrize("messages", [[], "hi", [{"role": "user", "content": [{"type": "image_url"}]}]], ids=str)
def test_bad_messages_are_named(served: Served, messages: object) -> None:
    response = served.chat(messages=messages)
    assert response.status_code == 400
    assert str(error_of(response)["param"]).startswith("messages")


def test_a_prompt_too_long_says_both_numbers(served: Served) -> None:
    error = error_of(served.complete("x" * 5000))
    assert error["code"] == "context_length_exceeded"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (5001, 1024)


def test_a_body_without_a_declared_length_has_the_same_limit(served: Served) -> None:
    response = served.client.post("/v1/completions", content=(b"x" * 1000 for _ in range(200)))
    assert response.status_code == 413
    assert "65536" in str(error_of(response)["message"])
    assert_still_serves(served)


def test_a_chat_without_a_template_points_to_completions() -> None:
    with serving(FakeEngine()) as served:
        response = served.chat("hi")
    assert response.status_code == 400
    assert "/v1/completions" in str(error_of(response)["message"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/health", 405),
        ("POST", "/v1/completions/", 404),
    ],
)
def test_routes_that_do_not_exist_answer_in_the_same_shape(served: Served, method: str, path: str, status: int) -> None:
    response = served.client.request(method, path)
    assert response.status_code == status
    assert path in str(error_of(response)["message"])


def test_a_wrong_method_says_which_are_right(served: Served) -> None:
    assert served.client.get("/v1/completions").headers["allow"] == "POST"


@pytest.mark.parametrize("wish", ["abc-1", "a.b:c_D", "x" * 128])
def test_a_sane_request_id_comes_back(served: Served, wish: str) -> None:
    assert served.client.get("/health", headers={"x-request-id": wish}).headers["x-request-id"] == wish


@pytest.mark.parametrize("wish", ["", "x" * 129, "caf\xe9", "with space", "a=b", "a,b", "a\tb"])
def test_an_odd_request_id_is_replaced(served: Served, wish: str) -> None:
    headers = {b"x-request-id": wish.encode("latin-1")}
    answered = served.client.get("/health", headers=headers).headers["x-request-id"]
    assert answered.startswith("req-")


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/ready", "/metrics", "/slots"])
def test_a_probe_writes_its_line_at_debug_only(served: Served, caplog: pytest.LogCaptureFixture, path: str) -> None:
    with caplog.at_level("DEBUG", logger="llamaserve.http"):
        served.client.get(path, headers={"x-request-id": "probe-1"})
        served.client.get("/v1/models", headers={"x-request-id": "other-1"})
        wait_until(lambda: "probe-1" in caplog.text and "other-1" in caplog.text)
    levels = {
        word: record.levelname
        for record in caplog.records
        for word in ("probe-1", "other-1")
        if word in record.getMessage()
    }
    assert levels == {"probe-1": "DEBUG", "other-1": "INFO"}


def test_every_request_writes_one_line(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="llamaserve.http"):
        served.client.get("/v1/models/x%0Ay", headers={"x-request-id": "line-1"})
        wait_until(lambda: "line-1" in caplog.text)  # the line follows the answer
    (line,) = [message for message in caplog.messages if "line-1" in message]
    assert line.startswith("GET /v1/models/x\\ny 404 ")
    assert line.endswith(" id=line-1")


def test_a_full_queue_is_429_with_retry_after() -> None:
    """S48, K150: and the server is healthy."""
    engine = FakeEngine(n_slots=1, step_s=0.01)
    queued: list[httpx.Response] = []
    with serving(engine, scheduler=SchedulerConfig(max_queue=1)) as served:
        waiter = threading.Thread(target=lambda: queued.append(served.complete("b", max_tokens=1)))
        with served.client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}):
            waiter.start()
            wait_until(lambda: served.service.stats().queue_depth == 1)
            for stream in (False, True):
                refused = served.complete("c", stream=stream)
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) >= 1
                assert refused.headers["x-should-retry"] == "true"
                assert error_of(refused)["code"] == "queue_full"
                assert served.client.get("/health").status_code == 200, "a full queue is no reason to be restarted"
        waiter.join()
    assert [response.status_code for response in queued] == [200]


def test_a_step_that_fails_is_a_500_and_the_next_request_is_served() -> None:
    engine = FakeEngine()
    with serving(engine) as served:
        engine.fail_step(DecodeFailed("llama_decode returned -3"))
        response = served.complete("a", max_tokens=2)
        assert response.status_code == 500
        assert error_of(response)["code"] == "decode_failed"
        assert response.headers["x-should-retry"] == "false"
        assert served.complete("a", max_tokens=2).status_code == 200


def test_an_unexpected_exception_is_a_500_with_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(LineTemplate):
        def render(self, messages: Sequence[Mapping[str, object]], options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
            raise ZeroDivisionError("a bug")

    with serving(FakeEngine(), template=Broken()) as served:
        response = served.chat("hi")
        assert response.status_code == 500
        assert response.headers["x-request-id"] in str(error_of(response)["message"])
        assert "a bug" not in response.text
        assert served.complete("a", max_tokens=1).status_code == 200
    assert "ZeroDivisionError: a bug" in caplog.text


def test_eight_requests_at_once_each_get_their_own_answer(served: Served) -> None:
    prompts = ["Hello", "euro"] * 4
    with ThreadPoolExecutor(len(prompts)) as pool:
        texts = list(pool.map(lambda prompt: served.complete(prompt).json()["choices"][0]["text"], prompts))
    assert texts == [REPLIES[prompt] for prompt in prompts]
