"""Whole answers: what the events of each choice add up to, and their JSON. Event loop or any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from llamaserve.api.openai.answer_plan import AnswerHead, AnswerPlan
from llamaserve.api.openai.logprobs import (
    ChatLogprobs,
    LegacyLogprobs,
    LegacyWriter,
    PromptTokenLogprob,
    chat_logprobs,
    prompt_logprobs,
)
from llamaserve.api.openai.messages import Message, MessageBuilder, chat_finish_reason
from llamaserve.api.openai.usage import Timings, Usage
from llamaserve.request import Finished, Progress, PromptLogprobs, TextDelta, TokenLogprob

_encode = msgspec.json.Encoder().encode

PromptLogprobList = list[dict[str, PromptTokenLogprob] | None]


class ChatChoice(msgspec.Struct):
    """A choice of a chat completion."""

    message: Message
    finish_reason: str
    index: int
    logprobs: ChatLogprobs | None = None
    stop_reason: str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class TextChoice(msgspec.Struct):
    """A choice of a text completion."""

    text: str
    finish_reason: str
    index: int
    logprobs: LegacyLogprobs | None = None
    stop_reason: str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobList | UnsetType = UNSET


class _Answer(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice] | list[TextChoice]
    usage: Usage
    timings: Timings
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobList | UnsetType = UNSET


class Answer(Protocol):
    """The choices of one answer while they come."""

    def take(self, index: int, event: TextDelta | PromptLogprobs | Progress) -> None:
        """The next event of a choice."""

    def whole(self, head: AnswerHead, finished: Sequence[Finished]) -> bytes:
        """The JSON; ``finished`` has the last event of each choice."""


class _Pieces:
    """What came of one choice."""

    __slots__ = ("logprobs", "prompt", "texts", "tokens")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt: Sequence[TokenLogprob] = ()

    def add(self, event: TextDelta | PromptLogprobs | Progress) -> None:
        if isinstance(event, TextDelta):
            self.texts.append(event.text)
            self.tokens += event.tokens
            self.logprobs += event.logprobs
        elif isinstance(event, PromptLogprobs):
            self.prompt = event.tokens


class CompletionAnswer:
    """The answer to ``/v1/completions``."""

    def __init__(self, plan: AnswerPlan) -> None:
        self._plan = plan
        self._pieces = [_Pieces() for _ in range(plan.n_choices)]

    def take(self, index: int, event: TextDelta | PromptLogprobs | Progress) -> None:
        """As ``Answer``."""
        self._pieces[index].add(event)

    def whole(self, head: AnswerHead, finished: Sequence[Finished]) -> bytes:
        """As ``Answer``."""
        choices = [self._choice(index, end) for index, end in enumerate(finished)]
        return _encode(_answer(head, "text_completion", choices, finished, self._plan))

    def _choice(self, index: int, finished: Finished) -> TextChoice:
        shown, prompt, pieces = self._plan.shown, self._plan.prompt_of(index), self._pieces[index]
        choice = TextChoice(prompt.echo + "".join(pieces.texts), finished.reason.openai, index)
        choice.stop_reason = stop_reason(finished)
        if shown.n_top is not None:
            echoed = pieces.prompt if shown.has_echo else ()
            choice.logprobs = LegacyWriter(self._plan.vocab, shown.n_top).write([*echoed, *pieces.logprobs])
        if shown.n_prompt_top is not None:
            choice.prompt_logprobs = prompt_logprobs(pieces.prompt, shown.n_prompt_top)
        if shown.has_token_ids:
            choice.token_ids, choice.prompt_token_ids = pieces.tokens, prompt.tokens
        return choice


class ChatAnswer:
    """The answer to ``/v1/chat/completions``; its choices have one prompt."""

    def __init__(self, plan: AnswerPlan) -> None:
        self._plan = plan
        self._pieces = [_Pieces() for _ in range(plan.n_choices)]
        self._parsers = [plan.make_parser() for _ in range(plan.n_choices)]
        self._messages = [MessageBuilder() for _ in range(plan.n_choices)]

    def take(self, index: int, event: TextDelta | PromptLogprobs | Progress) -> None:
        """As ``Answer``."""
        self._pieces[index].add(event)
        if isinstance(event, TextDelta):
            for delta in self._parsers[index].feed(event.text):
                self._messages[index].add(delta)

    def whole(self, head: AnswerHead, finished: Sequence[Finished]) -> bytes:
        """As ``Answer``."""
        choices = [self._choice(index, end) for index, end in enumerate(finished)]
        answer = _answer(head, "chat.completion", choices, finished, self._plan)
        shown = self._plan.shown
        if shown.has_token_ids:
            answer.prompt_token_ids = self._plan.prompts[0].tokens
        if shown.n_prompt_top is not None:
            answer.prompt_logprobs = prompt_logprobs(self._pieces[0].prompt, shown.n_prompt_top)
        return _encode(answer)

    def _choice(self, index: int, finished: Finished) -> ChatChoice:
        shown, pieces, parser, message = (
            self._plan.shown,
            self._pieces[index],
            self._parsers[index],
            self._messages[index],
        )
        for delta in parser.finish():
            message.add(delta)
        reason = chat_finish_reason(finished, has_tool_calls=parser.has_tool_calls)
        choice = ChatChoice(message.message, reason, index, stop_reason=stop_reason(finished))
        if shown.n_top is not None:
            choice.logprobs = chat_logprobs(pieces.logprobs, shown.n_top)
        if shown.has_token_ids:
            choice.token_ids = pieces.tokens
        return choice


def stop_reason(finished: Finished) -> str | UnsetType:
    """The stop string that ended a choice, in vLLM's field."""
    return UNSET if finished.stop_sequence is None else finished.stop_sequence


def _answer(
    head: AnswerHead,
    kind: str,
    choices: list[ChatChoice] | list[TextChoice],
    finished: Sequence[Finished],
    plan: AnswerPlan,
) -> _Answer:
    return _Answer(
        head.id,
        kind,
        head.created,
        head.model,
        head.system_fingerprint,
        choices,
        Usage.of(finished, plan.n_per_prompt),
        Timings.of(finished[0]),
    )
