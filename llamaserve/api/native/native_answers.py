"""What ``/completion`` answers, in llama-server's fields: whole, and as chunks of a stream. Any thread."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from llamaserve.api.native.generation_settings import generation_settings
from llamaserve.api.openai.answer_plan import AnswerHead, AnswerPlan
from llamaserve.api.openai.chunks import PromptProgress
from llamaserve.api.openai.errors import error_json
from llamaserve.api.openai.preparing import PreparedRequest
from llamaserve.api.openai.usage import RunningCounts, Timings
from llamaserve.api.sse import sse_event
from llamaserve.request import (
    Finished,
    FinishReason,
    GenerationRequest,
    Progress,
    PromptLogprobs,
    TextDelta,
    TokenLogprob,
)

NO_SLOT = -1
"""Which slot serves a request is the scheduler's business, and may change while it runs."""
LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""
STOP_TYPES: Mapping[FinishReason, str] = {
    FinishReason.EOS: "eos",
    FinishReason.STOP_SEQUENCE: "word",
    FinishReason.LENGTH: "limit",
    FinishReason.CONTEXT_EXHAUSTED: "limit",
}
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class NativePlan:
    """What the answers of one HTTP request have in common."""

    plan: AnswerPlan
    requests: tuple[GenerationRequest, ...]
    is_streamed: bool

    @classmethod
    def of(cls, prepared: PreparedRequest) -> NativePlan:
        """The plan of a prepared request."""
        return cls(prepared.plan, prepared.requests, prepared.is_streamed)


class NativeTopLogprob(msgspec.Struct):
    """One of the likeliest tokens of a place."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class NativeTokenLogprob(NativeTopLogprob):
    """A token of the text."""

    top_logprobs: list[NativeTopLogprob]


class NativeFinal(msgspec.Struct):
    """The whole answer of one choice; at the end of a stream without text, tokens and probabilities."""

    index: int
    content: str
    tokens: Sequence[int]
    id_slot: int
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    """Tokens of the prompt."""
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    """Whether the end of the context ended the text."""
    stop_type: str
    stopping_word: str
    tokens_cached: int
    """Tokens of the prompt that were not computed for this request."""
    timings: Timings
    completion_probabilities: list[NativeTokenLogprob] | msgspec.UnsetType = msgspec.UNSET


class _Partial(msgspec.Struct, omit_defaults=True):
    """A chunk of a stream before its end."""

    index: int
    content: str
    tokens: Sequence[int]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    timings: Timings | None = None
    prompt_progress: PromptProgress | None = None
    completion_probabilities: list[NativeTokenLogprob] | None = None


def final_object(
    native: NativePlan, head: AnswerHead, index: int, finished: Finished, *, text: str, tokens: Sequence[int]
) -> NativeFinal:
    """The last object of a choice. ``text`` is all of its text."""
    is_streamed = native.is_streamed
    return NativeFinal(
        index=index,
        content="" if is_streamed else text,
        tokens=() if is_streamed else tokens,
        id_slot=NO_SLOT,
        stop=True,
        model=head.model,
        tokens_predicted=finished.completion_tokens,
        tokens_evaluated=finished.prompt_tokens,
        generation_settings=generation_settings(native.requests[index], is_streamed=is_streamed),
        prompt=native.plan.prompt_of(index).text,
        has_new_line="\n" in text,
        truncated=finished.reason is FinishReason.CONTEXT_EXHAUSTED,
        stop_type=STOP_TYPES[finished.reason],
        stopping_word=finished.stop_sequence or "",
        tokens_cached=finished.cached_tokens,
        timings=Timings.of(finished),
    )


def selected(final: NativeFinal, fields: Sequence[str]) -> object:
    """An object with these fields only, ``a/b`` under that name; one that is not there is left out. All for none."""
    if not fields:
        return final
    whole = msgspec.to_builtins(final)
    chosen: dict[str, object] = {}
    for path in fields:
        value = whole
        for name in path.split("/"):
            value = value.get(name, msgspec.UNSET) if isinstance(value, dict) else msgspec.UNSET
        if value is not msgspec.UNSET:
            chosen[path] = value
    return chosen


def probabilities(tokens: Sequence[TokenLogprob], n_top: int) -> list[NativeTokenLogprob]:
    """The tokens of a text with ``n_top`` alternatives each."""
    return [
        NativeTokenLogprob(
            *_shown(token.token, token.piece, token.logprob),
            [NativeTopLogprob(*_shown(*alternative)) for alternative in token.top[:n_top]],
        )
        for token in tokens
    ]


def _shown(token: int, piece: bytes, logprob: float | None) -> tuple[int, str, list[int], float]:
    value = LOWEST if logprob is None else max(logprob, LOWEST)
    return token, piece.decode("utf-8", "replace"), list(piece), value


class NativeAnswer:
    """A whole answer: one object, or a list of them for several choices. An ``Answer``."""

    def __init__(self, native: NativePlan) -> None:
        self._native = native
        n_choices = native.plan.n_choices
        self._texts: list[list[str]] = [[] for _ in range(n_choices)]
        self._tokens: list[list[int]] = [[] for _ in range(n_choices)]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in range(n_choices)]

    def take(self, index: int, event: TextDelta | PromptLogprobs | Progress) -> None:
        """The next event of a choice."""
        if isinstance(event, TextDelta):
            self._texts[index].append(event.text)
            self._tokens[index] += event.tokens
            self._logprobs[index] += event.logprobs

    def whole(self, head: AnswerHead, finished: Sequence[Finished]) -> bytes:
        """The JSON."""
        objects = [self._object(head, index, end) for index, end in enumerate(finished)]
        return _encode(objects[0] if len(objects) == 1 else objects)

    def _object(self, head: AnswerHead, index: int, finished: Finished) -> object:
        shown = self._native.plan.shown
        tokens = self._tokens[index] if shown.has_token_ids else ()
        text = "".join(self._texts[index])
        final = final_object(self._native, head, index, finished, text=text, tokens=tokens)
        if shown.n_top is not None:
            final.completion_probabilities = probabilities(self._logprobs[index], shown.n_top)
        return selected(final, shown.fields)


class NativeChunks:
    """The chunks of one choice. A ``ChoiceEncoder``; event loop only."""

    def __init__(self, native: NativePlan, head: AnswerHead, index: int) -> None:
        self._native = native
        self._head = head
        self._index = index
        self._shown = native.plan.shown
        self._n_prompt = len(native.plan.prompt_of(index).tokens)
        self._n_drawn = 0
        self._has_new_line = False
        self._held = TextDelta("", ())
        self._counts = RunningCounts(self._n_prompt) if self._shown.has_running_timings else None

    def encode_text(self, delta: TextDelta) -> bytes:
        """A chunk for new text; nothing while it is held back, but its tokens come with the next."""
        self._n_drawn += len(delta.tokens)
        self._has_new_line = self._has_new_line or "\n" in delta.text
        if self._counts is not None:
            self._counts.note_tokens(len(delta.tokens), time.monotonic())
        held = self._held
        self._held = TextDelta(delta.text, held.tokens + delta.tokens, held.logprobs + delta.logprobs)
        return self._take_held() if delta.text else b""

    def encode_progress(self, progress: Progress, time_ms: float) -> bytes:
        """A chunk that says how far the prompt is, if that was asked for."""
        if self._counts is not None:
            self._counts.note_progress(progress, time_ms)
        if not self._shown.has_progress:
            return b""
        shown = PromptProgress(progress.total, progress.cached, progress.cached + progress.computed, round(time_ms))
        return self._chunk(TextDelta("", ()), shown)

    def note_prompt(self, prompt: PromptLogprobs) -> None:
        """Not shown here."""

    def encode_end(self, finished: Finished) -> bytes:
        """What was held back, and the final object."""
        rest = self._take_held() if self._held.tokens else b""
        text = "\n" if self._has_new_line else ""
        final = final_object(self._native, self._head, self._index, finished, text=text, tokens=())
        return rest + sse_event(_encode(selected(final, self._shown.fields)))

    def _take_held(self) -> bytes:
        held, self._held = self._held, TextDelta("", ())
        return self._chunk(held)

    def _chunk(self, delta: TextDelta, progress: PromptProgress | None = None) -> bytes:
        chunk = _Partial(
            self._index,
            delta.text,
            delta.tokens,
            False,
            NO_SLOT,
            self._n_drawn,
            self._n_prompt,
            prompt_progress=progress,
        )
        if self._counts is not None:
            chunk.timings = self._counts.timings(time.monotonic())
        if self._shown.n_top is not None and delta.logprobs:
            chunk.completion_probabilities = probabilities(delta.logprobs, self._shown.n_top)
        return sse_event(_encode(chunk))


class NativeStream:
    """A whole stream, which ends with the final object of its last choice. A ``StreamEncoder``."""

    def __init__(self, native: NativePlan, head: AnswerHead) -> None:
        self.choices = [NativeChunks(native, head, index) for index in range(native.plan.n_choices)]

    def encode_tail(self, finished: Sequence[Finished]) -> bytes:
        """Nothing: there is no end mark."""
        return b""

    def encode_error(self, error: Exception) -> bytes:
        """The event that ends a stream which failed after it began."""
        return sse_event(error_json(error))
