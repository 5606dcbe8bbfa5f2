"""llama-server's routes about tokens and the model, in its words."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import msgspec
import pytest

from llamaserve.api.native.tokens import MAX_CHARACTERS, MAX_PIECES, MAX_TEXTS, MAX_TOKENS
from llamaserve.config import HttpConfig
from llamaserve.engine.fake import BOS, EOS, N_VOCAB, FakeEngine
from llamaserve.service import Service
from tests.api.served import MODEL, LineTemplate, Served, serving
from tests.api.test_endpoints import error_of

LARGE_BODIES = HttpConfig()


def post(served: Served, path: str, **fields: object) -> dict[str, object]:
    response = served.client.post(path, json=fields)
    assert response.status_code == 200, response.text
    body = response.json()
    assert isinstance(body, dict)
    return body


def refused(served: Served, path: str, **fields: object) -> dict[str, object]:
    response: httpx.Response = served.client.post(path, json=fields)
    assert response.status_code == 400
    return error_of(response)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"content": "ab"}, [97, 98]),
        ({"content": ""}, []),
        ({"content": "a", "add_special": True}, [BOS, 97]),
        ({"content": "a<eos>"}, [97, EOS]),
        ({"content": "<eos>", "parse_special": False}, list(b"<eos>")),
        ({"content": ["a", 5, "b"]}, [97, 5, 98]),
        ({"content": ["a", "b"], "add_special": True}, [BOS, 97, 98]),
        ({"content": [5, "b"], "add_special": True}, [5, 98]),
        ({"content": "a", "add_special": None, "parse_special": None, "with_pieces": None, "model": MODEL}, [97]),
    ],
)
def test_a_text_becomes_tokens(served: Served, fields: dict[str, object], tokens: list[int]) -> None:
    assert post(served, "/tokenize", **fields) == {"tokens": tokens}


def test_pieces_are_text_or_bytes_where_they_are_no_characters(served: Served) -> None:
    assert post(served, "/tokenize", content="aé<eos>", with_pieces=True)["tokens"] == [
        {"id": 97, "piece": "a"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
        {"id": EOS, "piece": "<eos>"},
    ]


def test_tokens_become_a_text(served: Served) -> None:
    assert post(served, "/detokenize", tokens=[*"é".encode(), EOS, 0xFF]) == {
        "content": "é<eos>\ufffd",
        "prompt": "é<eos>\ufffd",
    }
    assert post(served, "/detokenize", tokens=[]) == {"content": "", "prompt": ""}


def test_a_text_becomes_tokens_in_vllms_words_too(served: Served) -> None:
    n_ctx = served.service.info.n_ctx_seq
    assert post(served, "/tokenize", prompt="a<eos>") == {"tokens": [BOS, 97, EOS], "count": 3, "max_model_len": n_ctx}
    assert post(served, "/tokenize", prompt="a", add_special_tokens=False)["tokens"] == [97]
    assert post(served, "/tokenize", prompt="")["tokens"] == [BOS]


def test_a_client_without_a_tokenizer_finds_out_all_it_needs() -> None:
    """As lm-eval does with tokenizer_backend=remote."""
    engine = FakeEngine()
    engine.info.metadata.update(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.chat_template": "{{ messages }}",
            "tokenizer.ggml.bos_token_id": str(BOS),
            "tokenizer.ggml.eos_token_id": str(EOS),
        }
    )
    with serving(engine) as served:
        info = served.client.get("/tokenizer_info").json()
        assert info == {
            "tokenizer_class": "gpt2",
            "model_max_length": served.service.info.n_ctx_seq,
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": None,
            "unk_token": None,
            "chat_template": "{{ messages }}",
        }
        assert post(served, "/tokenize", prompt=info["eos_token"], add_special_tokens=False)["tokens"] == [EOS]
        assert post(served, "/detokenize", tokens=[97, 98])["prompt"] == "ab"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": "a", "prompt": "a"}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "return_token_strs": True}, "return_token_strs"),
        ("/tokenize", {"content": [1.5]}, "content[0]"),
        ("/tokenize", {"content": "a", "add_special": "yes"}, "add_special"),
        ("/tokenize", {"content": [N_VOCAB], "with_pieces": True}, "content"),
        ("/tokenize", {"content": ["a", -1]}, "content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [N_VOCAB]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/v1/chat/completions/input_tokens", {"messages": [{"role": "wizard"}]}, "messages[0].role"),
    ],
)
def test_what_is_wrong_is_named(served: Served, path: str, fields: dict[str, object], param: str) -> None:
    assert refused(served, path, **fields)["param"] == param


def test_too_much_text_is_refused_before_it_is_tokenised() -> None:
    with serving(FakeEngine(), http=LARGE_BODIES) as served:
        error = refused(served, "/tokenize", content=["x" * MAX_CHARACTERS, "y"])
        assert str(MAX_CHARACTERS + 1) in str(error["message"])
        assert error["param"] == "content"
        error = refused(served, "/detokenize", tokens=[1] * (MAX_TOKENS + 1))
        assert (str(MAX_TOKENS + 1) in str(error["message"]), error["param"]) == (True, "tokens")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/apply-template", "/chat/completions/input_tokens"])
def test_another_model_is_not_found(served: Served, path: str) -> None:
    fields = {"content": "", "tokens": [], "messages": [{"role": "user"}], "model": "other"}
    assert served.client.post(path, json=fields).status_code == 404


def test_a_conversation_is_written_and_counted_as_a_chat_computes_it(served: Served) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert post(served, "/apply-template", messages=messages) == {"prompt": "user: hi\nassistant: "}
    n_tokens = served.chat(messages=messages).json()["usage"]["prompt_tokens"]
    for path in ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"):
        counted = post(served, path, messages=messages)
        assert counted == {"input_tokens": n_tokens, "object": "response.input_tokens"}


def test_a_model_without_a_template_says_so_and_too_many_messages_are_too_long() -> None:
    messages = [{"role": "user", "content": "hi"}] * 70
    with serving(FakeEngine(n_ctx=64)) as served:
        assert "no chat template" in str(refused(served, "/apply-template", messages=messages)["message"])
    with serving(FakeEngine(n_ctx=64), template=LineTemplate()) as served:
        assert refused(served, "/apply-template", messages=messages)["code"] == "context_length_exceeded"


def test_props_say_what_the_model_is_and_how_it_is_served(served: Served) -> None:
    props = served.client.get("/props").json()
    assert (props["total_slots"], props["model_alias"]) == (served.service.info.n_slots, MODEL)
    assert props["default_generation_settings"]["n_ctx"] == served.service.info.n_ctx_seq
    params = props["default_generation_settings"]["params"]
    expected = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 2**32 - 1, "n_predict": -1}
    assert expected.items() <= params.items()
    assert (params["stop"], params["logit_bias"], params["stream"]) == ([], [], False)
    assert props["modalities"] == {"vision": False, "audio": False, "video": False}
    assert props["build_info"].startswith("llamaserve-")
    assert (props["endpoint_slots"], props["endpoint_metrics"], props["endpoint_props"]) == (True, True, False)


def test_props_take_template_and_tokens_from_the_file_and_show_its_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    engine.info.metadata.update(
        {
            "tokenizer.chat_template": "{{ messages }}",
            "tokenizer.ggml.bos_token_id": str(BOS),
            "tokenizer.ggml.eos_token_id": str(N_VOCAB),
        }
    )
    monkeypatch.setattr(Service, "model_path", Path("/secret/folder/tiny.gguf"))
    with serving(engine) as served:
        response = served.client.get("/props")
    props = response.json()
    assert props["chat_template"] == "{{ messages }}"
    assert (props["bos_token"], props["eos_token"]) == ("<bos>", "")
    assert props["model_path"] == "tiny.gguf"
    assert "secret" not in response.text


def test_the_models_are_listed_under_llama_servers_path_too(served: Served) -> None:
    assert served.client.get("/models").json() == served.client.get("/v1/models").json()


def test_too_many_tokens_are_refused_before_they_are_looked_at() -> None:
    with serving(FakeEngine(), http=LARGE_BODIES) as served:
        error = refused(served, "/tokenize", content=[1] * (MAX_TOKENS + 1))
        assert (str(MAX_TOKENS + 1) in str(error["message"]), error["param"]) == (True, "content")
        assert len(post(served, "/tokenize", content=[1] * (MAX_PIECES + 1))["tokens"]) == MAX_PIECES + 1  # type: ignore[arg-type]  # a list
        error = refused(served, "/tokenize", content=["x"] * (MAX_TEXTS + 1))
        assert (f"has {MAX_TEXTS + 1} texts" in str(error["message"]), error["param"]) == (True, "content")
        error = refused(served, "/tokenize", content=["x" * MAX_PIECES, 1], with_pieces=True)
        assert (str(MAX_PIECES) in str(error["message"]), error["param"]) == (True, "content")


def test_answers_about_tokens_are_written_where_they_are_found(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    encode = msgspec.json.encode

    def watched(value: object) -> bytes:
        threads.append(threading.current_thread().name)
        return encode(value)

    monkeypatch.setattr(msgspec.json, "encode", watched)
    post(served, "/tokenize", content="ab", with_pieces=True)
    post(served, "/detokenize", tokens=[97])
    assert [name.startswith("llamaserve-prepare") for name in threads] == [True, True]
