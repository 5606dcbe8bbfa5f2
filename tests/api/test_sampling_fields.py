"""The fields of a body that say how tokens are drawn, in the words of several servers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from llamaserve.api.openai.body import CompletionBody, decode_body
from llamaserve.api.openai.fields import UnknownFieldLog
from llamaserve.api.openai.sampler_names import LETTERS, sampler_names
from llamaserve.api.openai.sampling import sampling_params, stop_strings, stop_tokens
from llamaserve.engine.fake import N_VOCAB, FakeVocabulary
from llamaserve.errors import BadRequest, BadSampler, BadToken, RequestError
from llamaserve.sampling import DEFAULT_SAMPLERS, SAMPLERS, SamplingParams
from tests.api.served import Served


def body(**fields: object) -> CompletionBody:
    return decode_body(json.dumps({"prompt": "x", **fields}).encode(), CompletionBody, UnknownFieldLog())


def sampling(**fields: object) -> SamplingParams:
    return sampling_params(body(**fields), FakeVocabulary())


SAME: dict[str, Any] = {
    "dynatemp_range": 0.25,
    "dynatemp_exponent": 2.0,
    "typical_p": 0.5,
    "top_n_sigma": 1.5,
    "xtc_probability": 0.25,
    "xtc_threshold": 0.125,
    "min_keep": 2,
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.5,
    "adaptive_target": 0.5,
    "adaptive_decay": 0.75,
    "dry_multiplier": 0.5,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 100,
    "min_tokens": 4,
}


@pytest.mark.parametrize("name", SAME)
def test_a_field_arrives_under_its_name(name: str) -> None:
    assert sampling(**{name: SAME[name]}) == SamplingParams(**{name: SAME[name]})


@pytest.mark.parametrize("name", SAME)
def test_null_is_the_default(name: str) -> None:
    assert sampling(**{name: None}) == SamplingParams()


def test_lists_arrive() -> None:
    params = sampling(dry_sequence_breakers=["a", "\n"], samplers=["min_p", "top_k"], allowed_token_ids=[7, 8])
    assert params.dry_sequence_breakers == ("a", "\n")
    assert params.samplers == ("min_p", "top_k")
    assert params.allowed_token_ids == (7, 8)
    assert sampling(samplers=[]).samplers == ()


@pytest.mark.parametrize(
    ("alias", "name", "value"),
    [("typ_p", "typical_p", 0.5), ("mirostat_mode", "mirostat", 1), ("repetition_penalty", "repeat_penalty", 1.5)],
)
def test_other_names_mean_the_same_and_are_named_in_errors(alias: str, name: str, value: float) -> None:
    assert getattr(sampling(**{alias: value}), name) == value
    assert getattr(sampling(**{alias: 1, name: value}), name) == value
    with pytest.raises(BadRequest, match=f"^{alias}: {name} is 1000") as caught:
        sampling(**{alias: 1000})
    assert caught.value.param == alias
    with pytest.raises(BadSampler, match=f"^{name} is 1000"):
        sampling(**{alias: 1, name: 1000})


def test_what_is_below_0_is_off() -> None:
    params = sampling(top_k=-5, top_n_sigma=-3, adaptive_target=-2)
    assert (params.top_k, params.top_n_sigma, params.adaptive_target) == (0, -1.0, -1.0)


def test_samplers_have_letters_and_names() -> None:
    """Those of llama.cpp, without infill."""
    assert sampler_names("edskypmxt") == DEFAULT_SAMPLERS
    assert set(LETTERS.values()) == set(SAMPLERS)
    assert sampler_names([*SAMPLERS]) == SAMPLERS
    assert sampler_names(["top-k", "topp", "Min-P", "temp", "nucleus", "typical_p", "typ"]) == (
        "top_k",
        "top_p",
        "min_p",
        "temperature",
        "top_p",
        "typ_p",
        "typ_p",
    )
    for unknown in ("kq", ["top_k", "infill"], "i", ["k"]):
        with pytest.raises(BadSampler, match=r"^samplers is ") as caught:
            sampler_names(unknown)
        assert caught.value.param == "samplers"
        assert "penalties" in str(caught.value) or "edskypmxta" in str(caught.value)


# Tokens by their text.


def test_a_bias_is_on_an_id_or_on_each_token_of_a_text() -> None:
    """llama-server's rule; what several give to one token adds up."""
    assert sampling(logit_bias={"7": 1, "ab": 2, " 7": 3}).logit_bias == {7: 1, ord("a"): 2, ord("b"): 2, 32: 3, 55: 3}
    assert sampling(logit_bias=[["a", 1.5], [97, 2], ["ba", False], [5, 1]]).logit_bias == {
        97: -math.inf,
        98: -math.inf,
        5: 1,
    }
    for text in ("word", "1_0", "\u0663", "+1", "1\n"):
        assert sampling(logit_bias={text: 1}).logit_bias.keys() == set(text.encode())


@pytest.mark.parametrize("bias", [{"": 1}, {"x" * 300: 1}, [["a", True]], {"a": 101}, {"aa": 60}], ids=range(5))
def test_a_bias_on_a_text_that_is_none_or_too_large_is_refused(bias: object) -> None:
    with pytest.raises(BadSampler, match=r"^logit_bias is ") as caught:
        sampling(logit_bias=bias)
    assert caught.value.param == "logit_bias"
    assert len(str(caught.value)) < 250


def test_a_bad_word_is_its_tokens_with_and_without_a_space() -> None:
    assert sampling(bad_words=["ab", " c"]).bad_words == ((97, 98), (32, 97, 98), (32, 99))
    for words in ([""], ["x" * 300], ["a"] * 513):
        with pytest.raises(BadSampler, match=r"^bad_words is "):
            sampling(bad_words=words)


def test_stops_are_strings_and_tokens() -> None:
    given = body(stop=["a", 5, "b"], stop_token_ids=[6, 5])
    assert (stop_strings(given), stop_tokens(given)) == (("a", "b"), (5, 6))
    assert (stop_strings(body(stop="a")), stop_tokens(body(stop="a"))) == (("a",), ())
    assert (stop_strings(body()), stop_tokens(body())) == ((), ())
    with pytest.raises(BadRequest, match=r"^stop has 65 tokens") as caught:
        stop_tokens(body(stop=list(range(65))))
    assert caught.value.param == "stop"
    with pytest.raises(BadRequest):
        body(stop=[1.5])


# Through the server.


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"dry_base": 0}, "dry_base"),
        ({"xtc_probability": -1}, "xtc_probability"),
        ({"samplers": "q"}, "samplers"),
        ({"samplers": 5}, "samplers"),
        ({"mirostat": 3}, "mirostat"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [N_VOCAB]}, "allowed_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop": [N_VOCAB]}, "stop_token_ids"),
        ({"stop_token_ids": list(range(65))}, "stop_token_ids"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ],
    ids=str,
)
def test_a_bad_field_is_a_400_that_names_it(served: Served, fields: dict[str, object], param: str) -> None:
    response = served.complete(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_what_a_request_asks_for_reaches_the_engine(served: Served) -> None:
    response = served.complete(samplers="kt", dry_multiplier=1.0, stop=["!", 33], min_tokens=2)
    assert response.status_code == 200
    spec = served.engine.opened[-1]
    assert spec.sampling == SamplingParams(samplers=("top_k", "temperature"), dry_multiplier=1.0, min_tokens=2)
    assert tuple(spec.stop_tokens) == (33,)


def test_a_stop_token_ends_the_text_with_the_word_stop(served: Served) -> None:
    (choice,) = served.complete(stop_token_ids=[ord("g")]).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (" world, ", "stop")


def test_no_tokens_are_a_prompt_that_is_computed(served: Served) -> None:
    answer = served.complete(max_tokens=0).json()
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("", "length")
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (6, 0)


def test_errors_about_tokens_are_of_our_kinds() -> None:
    """The API answers all of them with a 400."""
    with pytest.raises(BadToken) as caught:
        sampling(logit_bias={str(N_VOCAB): 1})
    assert isinstance(caught.value, RequestError)
    assert caught.value.param == "logit_bias"
