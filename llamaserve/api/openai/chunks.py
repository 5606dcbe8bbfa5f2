"""Streams: the chunks of each choice as server-sent events. Event loop only.

A stream's chunks differ in their text only, unless the client asked for more. Each choice encodes what stays the same
once, so a token costs one JSON string and two joins. What else was asked for goes the longer way through ``_chunk``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec

from llamaserve.api.openai.answer_plan import AnswerHead, AnswerPlan
from llamaserve.api.openai.answers import stop_reason
from llamaserve.api.openai.errors import error_json
from llamaserve.api.openai.logprobs import LegacyWriter, chat_logprobs, prompt_logprobs
from llamaserve.api.openai.messages import chat_finish_reason, delta_field
from llamaserve.api.openai.usage import RunningCounts, Timings, Usage
from llamaserve.api.sse import DONE_EVENT, sse_event
from llamaserve.chat.message import ContentParser
from llamaserve.request import Finished, Progress, PromptLogprobs, TextDelta, TokenLogprob

_encode = msgspec.json.Encoder().encode


class PromptProgress(msgspec.Struct):
    """How far a prompt is, in llama-server's words."""

    total: int
    """Tokens of the prompt."""
    cache: int
    """Those of them that were not computed for this request."""
    processed: int
    """Those that are done, the cached ones included."""
    time_ms: int
    """Since its first token was begun."""


class ChunkHead:
    """What all chunks of a stream begin and end with."""

    def __init__(self, kind: str, head: AnswerHead, *, has_usage_chunk: bool) -> None:
        fixed = {
            "id": head.id,
            "object": kind,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.system_fingerprint,
        }
        self.start = b"data: " + _encode(fixed)[:-1] + b',"choices":['
        # Clients that asked for usage find it null in every chunk but the last.
        self.usage = b',"usage":null' if has_usage_chunk else b""


class ChoiceChunks(ABC):
    """Turns the events of one choice into chunks; subclasses know the shape of an endpoint. One object a choice."""

    text_start = b""
    text_end = b""
    without_text = b""
    """Fields of a chunk around its text, and of one that has none."""

    def __init__(self, plan: AnswerPlan, head: ChunkHead, index: int, *, is_open: bool) -> None:
        self._head = head
        self._shown = plan.shown
        self._prompt = plan.prompt_of(index)
        self._choice_start = head.start + b'{"index":%d,"logprobs":' % index
        self._plain_start = self._choice_start + b"null," + self.text_start
        self._plain_end = self.text_end + b',"finish_reason":null}]' + head.usage + b"}\n\n"
        self._is_plain = plan.shown.is_text_only
        self._is_open = is_open
        """Whether the chunk was sent that comes before all text."""
        self._counts = RunningCounts(len(self._prompt.tokens)) if plan.shown.is_running else None
        self._prompt_logprobs: Sequence[TokenLogprob] = ()
        self._logprobs: list[TokenLogprob] = []
        self._tokens: list[int] = []
        """Of tokens whose text is held back, as are these."""

    # What a stream asks of it.

    def encode_text(self, delta: TextDelta) -> bytes:
        """The chunk for new text, after the opening one if this is the first; nothing while the text is held back."""
        if self._is_plain:
            chunk = self._plain_start + _encode(delta.text) + self._plain_end if delta.text else b""
            return chunk if self._is_open else self._opening() + chunk
        self._hold(delta)
        opening = b"" if self._is_open else self._opening()
        return opening + self._text_chunks(self._parts(delta.text))

    def encode_progress(self, progress: Progress, time_ms: float) -> bytes:
        """A chunk without text that says how far the prompt is, if that was asked for."""
        if self._counts is not None:
            self._counts.note_progress(progress, time_ms)
        if not self._shown.has_progress:
            return b""
        shown = PromptProgress(progress.total, progress.cached, progress.cached + progress.computed, round(time_ms))
        return self._progress_chunk(b',"prompt_progress":' + _encode(shown))

    def note_prompt(self, prompt: PromptLogprobs) -> None:
        """The prompt's log probabilities, which the opening chunk shows."""
        self._prompt_logprobs = prompt.tokens

    def encode_end(self, finished: Finished) -> bytes:
        """What was held back, and the chunk with the finish reason."""
        opening = b"" if self._is_open else self._opening()
        rest = self._text_chunks(self._last_parts())
        stopped_by = stop_reason(finished)
        stop = b"" if stopped_by is msgspec.UNSET else b',"stop_reason":' + _encode(stopped_by)
        end = self._chunk(
            self.without_text,
            logprobs=self._take_logprobs(),
            reason=_encode(self._reason(finished)),
            of_choice=self._take_token_ids() + stop,
            of_chunk=b',"timings":' + _encode(Timings.of(finished)),
            is_running=False,
        )
        return opening + rest + end

    # What an endpoint says of itself.

    def _parts(self, text: str) -> list[bytes]:
        """The fields of the chunks for new text, none for none."""
        return [self.text_start + _encode(text) + self.text_end] if text else []

    def _last_parts(self) -> list[bytes]:
        """The fields of the chunks for what was held back."""
        return []

    def _reason(self, finished: Finished) -> str:
        return finished.reason.openai

    @abstractmethod
    def _opening(self) -> bytes:
        """The chunk that comes before all text."""

    def _progress_chunk(self, progress: bytes) -> bytes:
        return self._chunk(self.without_text, of_chunk=progress)

    @abstractmethod
    def _logprobs_json(self, tokens: Sequence[TokenLogprob]) -> bytes:
        """The value of ``logprobs`` for the next tokens."""

    # Chunks with everything.

    def _hold(self, delta: TextDelta) -> None:
        self._logprobs += delta.logprobs
        self._tokens += delta.tokens
        if self._counts is not None:
            self._counts.note_tokens(len(delta.tokens), time.monotonic())

    def _text_chunks(self, parts: Sequence[bytes]) -> bytes:
        """The last of them has the tokens behind all."""
        if not parts:
            return b""
        *before, last = parts
        chunks = [self._chunk(part) for part in before]
        chunks.append(self._chunk(last, logprobs=self._take_logprobs(), of_choice=self._take_token_ids()))
        return b"".join(chunks)

    def _take_logprobs(self) -> bytes:
        if self._shown.n_top is None or not self._logprobs:
            return b"null"
        tokens, self._logprobs = self._logprobs, []
        return self._logprobs_json(tokens)

    def _take_token_ids(self) -> bytes:
        if not self._shown.has_token_ids:
            return b""
        tokens, self._tokens = self._tokens, []
        return b',"token_ids":' + _encode(tokens)

    def _prompt_fields(self) -> bytes:
        """What an answer shows of its prompt beside its text."""
        fields = b""
        if self._shown.has_token_ids:
            fields += b',"prompt_token_ids":' + _encode(self._prompt.tokens)
        if self._shown.n_prompt_top is not None:
            shown = prompt_logprobs(self._prompt_logprobs, self._shown.n_prompt_top)
            fields += b',"prompt_logprobs":' + _encode(shown)
        return fields

    def _chunk(
        self,
        fields: bytes,
        *,
        logprobs: bytes = b"null",
        reason: bytes = b"null",
        of_choice: bytes = b"",
        of_chunk: bytes = b"",
        is_running: bool = True,
    ) -> bytes:
        parts = [self._choice_start, logprobs, b",", fields, b',"finish_reason":', reason, of_choice, b"}]"]
        counts, usage = self._counts, self._head.usage
        if counts is not None and self._shown.has_running_usage:
            usage = b',"usage":' + _encode(counts.usage)
        if counts is not None and self._shown.has_running_timings and is_running:
            of_chunk += b',"timings":' + _encode(counts.timings(time.monotonic()))
        return b"".join([*parts, usage, of_chunk, b"}\n\n"])


class ChatChunks(ChoiceChunks):
    """Of a chat: the role, then deltas of the message."""

    text_start = b'"delta":{"content":'
    text_end = b"}"
    without_text = b'"delta":{}'

    def __init__(self, plan: AnswerPlan, head: ChunkHead, index: int) -> None:
        super().__init__(plan, head, index, is_open=False)
        self._parser = plan.make_parser()
        # One that passes all text on need not be asked.
        self._is_plain = self._is_plain and isinstance(self._parser, ContentParser)

    def _parts(self, text: str) -> list[bytes]:
        return [delta_field(delta) for delta in self._parser.feed(text)]

    def _last_parts(self) -> list[bytes]:
        return [delta_field(delta) for delta in self._parser.finish()]

    def _reason(self, finished: Finished) -> str:
        return chat_finish_reason(finished, has_tool_calls=self._parser.has_tool_calls)

    def _opening(self, progress: bytes = b"") -> bytes:
        self._is_open = True
        return self._chunk(b'"delta":{"role":"assistant","content":""}', of_chunk=self._prompt_fields() + progress)

    def _progress_chunk(self, progress: bytes) -> bytes:
        # What the prompt's fields say is known only when it is computed.
        may_open = not self._is_open and self._shown.n_prompt_top is None
        return self._opening(progress) if may_open else super()._progress_chunk(progress)

    def _logprobs_json(self, tokens: Sequence[TokenLogprob]) -> bytes:
        return _encode(chat_logprobs(tokens, self._shown.n_top or 0))


class CompletionChunks(ChoiceChunks):
    """Of a completion: text, which may begin with the prompt."""

    text_start = b'"text":'
    without_text = b'"text":""'

    def __init__(self, plan: AnswerPlan, head: ChunkHead, index: int) -> None:
        shown = plan.shown
        has_opening = shown.has_echo or shown.has_token_ids or shown.n_prompt_top is not None
        super().__init__(plan, head, index, is_open=not has_opening)
        self._writer = LegacyWriter(plan.vocab, shown.n_top or 0)

    def _opening(self) -> bytes:
        self._is_open = True
        shows_logprobs = self._shown.has_echo and self._shown.n_top is not None
        logprobs = _encode(self._writer.write(self._prompt_logprobs)) if shows_logprobs else b"null"
        text = self.text_start + _encode(self._prompt.echo)
        return self._chunk(text, logprobs=logprobs, of_choice=self._prompt_fields())

    def _logprobs_json(self, tokens: Sequence[TokenLogprob]) -> bytes:
        return _encode(self._writer.write(tokens))


class AnswerStream:
    """A whole stream: its choices, and what comes after them."""

    def __init__(
        self,
        kind: str,
        make_choice: Callable[[AnswerPlan, ChunkHead, int], ChoiceChunks],
        plan: AnswerPlan,
        head: AnswerHead,
    ) -> None:
        self._plan = plan
        self._head = ChunkHead(kind, head, has_usage_chunk=plan.shown.has_usage_chunk)
        self.choices = [make_choice(plan, self._head, index) for index in range(plan.n_choices)]

    def encode_tail(self, finished: Sequence[Finished]) -> bytes:
        """The usage chunk if it was asked for, and the end mark."""
        if not self._plan.shown.has_usage_chunk:
            return DONE_EVENT
        usage = _encode(Usage.of(finished, self._plan.n_per_prompt))
        # llama-server has the times in the very last chunk; those of several choices stand in each one's own.
        timings = b',"timings":' + _encode(Timings.of(finished[0])) if len(finished) == 1 else b""
        return b"".join([self._head.start, b'],"usage":', usage, timings, b"}\n\n", DONE_EVENT])

    def encode_error(self, error: Exception) -> bytes:
        """The event that ends a stream which failed after it began."""
        return sse_event(error_json(error))


def chat_stream(plan: AnswerPlan, head: AnswerHead) -> AnswerStream:
    """The stream of a chat."""
    return AnswerStream("chat.completion.chunk", ChatChunks, plan, head)


def completion_stream(plan: AnswerPlan, head: AnswerHead) -> AnswerStream:
    """The stream of a completion."""
    return AnswerStream("text_completion", CompletionChunks, plan, head)
