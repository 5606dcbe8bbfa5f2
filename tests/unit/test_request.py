"""Requests and sampling parameters check themselves."""

from __future__ import annotations

import math

import pytest

from llamaserve.errors import BadRequest, BadSampler
from llamaserve.request import (
    MAX_NAME_LENGTH,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    FinishReason,
    GenerationRequest,
    Lane,
    Timings,
)
from llamaserve.sampling import SEED_MAX, SamplingParams


def test_the_sampling_defaults_are_those_of_llama_cpp() -> None:
    """E25."""
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert (params.repeat_penalty, params.repeat_last_n) == (1.0, 64)
    assert (params.frequency_penalty, params.presence_penalty, params.seed) == (0.0, 0.0, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", 101),
        ("temperature", math.nan),
        ("temperature", "warm"),
        ("temperature", True),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("min_p", math.inf),
        ("repeat_penalty", 0),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -2.5),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", True),
        ("repeat_last_n", -1),
        ("seed", -1),
        ("seed", SEED_MAX + 1),
        ("seed", "7"),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {3: "x"}),
        ("logit_bias", {3: True}),
        ("logit_bias", {3: False}),
        ("logit_bias", {1: 10**400}),
        ("logit_bias", {1: 10**5000}),
        ("logit_bias", {1.5: 1.0}),
        ("temperature", 10**5000),
        ("top_k", 10**5000),
        ("logit_bias", {"3": 1.0}),
        ("logit_bias", {True: 1.0}),
        ("logit_bias", [1]),
        ("logit_bias", None),
        ("ignore_eos", "false"),
        ("ignore_eos", 1),
        ("dynatemp_range", -0.1),
        ("dynatemp_exponent", 11),
        ("typical_p", 1.5),
        ("top_n_sigma", -2),
        ("xtc_probability", 2),
        ("xtc_threshold", -1),
        ("min_keep", -1),
        ("mirostat", 3),
        ("mirostat_tau", -1),
        ("mirostat_eta", 2),
        ("adaptive_target", 1.1),
        ("adaptive_decay", 1.0),
        ("dry_multiplier", -1),
        ("dry_base", 0.5),
        ("dry_allowed_length", -1),
        ("dry_penalty_last_n", 2**16 + 1),
        ("dry_sequence_breakers", ["a"]),
        ("dry_sequence_breakers", ("",)),
        ("dry_sequence_breakers", ("x" * 41,)),
        ("dry_sequence_breakers", ("\ud800",)),
        ("dry_sequence_breakers", ("a",) * 33),
        ("samplers", "top_k"),
        ("samplers", ("top_k", "infill")),
        ("samplers", ("top_k",) * 33),
        ("samplers", (["top_k"],)),
        ("min_tokens", -1),
        ("bad_words", ((),)),
        ("bad_words", ([1],)),
        ("bad_words", ((1,),) * 1025),
        ("bad_words", ((1,) * 65,)),
        ("allowed_token_ids", ()),
        ("allowed_token_ids", [1]),
        ("allowed_token_ids", (1.0,)),
    ],
    ids=range(68),
)
def test_a_sampling_value_outside_its_range_is_refused_by_name(name: str, value: object) -> None:
    """K27: the message names the field, the value and the limit."""
    with pytest.raises(BadSampler, match=f"^{name} is .*must be") as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]  # that is the point
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 100.0),
        ("top_p", 0),
        ("top_p", 1),
        ("top_k", 0),
        ("seed", 0),
        ("seed", SEED_MAX),
        ("repeat_penalty", 0.01),
        ("logit_bias", {1: -math.inf, 2: 100, 3: -100}),
    ],
)
def test_the_ends_of_a_range_are_inside(name: str, value: object) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value  # type: ignore[arg-type]  # fields have many types


@pytest.mark.parametrize(("name", "value"), [("temperature", "x" * 5000), ("logit_bias", {"9" * 5000: 1.0})])
def test_a_refusal_never_echoes_a_long_value(name: str, value: object) -> None:
    with pytest.raises(BadSampler, match=f"^{name} is ") as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]  # that is the point
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("request_id", 7),
        ("prompt", None),
        ("prompt", "text"),
        ("prompt", b"bytes"),
        ("prompt", [1, 2]),
        ("prompt", (1, "2")),
        ("prompt", (1, True)),
        ("prompt", (1, 2.0)),
        ("max_tokens", "8"),
        ("max_tokens", True),
        ("min_indent", -1),
        ("min_indent", 1.0),
        ("min_indent", None),
        ("max_decode_s", 0),
        ("max_decode_s", math.nan),
        ("max_decode_s", True),
        ("max_decode_s", "1"),
        ("stop", (7,)),
        ("stop", ("ok", None)),
        ("stop", "end"),
        ("stop", None),
        ("sampling", None),
        ("sampling", {"temperature": 1}),
        ("cache_prompt", None),
        ("cache_prompt", 1),
        ("cache_salt", None),
        ("cache_salt", b"salt"),
        ("session", 7),
        ("boundaries", [1]),
        ("boundaries", (True,)),
        ("boundaries", (1.0,)),
        ("boundaries", None),
        ("return_progress", 1),
        ("priority", "high"),
        ("priority", None),
        ("owner", None),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_by_name(name: str, value: object) -> None:
    """K27: as ours, so that a caller who catches LlamaServeError gets it."""
    fields: dict[str, object] = {"request_id": "r", "prompt": (1,), name: value}
    with pytest.raises(BadRequest, match=f"^{name} ") as caught:
        GenerationRequest(**fields)  # type: ignore[arg-type]  # that is the point
    assert caught.value.param == name


def test_a_limit_too_long_to_write_out_is_refused_as_well() -> None:
    with pytest.raises(BadRequest, match="max_tokens is <a number of"):
        GenerationRequest("r", (1,), -(10**5000))


def test_max_tokens_is_not_below_none() -> None:
    """K8, K27."""
    with pytest.raises(BadRequest, match="max_tokens is -1") as caught:
        GenerationRequest("r", (1,), -1)
    assert caught.value.param == "max_tokens"
    assert GenerationRequest("r", (1,), 0).max_tokens == 0


def test_min_tokens_is_not_above_max_tokens() -> None:
    with pytest.raises(BadRequest, match="min_tokens is 9: it must be at most max_tokens, 8") as caught:
        GenerationRequest("r", (1,), 8, sampling=SamplingParams(min_tokens=9))
    assert caught.value.param == "min_tokens"
    assert GenerationRequest("r", (1,), None, sampling=SamplingParams(min_tokens=9))


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize("value", [-1, 101, True, 1.0, "5", 10**5000], ids=range(6))
def test_a_number_of_logarithms_outside_its_range_is_refused(name: str, value: object) -> None:
    with pytest.raises(BadRequest, match=f"^{name} is .* must be a whole number from 0 to 100") as caught:
        GenerationRequest("r", (1,), **{name: value})  # type: ignore[arg-type]  # that is the point
    assert caught.value.param == name
    assert GenerationRequest("r", (1,), **{name: 100})  # type: ignore[arg-type]  # a field's name
    assert GenerationRequest("r", (1,), **{name: 0})  # type: ignore[arg-type]  # a field's name


def test_a_prompt_has_a_bounded_number_of_logarithms() -> None:
    """They wait in memory until the client has them."""
    prompt = (1,) * 20_000
    assert GenerationRequest("r", prompt, prompt_logprobs=51)
    with pytest.raises(BadRequest, match=r"^prompt_logprobs is 52: for a prompt of 20000 tokens .* at most 51$"):
        GenerationRequest("r", prompt, prompt_logprobs=52)


@pytest.mark.parametrize("tokens", [[1], (1.0,), (True,), ("1",), (1,) * 65])
def test_stop_tokens_that_are_none_are_refused(tokens: object) -> None:
    with pytest.raises(BadRequest, match=r"^stop_token_ids ") as caught:
        GenerationRequest("r", (1,), stop_tokens=tokens)  # type: ignore[arg-type]  # that is the point
    assert caught.value.param == "stop_token_ids"


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (("ok", ""), "0 characters"),
        (("x" * (MAX_STOP_LENGTH + 1),), f"{MAX_STOP_LENGTH + 1} characters"),
        (("x",) * (MAX_STOP_STRINGS + 1), f"{MAX_STOP_STRINGS + 1} strings"),
    ],
)
def test_stop_strings_are_bounded(stop: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        GenerationRequest("r", (1,), stop=stop)
    assert caught.value.param == "stop"


def test_as_many_and_as_long_stop_strings_as_allowed_are_taken() -> None:
    GenerationRequest("r", (1,), stop=("x" * MAX_STOP_LENGTH,) * MAX_STOP_STRINGS)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("session", "", "session has 0 characters: it must have 1 to 256"),
        ("session", "s" * 257, "session has 257 characters: it must have 1 to 256"),
        ("cache_salt", "s" * 257, "cache_salt has 257 characters: it must have at most 256"),
        ("owner", "o" * 257, "owner has 257 characters: it must have at most 256"),
        ("session", "\ud800", "session is not valid Unicode: surrogates not allowed at character 0"),
        ("cache_salt", "a\udfff", "cache_salt is not valid Unicode: surrogates not allowed at character 1"),
    ],
)
def test_sessions_salts_and_owners_are_bounded(name: str, value: str, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        GenerationRequest("r", (1,), **{name: value})  # type: ignore[arg-type]  # fields have many types
    assert (str(caught.value), caught.value.param) == (message, name)


def test_as_long_a_session_and_salt_as_allowed_are_taken() -> None:
    request = GenerationRequest("r", (1,), session="é" * MAX_NAME_LENGTH, cache_salt="é" * MAX_NAME_LENGTH)
    assert (len(request.session or ""), len(request.cache_salt)) == (256, 256)


def test_a_request_uses_the_cache_and_belongs_to_nobody_unless_it_says_so() -> None:
    request = GenerationRequest("r", (1,))
    assert (request.cache_prompt, request.cache_salt, request.session, request.boundaries) == (True, "", None, ())
    assert (request.return_progress, request.priority, request.owner) == (False, Lane.NORMAL, "")


@pytest.mark.parametrize("boundaries", [(0,), (3,), (-1,), (2, 1), (1, 1), (1, 3), (10**5000,)], ids=range(7))
def test_boundaries_ascend_inside_the_prompt(boundaries: tuple[int, ...]) -> None:
    with pytest.raises(BadRequest, match=r"^boundaries has .* they must ascend from 1 to 2") as caught:
        GenerationRequest("r", (1, 2, 3), boundaries=boundaries)
    assert caught.value.param == "boundaries"


def test_boundaries_may_stand_at_both_ends_of_their_range() -> None:
    assert GenerationRequest("r", (1, 2, 3), boundaries=(1, 2)).boundaries == (1, 2)


def test_finish_reasons_have_openais_words() -> None:
    """E8: EOS and a stop string are "stop", every bound is "length"."""
    assert {reason: reason.openai for reason in FinishReason} == {
        FinishReason.EOS: "stop",
        FinishReason.STOP_SEQUENCE: "stop",
        FinishReason.LENGTH: "length",
        FinishReason.CONTEXT_EXHAUSTED: "length",
    }


def test_the_time_to_the_first_token_counts_the_queue() -> None:
    """S1."""
    assert Timings(queue_s=1.0, prefill_s=2.0, decode_s=4.0).ttft_s == 3.0
