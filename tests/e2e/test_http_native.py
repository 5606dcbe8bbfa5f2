"""llama-server's routes over the default model."""

from __future__ import annotations

import json

from tests.e2e.http_server import MODEL_NAME, N_CTX, RealServer

TEXT = "The capital of France is"
ALIKE: dict[str, object] = {"temperature": 0, "cache_prompt": False}
"""What requests send whose texts are compared: a prompt computed in other pieces may round otherwise."""


def test_a_text_survives_tokens_and_back(http_server: RealServer) -> None:
    client = http_server.client
    tokens = client.post("/tokenize", json={"content": TEXT + " é€🙂<|im_end|>"}).json()["tokens"]
    text = TEXT + " é€🙂<|im_end|>"
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"content": text, "prompt": text}
    pieces = client.post("/tokenize", json={"content": TEXT + " €", "with_pieces": True}).json()["tokens"]
    assert "".join(item["piece"] for item in pieces if isinstance(item["piece"], str)).startswith(TEXT)
    for tokens in ([2**70], [-1], [49152]):
        assert client.post("/detokenize", json={"tokens": tokens}).status_code == 400


def test_the_tokenizer_is_described_by_the_model_file(http_server: RealServer) -> None:
    client = http_server.client
    info = client.get("/tokenizer_info").json()
    assert (info["tokenizer_class"], info["eos_token"]) == ("gpt2", "<|im_end|>")
    assert "message" in info["chat_template"]
    asked = {"prompt": info["eos_token"], "add_special_tokens": False}
    assert len(client.post("/tokenize", json=asked).json()["tokens"]) == 1


def test_a_text_ends_at_a_line(http_server: RealServer) -> None:
    asked = {"prompt": "def add(a, b):", "n_predict": 60, "ignore_eos": True, **ALIKE}
    whole = http_server.client.post("/completion", json=asked).json()["content"]
    answer = http_server.client.post("/completion", json={**asked, "n_indent": 1}).json()
    lines = answer["content"].split("\n")
    assert whole.startswith(answer["content"])
    assert whole != answer["content"]
    assert all(line[:1] in (" ", "\t") for line in lines[1:-1])
    assert answer["stop_type"] == "limit"


def test_props_name_the_file_and_its_tokens(http_server: RealServer) -> None:
    props = http_server.client.get("/props").json()
    assert (props["model_alias"], props["default_generation_settings"]["n_ctx"]) == (MODEL_NAME, N_CTX)
    assert props["model_path"].endswith(".gguf")
    assert "/" not in props["model_path"]
    assert "<|im_start|>" in props["chat_template"]
    assert props["eos_token"] == "<|im_end|>"


def test_a_completion_is_the_same_from_text_tokens_and_in_pieces(http_server: RealServer) -> None:
    client = http_server.client
    tokens = client.post("/tokenize", json={"content": TEXT, "add_special": True}).json()["tokens"]
    body = {"n_predict": 8, **ALIKE}
    answers = [client.post("/completion", json={"prompt": prompt, **body}).json() for prompt in (TEXT, tokens)]
    assert answers[0]["content"] == answers[1]["content"]
    assert (answers[0]["prompt"], answers[0]["tokens_evaluated"]) == (TEXT, len(tokens))
    with client.stream("POST", "/completion", json={"prompt": TEXT, "stream": True, **body}) as response:
        chunks = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data")]
    assert "".join(chunk["content"] for chunk in chunks) == answers[0]["content"]
    assert chunks[-1]["stop_type"] == "limit"


def test_a_template_is_what_a_chat_computes(http_server: RealServer) -> None:
    client = http_server.client
    messages = [{"role": "user", "content": "Hi"}]
    prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    body = {"max_tokens": 6, **ALIKE}
    chat = client.post("/v1/chat/completions", json={"messages": messages, **body}).json()
    plain = client.post("/completion", json={"prompt": prompt, **body}).json()
    assert plain["content"] == chat["choices"][0]["message"]["content"]
    counted = client.post("/v1/chat/completions/input_tokens", json={"messages": messages}).json()
    assert counted["input_tokens"] == chat["usage"]["prompt_tokens"]


def test_infill_is_not_supported_by_the_default_model(http_server: RealServer) -> None:
    body = {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "n_predict": 4}
    response = http_server.client.post("/infill", json=body)
    assert http_server.service.vocab.fim_tokens is None
    assert response.status_code == 501
