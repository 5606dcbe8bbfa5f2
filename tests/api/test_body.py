"""From bytes to typed bodies: what is refused, what is accepted, what the messages say."""

from __future__ import annotations

import json
import logging
import math

import pytest

from llamaserve.api.native.native_prompts import native_prompt_tokens
from llamaserve.api.openai.body import ChatBody, CompletionBody, decode_body
from llamaserve.api.openai.choices import choices_per_prompt
from llamaserve.api.openai.completion_prompts import plan_prompts, split_prompts
from llamaserve.api.openai.fields import MAX_NAMES_WARNED, UNHONOURED_FIELDS, UnknownFieldLog
from llamaserve.api.openai.json_shape import MAX_LEVELS
from llamaserve.api.openai.sampling import max_new_tokens, sampling_params, stop_strings
from llamaserve.api.openai.shown import Shown, shown_by_completion
from llamaserve.engine.fake import BOS, EOS, N_VOCAB, FakeVocabulary
from llamaserve.errors import BadRequest, BadSampler, BadTemplate, BadToken, EmptyPrompt, PromptTooLong, RequestError
from llamaserve.request import SamplingParams

N_CTX = 1024


def completion(**fields: object) -> CompletionBody:
    body = json.dumps({"prompt": "x", **fields}).encode()
    return decode_body(body, CompletionBody, UnknownFieldLog())


def chat(messages: object, **fields: object) -> ChatBody:
    return decode_body(json.dumps({"messages": messages, **fields}).encode(), ChatBody, UnknownFieldLog())


def sampling(**fields: object) -> SamplingParams:
    return sampling_params(completion(**fields), FakeVocabulary())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"{", "not valid JSON"),
        (b"{'prompt': 1}", "not valid JSON"),
        (b'{"prompt": "x"} y', "not valid JSON"),
        (b'{"prompt": NaN}', "not valid JSON"),
        (b'{"prompt": "\xff"}', "UTF-8"),
        (b'{"prompt": "\\ud800"}', "not valid JSON"),
        (b'{"prompt": "\\udc00 x"}', "not valid JSON"),
        (b"[1]", "must be a JSON object, not array"),
        (b"3", "must be a JSON object, not integer"),
        (b"null", "must be a JSON object, not null"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a":' + b"[" * MAX_LEVELS + b"]" * MAX_LEVELS + b"}", f"more than {MAX_LEVELS} levels"),
        (b'{"seed": ' + b"9" * 10_000 + b"}", "out of range"),
        (b'{"temperature": 1e999}', "out of range"),
    ],
    ids=range(17),
)
def test_a_body_that_is_not_a_json_object_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        decode_body(body, CompletionBody, UnknownFieldLog())


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": "hot"}, "temperature", "temperature: expected number or null, got string"),
        ({"temperature": True}, "temperature", "temperature: expected number or null, got boolean"),
        ({"max_tokens": 1.5}, "max_tokens", "max_tokens: expected integer or null, got number"),
        ({"stream": "yes"}, "stream", "stream: expected boolean or null, got string"),
        ({"stop": [1.5]}, "stop[0]", "stop[0]: expected integer or string, got number"),
        ({"stop": {}}, "stop", "stop: expected string or array or null, got object"),
        ({"prompt": {}}, "prompt", "prompt: expected string or array, got object"),
        ({"prompt": [1, None]}, "prompt[1]", "prompt[1]: expected integer or string or array, got null"),
        ({"prompt": [True]}, "prompt[0]", "prompt[0]: expected integer or string or array, got boolean"),
        ({"prompt": [[1, "x"]]}, "prompt[0][1]", "prompt[0][1]: expected integer, got string"),
        ({"stream_options": 3}, "stream_options", "stream_options: expected object or null, got integer"),
        ({"logit_bias": [[1]]}, "logit_bias[0]", "logit_bias[0]: expected array of length 2, got 1"),
        ({"model": 3}, "model", "model: expected string or null, got integer"),
        ({"cache_prompt": 1}, "cache_prompt", "cache_prompt: expected boolean or null, got integer"),
        ({"cache_salt": 7}, "cache_salt", "cache_salt: expected string or null, got integer"),
        ({"session": ["a"]}, "session", "session: expected string or null, got array"),
    ],
    ids=range(16),
)
def test_a_wrong_type_names_the_field_and_both_types(fields: dict[str, object], param: str, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        completion(**fields)
    assert (str(caught.value), caught.value.param) == (message, param)


def test_a_missing_prompt_and_missing_messages_are_named() -> None:
    with pytest.raises(BadRequest, match=r"^prompt: this field is required"):
        decode_body(b"{}", CompletionBody, UnknownFieldLog())
    with pytest.raises(BadRequest, match=r"^messages: this field is required"):
        decode_body(b"{}", ChatBody, UnknownFieldLog())
    with pytest.raises(BadRequest, match=r"^messages\[0\].role: this field is required"):
        chat([{"content": "x"}])


def test_null_means_absent_for_every_optional_field() -> None:
    optional = [name for name in CompletionBody.__struct_fields__ if name != "prompt"]
    nulls: dict[str, object] = dict.fromkeys([*optional, *UNHONOURED_FIELDS, "user", "no_such_field"])
    body = completion(**nulls)
    assert sampling_params(body, N_VOCAB) == SamplingParams()
    assert (max_new_tokens(body), stop_strings(body)) == (None, ())
    assert shown_by_completion(body) == Shown()
    assert (body.is_streamed, choices_per_prompt(body)) == (False, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function"}},
        {"top_logprobs": 2},
        {"guided_whitespace_pattern": "x"},
        {"length_penalty": 2.0},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low"},
        {"continue_final_message": True},
    ],
    ids=str,
)
def test_what_changes_the_result_and_is_not_honoured_is_refused_by_name(fields: dict[str, object]) -> None:
    (name,) = fields
    with pytest.raises(BadRequest, match=f"^{name} is .*: this server does not support it; leave it out$") as caught:
        completion(**fields)
    assert caught.value.param == name


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "auto"},
        {"tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"logprobs": False, "top_logprobs": 0},
        {"n": 1, "n_cmpl": 1, "best_of": 1, "echo": False, "suffix": ""},
        {"n_probs": 0, "prompt_logprobs": False, "return_tokens": False, "return_token_ids": False},
        {"typical_p": 1.0, "mirostat": 0, "min_tokens": 0},
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": True},
    ],
    ids=str,
)
def test_values_that_ask_for_nothing_are_accepted(fields: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    completion(**fields)
    assert not caplog.records


def test_an_unknown_field_is_accepted_with_one_warning_per_name(caplog: pytest.LogCaptureFixture) -> None:
    unknown = UnknownFieldLog()
    body = b'{"prompt": "x", "shiny": 1, "stream_options": {"include_obfuscation": true}}'
    for _ in range(3):
        decode_body(body, CompletionBody, unknown)
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert sorted(str(record.args[0]) for record in caplog.records if isinstance(record.args, tuple)) == [
        "shiny",
        "stream_options.include_obfuscation",
    ]


def test_the_memory_of_unknown_names_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    unknown = UnknownFieldLog()
    unknown.note({f"field{number}": 1 for number in range(MAX_NAMES_WARNED + 50)}, ())
    assert len(caplog.records) == MAX_NAMES_WARNED
    unknown = UnknownFieldLog()
    caplog.clear()
    unknown.note({"x" * 100_000: 1}, ())
    assert len(caplog.text) < 1000


def test_a_deeply_nested_refused_value_is_named_without_being_written_out() -> None:
    nested = b"[" * (MAX_LEVELS - 1) + b"]" * (MAX_LEVELS - 1)
    with pytest.raises(BadRequest, match=r"^lora is \[\[\[") as caught:
        decode_body(b'{"prompt": "x", "lora": ' + nested + b"}", CompletionBody, UnknownFieldLog())
    assert len(str(caught.value)) < 200


def test_every_sampling_field_arrives() -> None:
    params = sampling(
        temperature=1,
        top_k=5,
        top_p=0.5,
        min_p=0,
        seed=7,
        repeat_penalty=1.1,
        repeat_last_n=32,
        frequency_penalty=0.1,
        presence_penalty=-0.1,
        logit_bias={"5": 2, "6": False},
        ignore_eos=True,
    )
    assert params == SamplingParams(
        temperature=1.0,
        top_k=5,
        top_p=0.5,
        min_p=0.0,
        seed=7,
        repeat_penalty=1.1,
        repeat_last_n=32,
        frequency_penalty=0.1,
        presence_penalty=-0.1,
        logit_bias={5: 2.0, 6: -math.inf},
        ignore_eos=True,
    )


def test_other_servers_words_for_off_and_random_mean_the_same() -> None:
    assert sampling(seed=-1).seed is None
    assert sampling(seed=2**32 - 1).seed is None
    assert sampling(top_k=-1).top_k == 0
    assert sampling(repetition_penalty=1.2).repeat_penalty == 1.2
    assert sampling(logit_bias=[[5, 1.5], [6, False]]).logit_bias == {5: 1.5, 6: -math.inf}
    assert max_new_tokens(completion(max_tokens=-1)) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 101}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"top_k": 2**31}, "top_k"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repeat_last_n": -1}, "repeat_last_n"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": {"9" * 6000: 1}}, "logit_bias"),
        ({"logit_bias": {"": 1}}, "logit_bias"),
    ],
    ids=range(15),
)
def test_a_sampling_value_out_of_range_is_refused_under_the_clients_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises((BadSampler, BadRequest), match=param) as caught:
        sampling(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("token", ["w" * 60_000, "9" * 4000, "9" * 60_000], ids=["word", "number", "huge number"])
def test_a_refused_bias_is_not_echoed_at_length(token: str) -> None:
    with pytest.raises(RequestError) as caught:
        sampling(logit_bias={token: 1})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("bias", [{str(N_VOCAB): 1}, {"-1": 1}, [[N_VOCAB, 1]]], ids=str)
def test_a_bias_outside_the_vocabulary_is_refused(bias: object) -> None:
    with pytest.raises(BadToken) as caught:
        sampling(logit_bias=bias)
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_max_tokens_has_three_names_and_a_lower_limit(name: str) -> None:
    """A completion may ask for its prompt alone, a chat may not."""
    assert max_new_tokens(completion(**{name: 9})) == 9
    assert max_new_tokens(completion(**{name: 0}), least=0) == 0
    for body, value, least in ((completion(**{name: -2}), -2, 0), (chat([], **{name: 0}), 0, 1)):
        with pytest.raises(BadRequest, match=f"^{name} is {value}") as caught:
            max_new_tokens(body, least=least)
        assert caught.value.param == name


def test_stop_is_a_string_or_a_list() -> None:
    assert stop_strings(completion(stop="a")) == ("a",)
    assert stop_strings(completion(stop=["a", "b"])) == ("a", "b")
    assert stop_strings(completion(stop=[])) == ()


def tokens_of(prompt: object, vocab: FakeVocabulary | None = None) -> list[tuple[int, ...]]:
    """The tokens of a completion's prompts."""
    body = completion(prompt=prompt)
    return [planned.tokens for planned in plan_prompts(split_prompts(body), body, vocab or FakeVocabulary(), N_CTX)]


def test_a_completion_prompt_is_text_or_token_ids_or_a_list_of_one() -> None:
    assert tokens_of("hi") == tokens_of(["hi"]) == [(BOS, *b"hi")]
    assert tokens_of([1, 2]) == tokens_of([[1, 2]]) == [(1, 2)]
    assert tokens_of("a<eos>") == [(BOS, ord("a"), EOS)]


class CountingVocabulary(FakeVocabulary):
    """Eight characters a token, or so many; keeps how much text it was asked to tokenise."""

    def __init__(self, n_per_token: int = 8) -> None:
        super().__init__()
        self.n_per_token = n_per_token
        self.n_characters = 0

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        self.n_characters += len(text)
        return [1] * (len(text) // self.n_per_token + 1)


def test_a_text_far_over_the_context_is_refused_before_it_is_tokenised_whole() -> None:
    vocab = CountingVocabulary()
    with pytest.raises(PromptTooLong, match="at least") as caught:
        tokens_of("x" * 2_000_000, vocab)
    assert caught.value.n_prompt > 2 * N_CTX
    assert vocab.n_characters <= 2**16


def test_a_long_text_that_may_fit_is_tokenised_whole() -> None:
    (tokens,) = tokens_of("x" * (9 * N_CTX), CountingVocabulary(16))
    assert len(tokens) == 9 * N_CTX // 16 + 1


def test_no_prompt_is_tokenised_behind_one_that_does_not_fit() -> None:
    vocab = CountingVocabulary()
    n_long = 8 * N_CTX
    with pytest.raises(PromptTooLong):
        tokens_of(["short", "x" * n_long, *["y" * n_long] * 100], vocab)
    assert vocab.n_characters == len("short") + n_long
    (tokens,) = tokens_of("x" * (n_long - 9), vocab)
    assert len(tokens) == N_CTX - 1


def test_a_seed_of_64_bits_stands_for_one_of_llama_cpps() -> None:
    seeds = [0, 2**32 - 2, 2**32, -2, 2**63 - 1, -(2**63), 2**64 - 1]
    assert [sampling(seed=seed).seed for seed in seeds] == [seed % (2**32 - 1) for seed in seeds]
    assert sampling(seed=5).seed == 5
    assert [sampling(seed=seed).seed for seed in (-1, 2**32 - 1)] == [None, None]


def test_what_belongs_in_front_of_a_text_can_be_left_out() -> None:
    body = completion(prompt=["hi", [1]], add_special_tokens=False)
    planned = plan_prompts(split_prompts(body), body, FakeVocabulary(), N_CTX)
    assert [prompt.tokens for prompt in planned] == [tuple(b"hi"), (1,)]
    assert native_prompt_tokens("hi", FakeVocabulary(), N_CTX, add_special=False) == tuple(b"hi")
    with pytest.raises(BadRequest, match="add_special_tokens is True"):
        chat([{"role": "user", "content": "x"}], add_special_tokens=True)
    chat([{"role": "user", "content": "x"}], add_special_tokens=False)


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar_lazy": True},
        {"grammar_triggers": [{"type": 0, "value": "<"}]},
        {"parse_tool_calls": False},
        {"reasoning_budget_message": "enough"},
        {"include_reasoning": False},
        {"separate_reasoning": False},
        {"thinking": {"type": "disabled"}},
        {"enable_thinking": False},
        {"documents": [{"text": "a"}]},
        {"stop_regex": "a+"},
        {"min_new_tokens": 1},
        {"max_new_tokens": 5},
        {"return_tokens_as_token_ids": True},
        {"no_stop_trim": True},
        {"verbose": True},
    ],
    ids=str,
)
def test_what_other_servers_would_do_is_refused_by_name_and_its_default_is_not(
    fields: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    (name,) = fields
    for make in (completion, lambda **given: chat([{"role": "user", "content": "x"}], **given)):
        with pytest.raises(BadRequest, match=f"^{name} is ") as caught:
            make(**fields)
        assert caught.value.param == name
        for default in UNHONOURED_FIELDS[name]:
            make(**{name: default})
    assert not caplog.records


def test_texts_and_ids_of_one_prompt_are_counted_as_they_come() -> None:
    vocab = CountingVocabulary()
    with pytest.raises(PromptTooLong):
        native_prompt_tokens([1, *["x" * 80] * N_CTX], vocab, N_CTX)
    assert vocab.n_characters < 9 * N_CTX


def test_the_texts_of_a_bias_are_counted_before_they_are_tokenised() -> None:
    vocab = CountingVocabulary()
    with pytest.raises(BadSampler, match="65792 characters"):
        sampling_params(completion(logit_bias=[["w" * 256, 1]] * 257), vocab)
    assert vocab.n_characters == 0


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], ["a", ""], [[1], []]], ids=str)
def test_an_empty_prompt_is_refused_even_if_the_vocabulary_would_add_a_token(prompt: object) -> None:
    """S67"""
    with pytest.raises(EmptyPrompt):
        tokens_of(prompt)


def test_a_batch_of_prompts_is_texts_and_lists_of_token_ids() -> None:
    assert tokens_of(["a", "bc"]) == [(BOS, *b"a"), (BOS, *b"bc")]
    assert tokens_of([[1], [2, 3]]) == [(1,), (2, 3)]
    assert tokens_of(["a", [1]]) == [(BOS, *b"a"), (1,)]


@pytest.mark.parametrize("prompt", [[1, "a"], ["a", 1], [1, [2]]], ids=str)
def test_token_ids_beside_prompts_are_refused_by_name(prompt: object) -> None:
    with pytest.raises(BadRequest, match="token ids beside texts") as caught:
        tokens_of(prompt)
    assert caught.value.param == "prompt"


def test_every_refusal_here_is_a_request_error() -> None:
    for error in (BadRequest, BadSampler, BadTemplate, BadToken, EmptyPrompt):
        assert issubclass(error, RequestError)
