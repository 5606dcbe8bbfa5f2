"""What completions look like on the way out: whole answers and the chunks of a stream. Event loop or any thread.

A stream's chunks differ in their text only. Each stream encodes what stays the same once, so a token costs one JSON
string and two joins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from llamaserve.api.openai.errors import error_json
from llamaserve.api.sse import DONE_EVENT, sse_event
from llamaserve.request import Finished, Progress, TextDelta

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every answer and chunk of one request repeats."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    system_fingerprint: str


class PromptTokensDetails(msgspec.Struct):
    """Where the tokens of a prompt came from."""

    cached_tokens: int
    """Those that were not computed for this request."""


class Usage(msgspec.Struct):
    """Tokens a request cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, finished: Finished) -> Usage:
        """The usage a finished request reports."""
        total = finished.prompt_tokens + finished.completion_tokens
        details = PromptTokensDetails(finished.cached_tokens)
        return cls(finished.prompt_tokens, finished.completion_tokens, total, details)


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


class _Message(msgspec.Struct):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class _ChatChoice(msgspec.Struct):
    message: _Message
    finish_reason: str
    index: int = 0
    logprobs: None = None


class _TextChoice(msgspec.Struct):
    text: str
    finish_reason: str
    index: int = 0
    logprobs: None = None


class _Answer(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[_ChatChoice] | list[_TextChoice]
    usage: Usage


def chat_answer(head: AnswerHead, text: str, finished: Finished) -> bytes:
    """The JSON of a chat completion."""
    choice = _ChatChoice(_Message(text), finished.reason.openai)
    return _encode(_answer(head, "chat.completion", [choice], finished))


def completion_answer(head: AnswerHead, text: str, finished: Finished) -> bytes:
    """The JSON of a text completion."""
    choice = _TextChoice(text, finished.reason.openai)
    return _encode(_answer(head, "text_completion", [choice], finished))


def _answer(head: AnswerHead, kind: str, choices: list[_ChatChoice] | list[_TextChoice], finished: Finished) -> _Answer:
    return _Answer(head.id, kind, head.created, head.model, head.system_fingerprint, choices, Usage.of(finished))


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """How the chunks of one endpoint look inside their choice."""

    kind: str
    """The value of ``object``."""
    opening: bytes
    """Fields of a chunk sent with the first token; empty for none."""
    before_text: bytes
    after_text: bytes
    without_text: bytes
    """Fields of the chunk that carries the finish reason."""


CHAT_CHUNKS = ChunkShape(
    kind="chat.completion.chunk",
    opening=b'"delta":{"role":"assistant","content":""}',
    before_text=b'"delta":{"content":',
    after_text=b"}",
    without_text=b'"delta":{}',
)
COMPLETION_CHUNKS = ChunkShape(
    kind="text_completion", opening=b"", before_text=b'"text":', after_text=b"", without_text=b'"text":""'
)


class ChunkEncoder:
    """Turns the events of one request into server-sent events. Event loop only; one object a request."""

    def __init__(self, shape: ChunkShape, head: AnswerHead, *, has_usage_chunk: bool) -> None:
        fixed = {
            "id": head.id,
            "object": shape.kind,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.system_fingerprint,
        }
        self._chunk_start = b"data: " + _encode(fixed)[:-1] + b',"choices":['
        # Clients that asked for usage find it null in every chunk but the last.
        self._chunk_end = b'],"usage":null}\n\n' if has_usage_chunk else b"]}\n\n"
        self._choice_start = self._chunk_start + b'{"index":0,"logprobs":null,'
        self._unfinished_end = b',"finish_reason":null}' + self._chunk_end
        self._text_start = self._choice_start + shape.before_text
        self._text_end = shape.after_text + self._unfinished_end
        self._shape = shape
        self._has_usage_chunk = has_usage_chunk
        self._is_open = not shape.opening

    def encode_text(self, delta: TextDelta) -> bytes:
        """The chunk for new text, after the opening one if this is the first; nothing while the text is held back."""
        chunk = self._text_start + _encode(delta.text) + self._text_end if delta.text else b""
        return chunk if self._is_open else self._opening() + chunk

    def encode_progress(self, progress: Progress, time_ms: float) -> bytes:
        """A chunk without text that says how far the prompt is; the first of them is the opening one too."""
        fields = self._shape.without_text
        if not self._is_open:
            self._is_open = True
            fields = self._shape.opening
        shown = PromptProgress(progress.total, progress.cached, progress.cached + progress.computed, round(time_ms))
        parts = [self._choice_start, fields, b',"finish_reason":null}],"prompt_progress":', _encode(shown)]
        return b"".join([*parts, self._chunk_end.removeprefix(b"]")])

    def encode_end(self, finished: Finished) -> bytes:
        """The chunk with the finish reason, the usage chunk if it was asked for, and the end mark."""
        reason = b',"finish_reason":' + _encode(finished.reason.openai) + b"}"
        events = [self._choice_start, self._shape.without_text, reason, self._chunk_end]
        if not self._is_open:
            events.insert(0, self._opening())
        if self._has_usage_chunk:
            events += [self._chunk_start, b'],"usage":', _encode(Usage.of(finished)), b"}\n\n"]
        return b"".join([*events, DONE_EVENT])

    def encode_error(self, error: Exception) -> bytes:
        """The event that ends a stream which failed after its first event."""
        return sse_event(error_json(error))

    def _opening(self) -> bytes:
        self._is_open = True
        return self._choice_start + self._shape.opening + self._unfinished_end
