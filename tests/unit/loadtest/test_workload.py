"""What is sent: prompts that share nothing by accident, bodies with what was asked for."""

from __future__ import annotations

from itertools import takewhile

import pytest

from llamaserve.errors import ConfigError
from llamaserve.loadtest.load import ClosedLoad, OpenLoad
from llamaserve.loadtest.plan import Plan, server_url
from llamaserve.loadtest.prompts import WORDS, distinct_text, most_prompts, shared_text
from llamaserve.loadtest.workload import OWN_FIELDS, Workload


def common_words(one: str, other: str) -> int:
    """Words that two texts begin with."""
    pairs = zip(one.split(), other.split(), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_a_prompt_has_the_words_asked_for() -> None:
    for n_tokens in (1, 2, 3, 500):
        assert len(distinct_text(5, n_tokens, seed=0).split()) == n_tokens
    assert len(shared_text(40, seed=0).split()) == 40


def test_words_are_plain_and_none_comes_twice() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


def test_no_two_prompts_begin_alike() -> None:
    prompts = [distinct_text(number, 6, seed=3) for number in range(len(WORDS))]
    assert len({prompt.split()[0] for prompt in prompts}) == len(prompts)


def test_more_prompts_than_words_share_one_word_at_most() -> None:
    prompts = [distinct_text(number, 6, seed=3) for number in range(3 * len(WORDS) + 7)]
    assert len({tuple(prompt.split()[:2]) for prompt in prompts}) == len(prompts)


def test_the_last_prompts_of_all_are_still_distinct() -> None:
    limit = most_prompts(2)
    numbers = [*range(limit - len(WORDS), limit), *range(len(WORDS) // 2)]
    assert len({distinct_text(number, 2, seed=0) for number in numbers}) == len(numbers)


def test_prompts_follow_the_seed() -> None:
    assert distinct_text(1, 20, seed=0) == distinct_text(1, 20, seed=0)
    assert distinct_text(1, 20, seed=0) != distinct_text(1, 20, seed=1)
    assert shared_text(20, seed=0) != shared_text(20, seed=1)


def test_a_completion_asks_for_exactly_what_the_flags_say() -> None:
    call = Workload(input_tokens=12, output_tokens=5, extra_body={"top_k": 3}).call(0, "tiny")
    prompt = call.body["prompt"]
    assert call.body == {
        "top_k": 3,
        "prompt": prompt,
        "max_tokens": 5,
        "temperature": 0.0,
        "model": "tiny",
        "ignore_eos": True,
    }
    assert (len(prompt.split()), call.path, call.expected_tokens) == (12, "/v1/completions", 5)


def test_a_chat_puts_the_shared_part_into_the_system_message() -> None:
    work = Workload(endpoint="chat", input_tokens=12, shared_prefix_tokens=8)
    one, other = work.call(0, None), work.call(1, None)
    assert [message["role"] for message in one.body["messages"]] == ["system", "user"]
    assert one.body["messages"][0] == other.body["messages"][0]
    assert len(one.body["messages"][1]["content"].split()) == 4
    assert one.path == "/v1/chat/completions"
    assert "model" not in one.body
    assert [message["role"] for message in Workload(endpoint="chat").call(0, None).body["messages"]] == ["user"]


def test_prompts_share_the_prefix_and_nothing_more() -> None:
    work = Workload(input_tokens=30, shared_prefix_tokens=20)
    texts = [work.call(number, None).body["prompt"] for number in range(20)]
    assert all(len(text.split()) == 30 for text in texts)
    assert {common_words(texts[0], text) for text in texts[1:]} == {20}


def test_any_length_checks_no_length_and_lets_the_model_end() -> None:
    call = Workload(any_length=True, output_tokens=9).call(0, None)
    assert call.expected_tokens is None
    assert "ignore_eos" not in call.body
    assert call.body["max_tokens"] == 9


def test_sampling_seeds_differ_by_request_and_greedy_has_none() -> None:
    work = Workload(temperature=0.7, seed=10)
    assert [work.call(number, None).body["seed"] for number in range(3)] == [10, 11, 12]
    assert "seed" not in Workload(seed=10).call(0, None).body


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"input_tokens": 0}, ["0", "at least 1"]),
        ({"output_tokens": -3}, ["-3", "at least 1"]),
        ({"shared_prefix_tokens": 128}, ["128", "at most 127"]),
        ({"shared_prefix_tokens": -1}, ["-1", "at most 127"]),
        ({"temperature": float("nan")}, ["nan", "at least 0"]),
        ({"temperature": -0.5}, ["-0.5", "at least 0"]),
        ({"extra_body": {"stream": False, "prompt": "x"}}, ["prompt, stream"]),
    ],
)
def test_a_workload_that_cannot_work_is_refused_with_value_and_limit(
    options: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        Workload(**options)  # type: ignore[arg-type]
    for word in words:
        assert word in str(refused.value)


def test_every_field_the_generator_sets_is_closed_to_the_extra_body() -> None:
    bodies = [Workload(endpoint=end, temperature=1).call(0, "m").body for end in ("completions", "chat")]
    assert {name for body in bodies for name in body} | {"stream", "stream_options", "n"} <= OWN_FIELDS


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
        ("https://example.com/api/v1/", "https://example.com/api"),
        ("http://[::1]:9", "http://[::1]:9"),
    ],
)
def test_a_servers_url_may_end_in_v1(text: str, url: str) -> None:
    assert server_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:8080",
        "ftp://a",
        "http://",
        "http://a:99999",
        "http://a:0",
        "http://a:x",
        "http://[::1",
        "http://a?b=c",
        "http://a#b",
        "http://a b",
        "http://user:secret@a",
        "http://a/\n",
    ],
)
def test_what_is_no_servers_url_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be like http"):
        server_url(text)


def test_no_prompt_comes_twice_in_a_run() -> None:
    plan = Plan("http://a", loads=(ClosedLoad(1), OpenLoad(2), ClosedLoad(3)), n_requests=5, n_warmup=2)
    calls = [call for point in range(3) for call in (*plan.warmup_calls(point, None), *plan.calls(point, None))]
    assert len({call.body["prompt"].split()[0] for call in calls}) == len(calls) == 21


def test_calls_of_an_open_loop_have_times_and_others_none() -> None:
    plan = Plan("http://a", loads=(ClosedLoad(1), OpenLoad(2), OpenLoad(2)), n_requests=4, n_warmup=1)
    assert {call.at for call in plan.calls(0, None)} == {None}
    times = [call.at for call in plan.calls(1, None)]
    assert times[0] == 0
    assert times == sorted(times, key=lambda at: at or 0)
    assert times != [call.at for call in plan.calls(2, None)]
    assert {call.at for call in plan.warmup_calls(1, None)} == {None}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loads": ()}, ["0 points"]),
        ({"n_requests": 0}, ["0", "at least 1"]),
        ({"n_warmup": -1}, ["-1", "at least 0"]),
        ({"stall_timeout": 0}, ["0", "above 0"]),
        ({"stall_timeout": float("nan")}, ["nan", "above 0"]),
        ({"workload": Workload(input_tokens=1), "n_requests": 1000}, ["1001 different prompts", str(len(WORDS))]),
    ],
)
def test_a_plan_that_cannot_work_is_refused_with_value_and_limit(options: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        Plan("http://a", **options)  # type: ignore[arg-type]
    for word in words:
        assert word in str(refused.value)
