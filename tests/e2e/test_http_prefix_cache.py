"""The prefix cache of the real server: what answers, metrics and ``/slots`` say of it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from llamaserve.config import CacheConfig
from tests.e2e.http_server import MODEL_NAME, N_SLOTS, RealServer, real_server, wait_until
from tests.e2e.test_http_metrics import scrape


def text(opening: str, n_words: int) -> str:
    """A text that begins with a token no other test begins with, three or more tokens a word."""
    words = random.Random(opening)
    return " ".join([opening, *(f"{words.getrandbits(24):06x}" for _ in range(n_words))])


def complete(server: RealServer, prompt: object, **fields: object) -> dict[str, Any]:
    """The answer, once what it left can be found."""
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
    answer = server.client.post("/v1/completions", json=body).raise_for_status().json()
    wait_until(lambda: server.service.stats().active_slots == 0)
    assert isinstance(answer, dict)
    return answer


def counts(answer: dict[str, Any]) -> tuple[int, int]:
    """Prompt tokens, and those of them that were cached."""
    usage = answer["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def test_the_same_prompt_again_is_cached_but_for_its_last_token(http_server: RealServer) -> None:
    """S18."""
    prompt = text("Quartz", 40)
    before = scrape(http_server.client)
    n_prompt, n_cached = counts(complete(http_server, prompt))
    assert n_cached == 0
    assert counts(complete(http_server, prompt)) == (n_prompt, n_prompt - 1)
    after = scrape(http_server.client)
    moved = {name: after[name] - number for name, number in before.items()}
    assert moved["llamaserve_prompt_tokens_total"] == n_prompt + 1
    assert moved["llamaserve_cached_tokens_total"] == n_prompt - 1
    assert moved["vllm:prompt_tokens_total"] == 2 * n_prompt
    assert after["llamaserve_prefix_sharing"] == 1


def test_the_second_turn_of_a_chat_computes_only_what_is_new(http_server: RealServer) -> None:
    """S45: the answer of the first turn is not computed again either."""
    messages = [{"role": "user", "content": f"Repeat this: {text('Walnut', 30)}"}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": 40, "temperature": 0}
    first = http_server.client.post("/v1/chat/completions", json=body).raise_for_status().json()
    wait_until(lambda: http_server.service.stats().active_slots == 0)
    n_first, n_cached_first = counts(first)
    assert n_cached_first < n_first // 2  # what the template writes before the message
    said = first["choices"][0]["message"]["content"]
    body["messages"] = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "Again."}]
    second = http_server.client.post("/v1/chat/completions", json=body).raise_for_status().json()
    n_second, n_cached = counts(second)
    assert n_first <= n_cached < n_second
    assert n_second - n_cached < n_second // 2


def test_requests_at_once_compute_their_common_prefix_once(http_server: RealServer) -> None:
    """S22, K1: twice as many as there are slots."""
    vocab = http_server.service.vocab
    prefix = vocab.tokenize(text("Nimbus", 120), add_special=True, parse_special=False)
    tails = [vocab.tokenize(f" {letter} said so", add_special=False, parse_special=False) for letter in "ABCDEFGH" * 2]
    prompts = [[*prefix, 1000 + number, *tail] for number, tail in enumerate(tails)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt: complete(http_server, prompt), prompts))
    n_computed = sum(n_prompt - n_cached for n_prompt, n_cached in map(counts, answers))
    assert len(prompts) == 2 * N_SLOTS
    assert n_computed == len(prefix) + sum(len(prompt) - len(prefix) for prompt in prompts)


def test_cache_prompt_and_salts_are_honoured(http_server: RealServer) -> None:
    """S17, K40."""
    prompt = text("Velvet", 30)
    assert counts(complete(http_server, prompt, cache_prompt=False))[1] == 0
    assert counts(complete(http_server, prompt, cache_salt="one"))[1] == 0
    assert counts(complete(http_server, prompt, cache_salt="two"))[1] == 0
    assert counts(complete(http_server, prompt, cache_prompt=False))[1] == 0
    n_prompt, n_cached = counts(complete(http_server, prompt, cache_salt="one"))
    assert n_cached == n_prompt - 1


def test_a_session_is_found_among_the_parked(http_server: RealServer) -> None:
    session = "a talk"
    n_prompt, _ = counts(complete(http_server, text("Jasmine", 30), session=session))
    items = http_server.client.get("/slots?parked=true").raise_for_status().json()
    assert [item["state"] for item in items[:N_SLOTS]] == ["idle"] * N_SLOTS
    (parked,) = (item for item in items if item.get("session") == session)
    assert parked["state"] == "parked"
    assert parked["n_tokens"] == n_prompt + 3  # the last of four tokens was drawn, not decoded
    assert len(http_server.client.get("/slots").json()) == N_SLOTS


def test_the_first_request_after_a_restart_finds_what_the_disk_has(tmp_path: Path) -> None:
    """S75: and answers as before."""
    cache = CacheConfig(cache_disk=tmp_path / "kept", cache_disk_gib=1)
    prompt = text("Kettle", 100)
    with real_server(cache) as server:
        complete(server, prompt)
        before = complete(server, prompt)  # as the one after the restart: all cached but the last token
        assert server.service.model_name == MODEL_NAME
    with real_server(cache) as server:
        after = complete(server, prompt)
        metrics = scrape(server.client)
    n_prompt, n_cached = counts(after)
    assert n_cached == n_prompt - 1
    assert after["choices"] == before["choices"]
    assert metrics["llamaserve_prefix_restores_total"] == 1
    assert metrics["llamaserve_cached_tokens_total"] == n_cached
