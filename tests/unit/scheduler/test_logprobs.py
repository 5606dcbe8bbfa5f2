"""Log probabilities of texts and prompts, stop tokens, and requests that only have a prompt computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from llamaserve.config import SchedulerConfig
from llamaserve.engine.fake import EOS, FakeEngine, letters, scripted
from llamaserve.engine.fake_text import score
from llamaserve.errors import BadToken
from llamaserve.request import (
    FinishReason,
    GenerationRequest,
    PromptLogprobs,
    TextDelta,
    TokenLogprob,
)
from llamaserve.sampling import SamplingParams
from tests.unit.scheduler.harness import Harness, alone

PROMPT = b"The quick brown fox jumps over the lazy dog"


def recurrent_engine(**sizes: Any) -> FakeEngine:
    return FakeEngine(can_share=False, can_trim=False, can_rewind=False, **sizes)


ENGINES = pytest.mark.parametrize("make_engine", [FakeEngine, recurrent_engine], ids=["shared", "recurrent"])


def submit(harness: Harness, request_id: str = "r", prompt: bytes = PROMPT, **fields: Any) -> str:
    request = GenerationRequest(request_id, tuple(prompt), **({"max_tokens": 8, "cache_prompt": False} | fields))
    harness.scheduler.submit(request)
    return request_id


def deltas(harness: Harness, request_id: str = "r") -> list[TextDelta]:
    return [event for event in harness.events[request_id] if isinstance(event, TextDelta)]


def prompt_scores(harness: Harness, request_id: str = "r") -> PromptLogprobs:
    """The one event that has them, which comes before any text."""
    events = [event for event in harness.events[request_id] if isinstance(event, PromptLogprobs | TextDelta)]
    assert [isinstance(event, PromptLogprobs) for event in events] == [True, *[False] * (len(events) - 1)]
    assert isinstance(events[0], PromptLogprobs)
    return events[0]


def expected_scores(text: Sequence[int], n_top: int) -> list[TokenLogprob]:
    scored = [TokenLogprob(text[0], bytes([text[0]]), None)]
    for end in range(1, len(text)):
        scored.append(TokenLogprob(*score(letters(tuple(text[:end])), text[end], n_top)))
    return scored


# Of the text.


@pytest.mark.parametrize("config", [SchedulerConfig(), SchedulerConfig(lookahead=False)], ids=["ahead", "in step"])
@pytest.mark.parametrize("n_top", [0, 3])
def test_each_token_comes_with_its_own_logarithms(config: SchedulerConfig, n_top: int) -> None:
    harness = Harness(config=config)
    submit(harness, logprobs=n_top)
    submit(harness, "other", b"another")
    harness.run()
    assert harness.tokens("r") == alone(PROMPT)[1]
    text = [*PROMPT, *harness.tokens("r")]
    got = [logprob for delta in deltas(harness) for logprob in delta.logprobs]
    assert got == expected_scores(text, n_top)[len(PROMPT) :]
    assert all(len(delta.logprobs) == len(delta.tokens) for delta in deltas(harness))
    assert not any(delta.logprobs for delta in deltas(harness, "other"))


def test_text_that_is_held_back_leaves_the_logarithms_with_their_tokens() -> None:
    """A token whose text may begin a stop string is delivered at once, without the text."""
    harness = Harness(FakeEngine(continuation=scripted({"p": "one two"})))
    submit(harness, prompt=b"p", logprobs=1, stop=("e tw", "zz"))
    harness.run()
    assert harness.text("r") == "on"
    for delta in deltas(harness):
        assert [logprob.token for logprob in delta.logprobs] == list(delta.tokens)
        assert [logprob.top[0][0] for logprob in delta.logprobs] == list(delta.tokens)
    assert b"".join(logprob.piece for delta in deltas(harness) for logprob in delta.logprobs) == b"one tw"


def test_the_end_of_generation_has_no_logarithm() -> None:
    """It is no token of the text."""
    harness = Harness(FakeEngine(continuation=scripted({"p": "ab"})))
    submit(harness, prompt=b"p", logprobs=0)
    harness.run()
    assert harness.finished("r").completion_tokens == 2
    assert [logprob.piece for delta in deltas(harness) for logprob in delta.logprobs] == [b"a", b"b"]


def test_a_request_that_gave_its_place_up_has_every_logarithm_once() -> None:
    for ram in (1024, 0):
        harness = Harness(FakeEngine(n_slots=2, n_ctx=64), SchedulerConfig(preempt_ram=ram))
        submit(harness, "first", max_tokens=18)
        submit(harness, "r", b"12345678", max_tokens=12, logprobs=1)
        harness.run()
        assert harness.scheduler.stats().preemptions > 0
        text = [*b"12345678", *harness.tokens("r")]
        got = [logprob for delta in deltas(harness) for logprob in delta.logprobs]
        assert got == expected_scores(text, 1)[8:]


# Of the prompt.


@ENGINES
@pytest.mark.parametrize("n_batch", [7, 512])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_prompt_is_scored_once_before_its_text(
    make_engine: Callable[..., FakeEngine], n_batch: int, logprobs: int | None
) -> None:
    """Whatever its pieces are, and the token drawn at its end is not one of it."""
    harness = Harness(make_engine(n_batch=n_batch))
    submit(harness, prompt_logprobs=2, logprobs=logprobs)
    harness.run()
    assert list(prompt_scores(harness).tokens) == expected_scores(PROMPT, 2)
    assert harness.tokens("r") == alone(PROMPT)[1]
    assert [len(delta.logprobs) for delta in deltas(harness)] == [0 if logprobs is None else 1] * 8


@ENGINES
def test_a_prompt_that_is_scored_reuses_nothing_and_leaves_what_it_computed(
    make_engine: Callable[..., FakeEngine],
) -> None:
    """A hit would leave out the logits of what it skips."""
    harness = Harness(make_engine())
    for name, fields in (("a", {}), ("b", {"prompt_logprobs": 0}), ("c", {})):
        submit(harness, name, max_tokens=1, cache_prompt=True, **fields)
        harness.run()
    assert harness.finished("b").cached_tokens == 0
    assert list(prompt_scores(harness, "b").tokens) == expected_scores(PROMPT, 0)
    assert harness.finished("c").cached_tokens > 0


def test_a_prompt_that_is_scored_follows_nobody() -> None:
    """And others may follow it."""
    harness = Harness(FakeEngine(n_batch=16))
    prompt = PROMPT * 3
    submit(harness, "a", prompt, cache_prompt=True)
    submit(harness, "r", prompt, cache_prompt=True, prompt_logprobs=1)
    submit(harness, "b", prompt, cache_prompt=True)
    harness.run()
    assert list(prompt_scores(harness).tokens) == expected_scores(prompt, 1)
    assert harness.finished("r").cached_tokens == 0
    assert harness.finished("b").cached_tokens == len(prompt) - 1


@pytest.mark.parametrize("ram", [1024, 0])
@pytest.mark.parametrize("n_batch", [4, 512])
def test_a_prompt_that_gives_its_place_up_is_scored_once(ram: int, n_batch: int) -> None:
    """In the middle, and then it begins again; or behind its end, and then nothing of it is told again."""
    harness = Harness(FakeEngine(n_slots=2, n_ctx=64, n_batch=n_batch), SchedulerConfig(preempt_ram=ram))
    submit(harness, "first", b"12345678", max_tokens=50)
    harness.tick(2)
    submit(harness, "r", max_tokens=12, prompt_logprobs=1)
    harness.run()
    assert harness.scheduler.stats().preemptions > 0
    assert list(prompt_scores(harness).tokens) == expected_scores(PROMPT, 1)
    assert harness.tokens("r") == alone(PROMPT, 12)[1]


# Nothing but the prompt.


@ENGINES
@pytest.mark.parametrize("prompt_logprobs", [None, 1])
def test_no_token_is_drawn_where_none_is_wanted(
    make_engine: Callable[..., FakeEngine], prompt_logprobs: int | None
) -> None:
    engine = make_engine(n_batch=16)
    harness = Harness(engine)
    submit(harness, max_tokens=0, prompt_logprobs=prompt_logprobs, cache_prompt=True)
    submit(harness, "other", b"another")
    harness.run()
    end = harness.finished("r")
    assert (end.reason, end.completion_tokens, end.prompt_tokens) == (FinishReason.LENGTH, 0, len(PROMPT))
    assert deltas(harness) == []
    if prompt_logprobs is not None:
        assert list(prompt_scores(harness).tokens) == expected_scores(PROMPT, 1)
    assert harness.tokens("other") == alone(b"another")[1]
    submit(harness, "again", cache_prompt=True)
    harness.run()
    assert harness.finished("again").cached_tokens > 0
    assert harness.tokens("again") == alone(PROMPT)[1]


# Tokens that end the text.


@pytest.mark.parametrize("config", [SchedulerConfig(), SchedulerConfig(lookahead=False)], ids=["ahead", "in step"])
def test_a_stop_token_ends_the_text_and_is_not_part_of_it(config: SchedulerConfig) -> None:
    harness = Harness(FakeEngine(continuation=scripted({"p": "abcd"})), config)
    submit(harness, prompt=b"p", stop_tokens=(ord("x"), ord("c")))
    harness.run()
    end = harness.finished("r")
    assert (harness.text("r"), harness.tokens("r")) == ("ab", [ord("a"), ord("b")])
    assert (end.reason, end.completion_tokens, end.stop_sequence) == (FinishReason.EOS, 2, None)


def test_no_text_ends_before_its_least_tokens() -> None:
    harness = Harness(FakeEngine(continuation=scripted({"p": "ab"})))
    submit(harness, prompt=b"p", sampling=SamplingParams(min_tokens=4), max_tokens=6)
    harness.run()
    assert harness.text("r") == "ab.."


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_tokens": (EOS + 2,)}, "stop_token_ids"),
        ({"stop_tokens": (-1,)}, "stop_token_ids"),
        ({"sampling": SamplingParams(allowed_token_ids=(5, 999))}, "allowed_token_ids"),
        ({"sampling": SamplingParams(bad_words=((5,), (6, 999)))}, "bad_words"),
    ],
)
def test_tokens_outside_the_vocabulary_are_refused_at_the_door(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadToken) as caught:
        submit(Harness(), **fields)
    assert caught.value.param == param


def test_the_samplers_see_the_end_of_the_prompt_they_look_back_on() -> None:
    for sampling, n_seen in (
        (SamplingParams(), 0),
        (SamplingParams(repeat_penalty=1.1, repeat_last_n=5), 5),
        (SamplingParams(dry_multiplier=1.0, dry_penalty_last_n=7), 7),
        (SamplingParams(dry_multiplier=1.0, dry_penalty_last_n=7, repeat_penalty=1.1, repeat_last_n=9), 9),
        (SamplingParams(dry_multiplier=1.0, samplers=("top_k",)), 0),
        (SamplingParams(repeat_penalty=1.1, mirostat=2), 0),
    ):
        harness = Harness()
        submit(harness, sampling=sampling)
        harness.run()
        (spec,) = harness.engine.opened
        assert list(spec.history) == list(PROMPT[len(PROMPT) - n_seen :])


def test_the_fakes_logarithms_are_logarithms() -> None:
    _, _, logprob, top = score(ord("a"), ord("a"), 3)
    assert logprob == pytest.approx(-math.log(2))
    assert [token for token, *_ in top] == [97, 98, 99]
