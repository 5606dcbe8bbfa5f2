"""llama-server's routes that compute: prompts of every shape, answers and chunks in its fields and order."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Sequence

import pytest

from llamaserve.api.native.infill import PLAIN_SEPARATOR
from llamaserve.api.native.native_answers import NativeAnswer, NativePlan, NativeStream
from llamaserve.api.openai.answer_plan import AnswerHead, AnswerPlan, PlannedPrompt
from llamaserve.api.openai.shown import Shown
from llamaserve.config import HttpConfig, SchedulerConfig
from llamaserve.engine.fake import BOS, EOS, FakeEngine, FakeVocabulary, scripted
from llamaserve.engine.port import FimTokens
from llamaserve.request import Finished, FinishReason, GenerationRequest, TextDelta, Timings, TokenLogprob
from tests.api.conftest import REPLIES
from tests.api.served import MODEL, LineTemplate, Served, serving
from tests.api.test_endpoints import error_of

FINAL_FIELDS = [
    "index",
    "content",
    "tokens",
    "id_slot",
    "stop",
    "model",
    "tokens_predicted",
    "tokens_evaluated",
    "generation_settings",
    "prompt",
    "has_new_line",
    "truncated",
    "stop_type",
    "stopping_word",
    "tokens_cached",
    "timings",
]
PARTIAL_FIELDS = ["index", "content", "tokens", "stop", "id_slot", "tokens_predicted", "tokens_evaluated"]


def post(served: Served, path: str = "/completion", **fields: object) -> dict[str, object]:
    response = served.client.post(path, json=fields)
    assert response.status_code == 200, response.text
    body = response.json()
    assert isinstance(body, dict)
    return body


def posted_list(served: Served, **fields: object) -> list[dict[str, object]]:
    response = served.client.post("/completion", json=fields)
    assert response.status_code == 200, response.text
    body = response.json()
    assert isinstance(body, list)
    return body


def events(served: Served, **fields: object) -> list[dict[str, object]]:
    response = served.client.post("/completion", json={"stream": True, **fields})
    assert response.headers["content-type"].startswith("text/event-stream")
    parts = [part for part in response.text.split("\n\n") if part and not part.startswith(":")]
    return [json.loads(part.removeprefix("data: ")) for part in parts]


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_an_answer_has_llama_servers_fields_in_its_order(served: Served, path: str) -> None:
    answer = post(served, path, prompt="Hello", n_predict=100, cache_prompt=False)
    assert list(answer) == FINAL_FIELDS
    assert (answer["content"], answer["tokens"], answer["stop"]) == (" world, good morning", [], True)
    assert (answer["model"], answer["prompt"], answer["index"]) == (MODEL, "<bos>Hello", 0)
    assert (answer["tokens_predicted"], answer["tokens_evaluated"], answer["tokens_cached"]) == (20, 6, 0)
    assert (answer["stop_type"], answer["stopping_word"], answer["truncated"]) == ("eos", "", False)
    timings = answer["timings"]
    assert isinstance(timings, dict)
    assert (timings["prompt_n"], timings["predicted_n"], timings["cache_n"]) == (6, 20, 0)


@pytest.mark.parametrize(
    ("fields", "stop_type", "word", "text"),
    [
        ({"n_predict": 3}, "limit", "", " wo"),
        ({"max_tokens": 3}, "limit", "", " wo"),
        ({"stop": [", good"]}, "word", ", good", " world"),
        ({}, "eos", "", " world, good morning"),
    ],
)
def test_it_says_what_ended_the_text(
    served: Served, fields: dict[str, object], stop_type: str, word: str, text: str
) -> None:
    answer = post(served, prompt="Hello", **fields)
    assert (answer["stop_type"], answer["stopping_word"], answer["content"]) == (stop_type, word, text)
    *_, last = events(served, prompt="Hello", **fields)
    assert (last["stop_type"], last["stopping_word"]) == (stop_type, word)


def test_the_end_of_the_context_is_a_limit_and_truncates() -> None:
    with serving(FakeEngine(n_ctx=64)) as served:
        answer = post(served, prompt="a")
        assert (answer["stop_type"], answer["truncated"]) == ("limit", True)


def test_the_settings_are_those_the_text_was_made_with(served: Served) -> None:
    fields = {"temperature": 0.5, "seed": 7, "logit_bias": [[65, -2.5], [66, False]], "n_predict": 4, "stop": ["x"]}
    settings = post(served, prompt="Hello", **fields)["generation_settings"]
    assert isinstance(settings, dict)
    expected = {"temperature": 0.5, "seed": 7, "n_predict": 4, "max_tokens": 4, "stop": ["x"], "stream": False}
    assert expected.items() <= settings.items()
    assert settings["logit_bias"] == [{"token": 65, "bias": -2.5}, {"token": 66, "bias": False}]
    *_, last = events(served, prompt="Hello")
    assert isinstance(last["generation_settings"], dict)
    assert (last["generation_settings"]["stream"], last["generation_settings"]["n_predict"]) == (True, -1)


def test_a_stream_is_partial_objects_and_a_final_one_without_an_end_mark(served: Served) -> None:
    *partial, last = events(served, prompt="Hello")
    assert "".join(str(chunk["content"]) for chunk in partial) == " world, good morning"
    assert all(list(chunk) == PARTIAL_FIELDS for chunk in partial)
    assert not any(chunk["stop"] for chunk in partial)
    assert [token for chunk in partial for token in _tokens(chunk)] == list(b" world, good morning")
    assert partial[-1]["tokens_predicted"] == 20
    assert list(last) == FINAL_FIELDS
    assert (last["content"], last["tokens"], last["stop"], last["tokens_predicted"]) == ("", [], True, 20)


def _tokens(chunk: dict[str, object]) -> Sequence[int]:
    tokens = chunk["tokens"]
    assert isinstance(tokens, list)
    return tokens


def test_tokens_held_back_come_with_the_text_they_belong_to(served: Served) -> None:
    """The euro sign has three bytes, each of them a token here."""
    *partial, _ = events(served, prompt="euro")
    assert [_tokens(chunk) for chunk in partial if chunk["content"] == "€"] == [list("€".encode())]


def test_a_stream_can_say_how_far_the_prompt_is_and_how_long_all_took(served: Served) -> None:
    first, *rest, _ = events(served, prompt="Hello", return_progress=True, timings_per_token=True, cache_prompt=False)
    assert first["prompt_progress"] == {"total": 6, "cache": 0, "processed": 6, "time_ms": pytest.approx(0, abs=5000)}
    assert all("prompt_progress" not in chunk for chunk in rest)
    assert all(isinstance(chunk["timings"], dict) for chunk in (first, *rest))


def test_tokens_are_returned_to_those_who_ask(served: Served) -> None:
    assert post(served, prompt="Hello", return_tokens=True)["tokens"] == list(b" world, good morning")


@pytest.mark.parametrize(
    "prompt",
    [
        "Hello",
        [BOS, *b"Hello"],
        ["Hello"],
        ["Hel", 108, "o"],
        [BOS, "Hello"],
        [["Hel", "lo"]],
        [[BOS, *b"Hello"]],
        {"prompt_string": "Hello"},
        [{"prompt_string": "Hello", "multimodal_data": []}],
    ],
)
def test_a_prompt_of_every_shape_is_one_prompt(served: Served, prompt: object) -> None:
    answer = post(served, prompt=prompt)
    assert (answer["content"], answer["tokens_evaluated"]) == (" world, good morning", 6)


def test_a_list_of_prompts_is_a_list_of_answers(served: Served) -> None:
    answers = posted_list(served, prompt=["Hello", [BOS, *b"euro"], {"prompt_string": "Hello"}], n_predict=3)
    assert [answer["content"] for answer in answers] == [" wo", "5 \ufffd", " wo"]
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    assert [answer["prompt"] for answer in answers] == ["<bos>Hello", "<bos>euro", "<bos>Hello"]
    answers = posted_list(served, prompt="Hello", n_cmpl=2)
    assert [answer["content"] for answer in answers] == [" world, good morning"] * 2


def test_a_stream_of_several_prompts_tells_them_apart(served: Served) -> None:
    chunks = events(served, prompt=["Hello", "euro"], n_predict=3)
    texts = ["".join(str(chunk["content"]) for chunk in chunks if chunk["index"] == index) for index in (0, 1)]
    assert texts == [" wo", "5 \ufffd"]
    assert sorted(str(chunk["index"]) for chunk in chunks if chunk["stop"]) == ["0", "1"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [["", ""]]}, "prompt"),
        ({"prompt": [300]}, "prompt"),
        ({"prompt": [2**70, "a"]}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["aGk="]}}, "prompt"),
        ({"prompt": "a", "n_predict": -2}, "n_predict"),
        ({"prompt": "a", "n_indent": -1}, "n_indent"),
        ({"prompt": "a", "post_sampling_probs": True}, "post_sampling_probs"),
        ({"prompt": "a", "t_max_predict_ms": -2}, "t_max_predict_ms"),
        ({"prompt": "a", "samplers": ["top_k", "infill"]}, "samplers"),
        ({"prompt": "a", "logprobs": 101}, "logprobs"),
        ({"prompt": "a", "lora": [{"id": 0, "scale": 1}]}, "lora"),
        ({"prompt": "a", "n_probs": -1}, "n_probs"),
        ({"prompt": "a", "response_fields": "content"}, "response_fields"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(served: Served, fields: dict[str, object], param: str) -> None:
    for stream in (False, True):
        response = served.client.post("/completion", json={**fields, "stream": stream})
        assert response.status_code == 400
        assert error_of(response)["param"] == param


def test_values_that_ask_for_nothing_are_taken(served: Served) -> None:
    post(served, prompt="Hello", id_slot=-1, n_keep=4, n_discard=0, t_max_predict_ms=0, lora=[], response_fields=[])
    post(served, prompt="Hello", id_slot=2, t_max_predict_ms=-1, t_max_prompt_ms=500, n_indent=0, logprobs=0)


def test_no_token_is_drawn_where_none_is_asked_for(served: Served) -> None:
    answer = post(served, prompt="Hello", n_predict=0, cache_prompt=False)
    assert (answer["content"], answer["tokens_predicted"], answer["tokens_evaluated"]) == ("", 0, 6)
    assert answer["stop_type"] == "limit"
    (last,) = events(served, prompt="Hello", n_predict=0)
    assert (last["stop"], last["tokens_predicted"]) == (True, 0)


def test_logprobs_is_another_name_of_n_probs(served: Served) -> None:
    settings = post(served, prompt="Hello", logprobs=3)["generation_settings"]
    assert isinstance(settings, dict)
    assert settings["n_probs"] == 3
    settings = post(served, prompt="Hello", logprobs=3, n_probs=0)["generation_settings"]
    assert isinstance(settings, dict)
    assert settings["n_probs"] == 0


CODE = " x:\n    y = 1\n    return y\n\nprint(1)\n"


@pytest.mark.parametrize("lookahead", [True, False])
def test_a_text_ends_before_a_line_that_is_indented_too_little(lookahead: bool) -> None:
    engine = FakeEngine(n_ctx=512, continuation=scripted({"if": CODE}))
    with serving(engine, scheduler=SchedulerConfig(lookahead=lookahead)) as served:
        answer = post(served, prompt="if", n_indent=4)
        assert (answer["content"], answer["stop_type"]) == (" x:\n    y = 1\n    return y\n", "limit")
        *partial, last = events(served, prompt="if", n_indent=4)
        assert "".join(str(chunk["content"]) for chunk in partial) == answer["content"]
        assert last["stop_type"] == "limit"
        assert post(served, prompt="if", n_indent=4, n_predict=6)["content"] == " x:\n  "
        assert post(served, prompt="if")["content"] == CODE


def test_after_its_time_a_text_ends_with_the_next_line() -> None:
    engine = FakeEngine(n_ctx=512, step_s=0.005, continuation=scripted({"if": "one two three four\nfive\nsix"}))
    with serving(engine) as served:
        answer = post(served, prompt="if", t_max_predict_ms=20)
        assert (answer["content"], answer["stop_type"]) == ("one two three four\n", "limit")
        answer = post(served, prompt="if", t_max_predict_ms=10_000)
        assert answer["content"] == "one two three four\nfive\nsix"


def test_only_the_fields_asked_for_are_sent(served: Served) -> None:
    fields = ["content", "generation_settings/n_predict", "timings/prompt_n", "nothing", "content/deeper"]
    expected = {"content": " wo", "generation_settings/n_predict": 3, "timings/prompt_n": 6}
    asked = {"prompt": "Hello", "n_predict": 3, "cache_prompt": False, "response_fields": fields}
    assert post(served, **asked) == expected
    *partial, last = events(served, **asked)
    assert last == {**expected, "content": ""}
    assert list(partial[0]) == PARTIAL_FIELDS


def test_a_full_queue_takes_all_prompts_or_none() -> None:
    with serving(FakeEngine(n_slots=1), scheduler=SchedulerConfig(max_queue=1)) as served:
        response = served.client.post("/completion", json={"prompt": ["a", "b", "c"], "n_predict": 1})
        assert (response.status_code, error_of(response)["param"]) == (400, "prompt")
        assert served.service.stats().requests_done == 0


def test_probabilities_come_with_ids_and_bytes() -> None:
    """The fake engine has none, so the events are made by hand."""
    shown = Shown(n_top=1)
    plan = AnswerPlan(shown, (PlannedPrompt((BOS, 97)),), 1, FakeVocabulary())
    head = AnswerHead("cmpl-1", 0, MODEL, "build")
    token = TokenLogprob(0xC3, b"\xc3", -0.5, ((98, b"b", -0.25), (0xC3, b"\xc3", -math.inf)))
    delta = TextDelta("x", (0xC3,), (token,))
    finished = Finished(FinishReason.EOS, None, 2, 1, Timings(0, 0, 0))
    expected = [
        {
            "id": 0xC3,
            "token": "\ufffd",
            "bytes": [0xC3],
            "logprob": -0.5,
            "top_logprobs": [{"id": 98, "token": "b", "bytes": [98], "logprob": -0.25}],
        }
    ]
    request = GenerationRequest("cmpl-1", (BOS, 97), logprobs=1)
    answer = NativeAnswer(NativePlan(plan, (request,), False))
    answer.take(0, delta)
    whole = json.loads(answer.whole(head, [finished]))
    assert whole["completion_probabilities"] == expected
    assert whole["generation_settings"]["n_probs"] == 1
    stream = NativeStream(NativePlan(plan, (request,), True), head)
    chunk = json.loads(stream.choices[0].encode_text(delta).removeprefix(b"data: "))
    assert chunk["completion_probabilities"] == expected
    last = json.loads(stream.choices[0].encode_end(finished).removeprefix(b"data: "))
    assert "completion_probabilities" not in last


FIM = FimTokens(prefix=1, suffix=2, middle=3)
FULL_FIM = FimTokens(prefix=1, suffix=2, middle=3, repository=4, file=5)


@pytest.fixture(scope="module")
def filling() -> Generator[Served, None, None]:
    with serving(FakeEngine(n_ctx=512, fim_tokens=FIM), template=LineTemplate()) as running:
        yield running


def prompt_of(served: Served, **fields: object) -> str:
    answer = post(served, "/infill", input_prefix="def f(", input_suffix="):", n_predict=1, **fields)
    return str(answer["prompt"])


def test_infill_puts_prefix_and_suffix_around_the_gap(filling: Served) -> None:
    assert prompt_of(filling) == "<bos>\x01def f(\x02):\x03"
    assert prompt_of(filling, prompt="x<eos>") == "<bos>\x01def f(x<eos>\x02):\x03"


def test_infill_reads_no_special_token_in_what_it_is_given(filling: Served) -> None:
    body = {"input_prefix": "<eos>", "input_suffix": "<bos>", "n_predict": 1}
    n_tokens = post(filling, "/infill", **body)["tokens_evaluated"]
    assert n_tokens == 1 + 1 + 5 + 1 + 5 + 1


def test_infill_puts_other_files_before_this_one() -> None:
    extra = [{"filename": "a.py", "text": "A"}, {"text": "B"}]
    with serving(FakeEngine(n_ctx=512, fim_tokens=FULL_FIM)) as served:
        files = "\x04myproject\n\x05a.py\nA\x05tmp\nB\x05filename\n"
        assert prompt_of(served, input_extra=extra) == f"<bos>{files}\x01def f(\x02):\x03"
    with serving(FakeEngine(n_ctx=512, fim_tokens=FIM)) as served:
        files = PLAIN_SEPARATOR + "A" + PLAIN_SEPARATOR + "B"
        assert prompt_of(served, input_extra=extra) == f"<bos>{files}\x01def f(\x02):\x03"


def test_infill_leaves_out_the_first_files_where_not_all_fit() -> None:
    """And nothing else: what is around the gap is refused if it does not fit."""
    extra = [{"filename": "a", "text": "A" * 20}, {"filename": "b", "text": "B" * 20}]
    with serving(FakeEngine(n_ctx=70, fim_tokens=FULL_FIM)) as served:
        shown = prompt_of(served, input_extra=extra)
        assert "A" not in shown
        assert "b\n" + "B" * 20 in shown
        response = served.client.post("/infill", json={"input_prefix": "x" * 100, "input_suffix": ""})
        assert (response.status_code, error_of(response)["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_prefix": "a"}, "input_suffix"),
        ({"input_suffix": "a"}, "input_prefix"),
        ({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
        ({"input_prefix": "a", "input_suffix": "b", "prompt": [1]}, "prompt"),
    ],
)
def test_infill_names_what_is_missing(filling: Served, fields: dict[str, object], param: str) -> None:
    response = filling.client.post("/infill", json=fields)
    assert (response.status_code, error_of(response)["param"]) == (400, param)


def test_a_file_that_never_fits_is_left_out_too_with_all_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are those before it tokenised."""
    texts: list[str] = []
    with serving(FakeEngine(n_ctx=128, fim_tokens=FULL_FIM), http=HttpConfig()) as served:
        tokenize = served.service.vocab.tokenize

        def watched(text: str, *, add_special: bool, parse_special: bool) -> Sequence[int]:
            texts.append(text)
            return tokenize(text, add_special=add_special, parse_special=parse_special)

        monkeypatch.setattr(served.service.vocab, "tokenize", watched)
        extra = [{"filename": "early", "text": "E"}, {"text": "X" * 100_000}, {"filename": "late", "text": "L"}]
        shown = prompt_of(served, input_extra=extra)
    assert "\x05late\nL\x05filename" in shown
    assert "X" not in shown
    assert not any(text.startswith("early") for text in texts)


def test_other_files_leave_room_for_a_text_of_any_length() -> None:
    extra = [{"filename": str(index), "text": "x" * 20} for index in range(20)]
    with serving(FakeEngine(n_ctx=256, fim_tokens=FULL_FIM)) as served:
        answer = post(served, "/infill", input_prefix="a", input_suffix="b", input_extra=extra)
        assert 128 < int(str(answer["tokens_evaluated"])) <= 256 * 3 // 4
        assert int(str(answer["tokens_predicted"])) >= 256 // 4


# What editors send, as their sources have it.

LLAMA_VIM_FIELDS = [
    "content",
    *(f"timings/prompt_{name}" for name in ("n", "ms", "per_token_ms", "per_second")),
    *(f"timings/predicted_{name}" for name in ("n", "ms", "per_token_ms", "per_second")),
    "truncated",
    "tokens_cached",
]
LLAMA_VIM_EXTRA = [{"text": "import os\n", "time": [1733, 12], "filename": "other.py"}]
LLAMA_VIM = {
    "id_slot": 0,
    "input_prefix": "def f(",
    "input_suffix": "):\n",
    "input_extra": LLAMA_VIM_EXTRA,
    "prompt": "    ",
    "n_predict": 24,
    "stop": [],
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.90,
    "samplers": ["top_k", "top_p", "infill"],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
    "response_fields": LLAMA_VIM_FIELDS,
}
LLAMA_VIM_WARM_UP = {
    "id_slot": 0,
    "input_prefix": "",
    "input_suffix": "",
    "input_extra": LLAMA_VIM_EXTRA,
    "prompt": "",
    "n_predict": 0,
    "temperature": 0.0,
    "samplers": [],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 1,
    "t_max_predict_ms": 1,
    "response_fields": [""],
}
LLAMA_VSCODE = {
    "input_prefix": "def f(",
    "input_suffix": "):\n",
    "input_extra": [{"text": "import os\n", "time": 1733000000, "filename": "other.py"}],
    "prompt": "    ",
    "n_predict": 24,
    "top_k": 40,
    "top_p": 0.99,
    "stream": False,
    "n_indent": 4,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 2500,
}
LLAMA_VSCODE_WARM_UP = {
    "input_prefix": "",
    "input_suffix": "",
    "input_extra": [{"text": "import os\n", "time": 1733000000, "filename": "other.py"}],
    "prompt": "",
    "n_predict": 1,
    "top_k": 40,
    "top_p": 0.99,
    "stream": False,
    "samplers": ["temperature"],
    "cache_prompt": True,
    "t_max_prompt_ms": 1,
    "t_max_predict_ms": 1,
}


FILLED_IN = b"a\n    b\nc"


def fill_in(tokens: Sequence[int]) -> int:
    """Every gap with a line, another one below it, and a line of something else."""
    n_drawn = list(reversed(tokens)).index(FULL_FIM.middle)
    return FILLED_IN[n_drawn] if n_drawn < len(FILLED_IN) else EOS


@pytest.fixture
def editing() -> Generator[Served, None, None]:
    with serving(FakeEngine(n_ctx=512, fim_tokens=FULL_FIM, continuation=fill_in)) as running:
        yield running


def test_llama_vim_gets_what_it_asks_for(editing: Served, caplog: pytest.LogCaptureFixture) -> None:
    assert editing.client.post("/infill", json=LLAMA_VIM_WARM_UP).json() == {}
    answer = post(editing, "/infill", **LLAMA_VIM)
    assert list(answer) == LLAMA_VIM_FIELDS
    assert answer["content"] == "a\n    b\n"
    assert (answer["truncated"], answer["timings/predicted_n"]) == (False, len(FILLED_IN))
    # The other file was computed by the request before: what follows it is the gap.
    assert int(str(answer["tokens_cached"])) > len("import os\n")
    post(editing, "/infill", **LLAMA_VIM)
    assert [m for m in caplog.messages if "has no effect" in m] == [
        "request field 'samplers: infill' has no effect here"
    ]


def test_llama_vscode_gets_what_it_asks_for(editing: Served) -> None:
    assert post(editing, "/infill", **LLAMA_VSCODE_WARM_UP)["tokens_predicted"] == 1
    answer = post(editing, "/infill", **LLAMA_VSCODE)
    assert (answer["content"], list(answer)) == ("a\n    b\n", FINAL_FIELDS)


def test_infill_is_not_supported_by_a_model_without_the_tokens(served: Served) -> None:
    response = served.client.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert (response.status_code, error_of(response)["code"]) == (501, "not_supported")
    assert "prefix, suffix and middle" in str(error_of(response)["message"])


def test_a_failure_under_way_is_an_event_of_a_native_stream_too() -> None:
    with serving(FakeEngine(n_ctx=64_000, step_s=0.005, continuation=scripted({**REPLIES, "a": "b" * 9000}))) as served:
        chunks = events(served, prompt="a", timeout=0.3)
    assert chunks[-1]["error"]["code"] == "timeout"  # type: ignore[index]  # an object of the event
    assert not any(chunk.get("stop") for chunk in chunks)
