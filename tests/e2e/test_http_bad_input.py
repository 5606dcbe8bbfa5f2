"""Bad input against the real server: the right status, a message with value and limit, and the next request works."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from llamaserve.api.openai.tokenizing import COUNTED_PIECE, SURELY_TOO_LONG
from tests.e2e.http_server import MODEL_NAME, N_CTX, RealServer

HUGE_TEXT = "The quick brown fox jumps over the lazy dog. " * 45_000

BAD_INPUTS: dict[str, tuple[str, bytes | dict[str, object], int, tuple[str, ...]]] = {
    "malformed JSON": ("completions", b'{"prompt": "x"', 400, ("JSON",)),
    "invalid UTF-8": ("completions", b'{"prompt": "\xff\xfe"}', 400, ("UTF-8",)),
    "a lone surrogate": ("completions", b'{"prompt": "\\udead"}', 400, ("JSON",)),
    "a nesting bomb": ("chat/completions", b"[" * 100_000, 400, ("nested",)),
    "a wrong type": ("completions", {"prompt": "x", "temperature": "hot"}, 400, ("temperature", "string")),
    "messages of the wrong type": ("chat/completions", {"messages": "hi"}, 400, ("messages", "array", "string")),
    "an unknown model": ("chat/completions", {"messages": [], "model": "gpt-7"}, 404, ("gpt-7", MODEL_NAME)),
    "temperature -1": ("completions", {"prompt": "x", "temperature": -1}, 400, ("temperature", "-1", "0", "100")),
    "max_tokens -2": ("completions", {"prompt": "x", "max_tokens": -2}, 400, ("max_tokens", "-2", "0")),
    "a token id too large": ("completions", {"prompt": [10**6]}, 400, ("1000000", "49151")),
    "a token id too large for C": ("completions", {"prompt": [2**70]}, 400, (str(2**70),)),
    "an echoed token id too large for C": ("completions", {"prompt": [2**70], "echo": True}, 400, (str(2**70),)),
    "a negative token id": ("completions", {"prompt": [-5]}, 400, ("-5",)),
    "an empty prompt": ("completions", {"prompt": ""}, 400, ("empty",)),
    "an empty list": ("completions", {"prompt": []}, 400, ("empty",)),
    "no messages": ("chat/completions", {"messages": []}, 400, ("messages",)),
    "more messages than the context has tokens": (
        "chat/completions",
        {"messages": [{"role": "user", "content": "x"}] * 20_000},
        400,
        ("at least 20000 tokens", str(N_CTX)),
    ),
    "an image": (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        ("messages[0].content[0].type", "image_url"),
    ),
    "a tool": ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, 400, ("tools",)),
    "a prompt over the context": ("completions", {"prompt": "word " * 9000}, 400, ("9001 tokens", str(N_CTX))),
    "token ids over the context": ("completions", {"prompt": [1] * 9000}, 400, ("9000", str(N_CTX))),
    "a body over the limit": ("completions", b'{"prompt": "' + b"x" * 9_000_000 + b'"}', 413, ("8388608",)),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_answered_and_the_next_request_is_served(http_server: RealServer, name: str, stream: bool) -> None:
    path, body, status, says = BAD_INPUTS[name]
    content = body if isinstance(body, bytes) else json.dumps({**body, "stream": stream}).encode()
    response = http_server.client.post(f"/v1/{path}", content=content)
    assert response.status_code == status, response.text
    message = response.json()["error"]["message"]
    assert all(word in message for word in says), message
    assert_serves(http_server)


def assert_serves(server: RealServer) -> None:
    """A good request gets its answer."""
    answer = server.client.post("/v1/completions", json={"prompt": "The sea is", "max_tokens": 2, "ignore_eos": True})
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("text", [HUGE_TEXT, "x" * 2_000_000, "é" * 1_000_000], ids=["words", "one word", "not ASCII"])
def test_two_megabytes_of_text_are_refused_early_while_others_are_served(
    http_server: RealServer, path: str, text: str
) -> None:
    body: dict[str, object] = {"prompt": text}
    if path.startswith("chat"):
        body = {"messages": [{"role": "user", "content": text}]}
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(http_server.client.post, f"/v1/{path}", json=body)
        assert_serves(http_server)
        response = refused.result()
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert response.json()["error"]["n_ctx"] == N_CTX
    # As much was tokenised as shows that it does not fit, a piece of it at a time.
    assert response.json()["error"]["n_prompt_tokens"] <= SURELY_TOO_LONG * N_CTX + COUNTED_PIECE
