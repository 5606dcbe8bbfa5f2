"""Answers that are long to write: how many log probabilities they may have, and that nobody waits while they are
written."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from llamaserve.api.openai.answer_plan import AnswerHead
from llamaserve.api.openai.answers import ChatAnswer, CompletionAnswer
from llamaserve.api.openai.chunks import ChatChunks, ChunkHead
from llamaserve.api.openai.logprob_limits import MAX_LOGPROBS, MAX_STREAMED_PROMPT_LOGPROBS, check_logprobs
from llamaserve.api.openai.shown import Shown
from llamaserve.config import SchedulerConfig
from llamaserve.engine.fake import FakeEngine
from llamaserve.errors import BadRequest
from llamaserve.request import Finished
from tests.api.served import Served, serving
from tests.api.test_endpoints import error_of

N_CTX = 8192
PREPARING = "llamaserve-prepare"


def check(
    shown: Shown, prompts: Sequence[int], n: int = 1, *, max_tokens: int | None = 1, is_streamed: bool = False
) -> None:
    check_logprobs(shown, prompts, n, max_tokens=max_tokens, n_ctx=N_CTX, is_streamed=is_streamed)


def refusal(
    shown: Shown, prompts: Sequence[int], n: int = 1, *, max_tokens: int | None = 1, is_streamed: bool = False
) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        check(shown, prompts, n, max_tokens=max_tokens, is_streamed=is_streamed)
    return caught.value


def test_what_one_choice_may_have_is_allowed_but_not_for_any_number_of_them() -> None:
    shown = Shown(n_prompt_top=100)
    check(shown, [8000], 2)
    error = refusal(shown, [8000], 68)
    assert error.param == "prompt_logprobs"
    assert str(68 * 8000 * 101) in str(error)
    assert str(MAX_LOGPROBS) in str(error)
    assert refusal(shown, [8000] * 3).param == "prompt_logprobs"


def test_texts_count_with_what_they_may_become() -> None:
    check(Shown(n_top=20), [100], 8, max_tokens=None)
    assert refusal(Shown(n_top=100), [100], 8, max_tokens=None).param == "logprobs"
    check(Shown(n_top=100), [100], 8, max_tokens=100)
    check(Shown(n_top=100), [N_CTX - 10], 68, max_tokens=10**9)


def test_prompts_and_texts_are_counted_together() -> None:
    shown = Shown(n_top=100, has_echo=True)
    n_prompt = MAX_LOGPROBS // 101 // 8
    check(shown, [n_prompt] * 4, max_tokens=n_prompt)
    assert refusal(shown, [n_prompt] * 4, max_tokens=n_prompt + 10).param == "logprobs"


def test_a_streams_prompt_may_have_few_since_they_are_one_event() -> None:
    n_most = MAX_STREAMED_PROMPT_LOGPROBS
    check(Shown(n_prompt_top=3), [n_most // 4], is_streamed=True)
    assert refusal(Shown(n_prompt_top=3), [n_most // 4 + 1], is_streamed=True).param == "prompt_logprobs"
    assert refusal(Shown(n_top=3, has_echo=True), [n_most // 4 + 1], is_streamed=True).param == "echo"
    check(Shown(n_prompt_top=3), [n_most // 4 + 1], is_streamed=False)


def test_without_probabilities_nothing_is_counted() -> None:
    check(Shown(), [N_CTX - 1] * 128, 1, max_tokens=None)


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_a_request_for_too_many_is_refused_before_it_is_queued(path: str) -> None:
    with serving(FakeEngine(n_slots=64, n_ctx=64 * N_CTX), scheduler=SchedulerConfig(max_queue=64)) as served:
        body = {"prompt": [1] * 8, "n": 100, "n_probs": 100, "n_predict": 4000}
        response = served.client.post(path, json=body)
        assert (response.status_code, error_of(response)["param"]) == (400, "logprobs")
        assert served.service.stats().requests_done == 0


class WatchedThreads:
    """On which threads answers are begun and written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.written: list[str] = []
        for kind in (ChatAnswer, CompletionAnswer):
            self._watch(monkeypatch, kind)
        begin = ChatChunks.__init__

        def begin_chunks(chunks: ChatChunks, plan: object, head: ChunkHead, index: int) -> None:
            self.begun.append(threading.current_thread().name)
            begin(chunks, plan, head, index)  # type: ignore[arg-type]  # the plan is only passed on

        monkeypatch.setattr(ChatChunks, "__init__", begin_chunks)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, kind: type[ChatAnswer] | type[CompletionAnswer]) -> None:
        begin, whole = kind.__init__, kind.whole

        def begin_answer(answer: ChatAnswer | CompletionAnswer, plan: object) -> None:
            self.begun.append(threading.current_thread().name)
            begin(answer, plan)  # type: ignore[arg-type]  # the plan is only passed on

        def write(answer: ChatAnswer | CompletionAnswer, head: AnswerHead, finished: Sequence[Finished]) -> bytes:
            self.written.append(threading.current_thread().name)
            return whole(answer, head, finished)  # type: ignore[arg-type]  # of the class it was taken from

        monkeypatch.setattr(kind, "__init__", begin_answer)
        monkeypatch.setattr(kind, "whole", write)


def test_probabilities_are_written_apart_from_the_event_loop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = WatchedThreads(monkeypatch)
    assert served.complete("Hello", max_tokens=2).status_code == 200
    assert not threads.written[0].startswith(PREPARING)
    for fields in ({"logprobs": 1}, {"prompt_logprobs": 1}, {"echo": True, "logprobs": 0}):
        assert served.complete("Hello", max_tokens=2, **fields).status_code == 200
        assert threads.written[-1].startswith(PREPARING)
    assert served.chat("hi", logprobs=True).status_code == 200
    assert threads.written[-1].startswith(PREPARING)


@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_begun_where_bodies_are_prepared(
    served: Served, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Whoever reads an answer that goes on with a text begins by reading that, which takes its time."""
    threads = WatchedThreads(monkeypatch)
    assert served.chat("hi", n=2, stream=stream).status_code == 200
    assert threads.begun
    assert all(name.startswith(PREPARING) for name in threads.begun)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_prompt_that_is_only_shown_must_fit_too(served: Served, max_tokens: int) -> None:
    response = served.complete("x" * 3000, echo=True, max_tokens=max_tokens)
    assert (response.status_code, error_of(response)["code"]) == (400, "context_length_exceeded")
