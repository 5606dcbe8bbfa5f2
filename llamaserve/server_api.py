"""The Python API: a model in this process, called like a library. Knows no HTTP.

Every call that computes has an async twin with an ``a`` in front; both only fold the events of ``Service``.
"""

from __future__ import annotations

import asyncio
import difflib
import operator
import os
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

from llamaserve.config import EngineConfig, FlashAttention, Profile, SchedulerConfig, split_options
from llamaserve.errors import BadRequest, BadTemplate, ConfigError, UnknownOption
from llamaserve.models import DEFAULT_MODEL, model_name, resolve
from llamaserve.request import Event, Failed, Finished, FinishReason, GenerationRequest, SamplingParams, Timings
from llamaserve.service import Service

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

DEFAULT_MAX_TOKENS = 256

Prompt = str | Sequence[int]
"""A text, or token ids."""
Messages = Sequence[Mapping[str, object]]
"""Chat messages as OpenAI has them: ``role`` and ``content`` each."""


class SamplingOptions(TypedDict, total=False):
    """Keyword arguments of every call that computes: the fields of ``SamplingParams``."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    repeat_penalty: float
    repeat_last_n: int
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion."""
        return self.prompt_tokens + self.completion_tokens


class CompletedTokens(NamedTuple):
    """What ``complete_tokens`` gives (S46)."""

    text: str
    completion_tokens: tuple[int, ...]
    """Ids of the tokens drawn, without an end-of-generation token."""
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Completion:
    """A continued prompt."""

    text: str
    tokens: tuple[int, ...]
    """Ids of the tokens drawn, those of a stop string too."""
    finish_reason: FinishReason
    stop_sequence: str | None
    """The stop string that ended the text."""
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """The model's answer in a chat."""

    content: str
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    role: str = "assistant"

    @property
    def message(self) -> dict[str, str]:
        """The answer as a message, to append to the conversation."""
        return {"role": self.role, "content": self.content}


class _Answer:
    """What the events of one request add up to."""

    __slots__ = ("_finished", "_texts", "_tokens")

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._finished: Finished | None = None

    def add(self, event: Event) -> None:
        """Take the next event. Raises the error of a Failed."""
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            self._finished = event
        else:
            self._texts.append(event.text)
            self._tokens.extend(event.tokens)

    @property
    def completion(self) -> Completion:
        """The whole, once it is finished."""
        finished = _require_finished(self._finished)
        return Completion(
            text="".join(self._texts),
            tokens=tuple(self._tokens),
            finish_reason=finished.reason,
            stop_sequence=finished.stop_sequence,
            usage=_usage(finished),
            timings=finished.timings,
        )


class _StreamEnd:
    """How a stream ended."""

    _finished: Finished | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the text ended; None before the end."""
        return None if self._finished is None else self._finished.reason

    @property
    def usage(self) -> Usage | None:
        """Token counts; None before the end."""
        return None if self._finished is None else _usage(self._finished)

    @property
    def timings(self) -> Timings | None:
        """Seconds; None before the end."""
        return None if self._finished is None else self._finished.timings


class TextStream(_StreamEnd):
    """Iterator over the text of a request as it comes; closing it, or leaving its ``with`` block, cancels the rest.

    One thread at a time. Iterating raises the request's error, if it ends with one.
    """

    def __init__(self, events: Generator[Event, None, None]) -> None:
        self._events = events

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        while True:
            event = next(self._events)
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Finished):
                self._finished = event
            elif event.text:
                return event.text

    def close(self) -> None:
        """Cancel what is left (S54). May be called twice."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncTextStream(_StreamEnd):
    """As ``TextStream``, for ``async for`` and ``async with``; one task at a time."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while True:
            event = await anext(self._events)
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Finished):
                self._finished = event
            elif event.text:
                return event.text

    async def aclose(self) -> None:
        """Cancel what is left (S54). May be called twice."""
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Server:
    """A loaded model. Any thread; the ``a`` methods from any event loop. A context manager, sync and async.

    >>> with Server("model.gguf", n_ctx=4096) as server:
    ...     server.generate("The capital of France is", max_tokens=8).text

    ``model`` is a path to a ``.gguf``, "smollm2" (fetched on first use) or "hf:owner/repo/file". ``options`` are the
    fields of ``EngineConfig`` and ``SchedulerConfig``; enums also by their value, as ``profile="parity"``.

    Raises UnknownOption, ConfigError, ModelLoad.
    """

    def __init__(self, model: str | os.PathLike[str] = DEFAULT_MODEL, **options: Any) -> None:
        self._service = _load(model, options)

    @classmethod
    def from_service(cls, service: Service) -> Self:
        """A server on a service that exists already; closing the server closes it."""
        server = cls.__new__(cls)
        server._service = service
        return server

    @property
    def service(self) -> Service:
        """What computes: model information, statistics, events."""
        return self._service

    def close(self) -> None:
        """Fail what runs, free the model. May be called twice."""
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # Tokens.

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text, by default as a prompt gets them.

        ``add_special`` adds what the model wants around a prompt (a BOS token), ``parse_special`` reads control
        tokens written in the text. Raises BadRequest for a text that is not valid Unicode.
        """
        _check_text(text)
        return self._service.vocab.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; bytes that are no character become U+FFFD. ``special`` writes control tokens out.
        Raises BadToken."""
        return self._service.vocab.detokenize(_token_ids(tokens), special=special).decode(errors="replace")

    # Completions. All raise RequestError for input that cannot be served, CapacityError when there is no room or
    # time, EngineError when the model failed, UnknownOption for a keyword that does not exist.

    def complete_tokens(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] = (),
        timeout_s: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> CompletedTokens:
        """Continue a prompt; text, token ids and reason."""
        completion = self.generate(prompt, max_tokens=max_tokens, stop=stop, timeout_s=timeout_s, **sampling)
        return CompletedTokens(completion.text, completion.tokens, completion.finish_reason)

    async def acomplete_tokens(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] = (),
        timeout_s: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> CompletedTokens:
        """As ``complete_tokens``."""
        completion = await self.agenerate(prompt, max_tokens=max_tokens, stop=stop, timeout_s=timeout_s, **sampling)
        return CompletedTokens(completion.text, completion.tokens, completion.finish_reason)

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] = (),
        timeout_s: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Completion:
        """Continue a prompt.

        ``max_tokens`` None goes on until the model ends or the context is full; ``timeout_s`` counts from now to the
        last token.
        """
        params = _sampling_params(sampling)
        return self._gather(self._request(prompt, max_tokens, _stops(stop), params), timeout_s)

    async def agenerate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] = (),
        timeout_s: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Completion:
        """As ``generate``."""
        params = _sampling_params(sampling)
        request = await asyncio.to_thread(self._request, prompt, max_tokens, _stops(stop), params)
        return await self._agather(request, timeout_s)

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] = (),
        timeout_s: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> TextStream:
        """Continue a prompt, text by text as it comes. The request is queued at the first ``next``."""
        params = _sampling_params(sampling)
        request = self._request(prompt, max_tokens, _stops(stop), params)
        return TextStream(self._service.stream_blocking(request, timeout_s=timeout_s))

    def astream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] = (),
        timeout_s: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> AsyncTextStream:
        """As ``stream``: ``async for text in server.astream(…)``. Errors of the prompt come with the first step."""
        params = _sampling_params(sampling)
        make_request = partial(self._request, prompt, max_tokens, _stops(stop), params)
        return AsyncTextStream(self._events(make_request, timeout_s))

    # Chat.

    def chat(
        self,
        messages: Messages,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] = (),
        timeout_s: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> ChatCompletion:
        """Answer a conversation, written with the model's own template. Raises BadTemplate when it has none or
        cannot write these messages."""
        params = _sampling_params(sampling)
        return _chat_completion(self._gather(self._chat_request(messages, max_tokens, _stops(stop), params), timeout_s))

    async def achat(
        self,
        messages: Messages,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] = (),
        timeout_s: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> ChatCompletion:
        """As ``chat``."""
        params = _sampling_params(sampling)
        request = await asyncio.to_thread(self._chat_request, messages, max_tokens, _stops(stop), params)
        return _chat_completion(await self._agather(request, timeout_s))

    def chat_stream(
        self,
        messages: Messages,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] = (),
        timeout_s: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> TextStream:
        """Answer a conversation, text by text as it comes."""
        params = _sampling_params(sampling)
        request = self._chat_request(messages, max_tokens, _stops(stop), params)
        return TextStream(self._service.stream_blocking(request, timeout_s=timeout_s))

    def achat_stream(
        self,
        messages: Messages,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] = (),
        timeout_s: float | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> AsyncTextStream:
        """As ``chat_stream``: ``async for text in server.achat_stream(…)``."""
        params = _sampling_params(sampling)
        make_request = partial(self._chat_request, messages, max_tokens, _stops(stop), params)
        return AsyncTextStream(self._events(make_request, timeout_s))

    def _request(
        self, prompt: Prompt, max_tokens: int | None, stop: tuple[str, ...], sampling: SamplingParams
    ) -> GenerationRequest:
        """Tokenises a text, so it may take a while."""
        tokens = tuple(self.tokenize(prompt) if isinstance(prompt, str) else _token_ids(prompt))
        return GenerationRequest(f"python-{uuid.uuid4().hex}", tokens, max_tokens, stop, sampling)

    def _chat_request(
        self, messages: Messages, max_tokens: int | None, stop: tuple[str, ...], sampling: SamplingParams
    ) -> GenerationRequest:
        template = self._service.template
        if template is None:
            raise BadTemplate("the model has no chat template; use generate with a prompt")
        rendered = template.render(messages)
        stops = tuple(dict.fromkeys((*stop, *rendered.stops)))
        return self._request(rendered.prompt, max_tokens, stops, sampling)

    async def _events(
        self, make_request: Callable[[], GenerationRequest], timeout_s: float | None
    ) -> AsyncGenerator[Event, None]:
        request = await asyncio.to_thread(make_request)
        async with aclosing(self._service.stream(request, timeout_s=timeout_s)) as events:
            async for event in events:
                yield event

    def _gather(self, request: GenerationRequest, timeout_s: float | None) -> Completion:
        answer = _Answer()
        events = self._service.stream_blocking(request, timeout_s=timeout_s)
        try:
            for event in events:
                answer.add(event)
        finally:
            events.close()
        return answer.completion

    async def _agather(self, request: GenerationRequest, timeout_s: float | None) -> Completion:
        answer = _Answer()
        events = self._service.stream(request, timeout_s=timeout_s)
        try:
            async for event in events:
                answer.add(event)
        finally:
            await events.aclose()
        return answer.completion


def _load(model: str | os.PathLike[str], options: Mapping[str, Any]) -> Service:
    """Read options, find the file, load it. Options are checked before anything is fetched."""
    if "model_path" in options:
        raise UnknownOption("model_path", "model")
    engine_options, scheduler_options = split_options(options, EngineConfig, SchedulerConfig)
    if "profile" in engine_options:
        engine_options["profile"] = _enum(Profile, "profile", engine_options["profile"])
    if "flash_attention" in engine_options:
        engine_options["flash_attention"] = _enum(FlashAttention, "flash_attention", engine_options["flash_attention"])
    scheduler_options.setdefault("mixed_step", engine_options.get("profile", Profile.SHARED).mixes_steps)
    scheduler_config = SchedulerConfig(**scheduler_options)
    EngineConfig(model_path=Path(), **engine_options)

    # Heavy: llama.cpp. A server on a service that exists does without.
    from llamaserve.engine.native import NativeEngine  # noqa: PLC0415

    path = resolve(os.fspath(model))
    engine = NativeEngine.load(EngineConfig(model_path=path, **engine_options))
    return Service(engine, engine.chat_template, scheduler_config, model_name(model))


EnumT = TypeVar("EnumT", Profile, FlashAttention)


def _enum(kind: type[EnumT], name: str, value: object) -> EnumT:
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(repr(member.value) for member in kind)
        raise ConfigError(f"{name} is {value!r}: it must be one of {allowed}") from None


def _sampling_params(options: SamplingOptions) -> SamplingParams:
    """Raises UnknownOption for a keyword of no call, with the closest one (K33); BadSampler for a bad value."""
    known = SamplingOptions.__annotations__.keys()
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, [*known, "max_tokens", "stop", "timeout_s"], n=1)
            raise UnknownOption(name, close[0] if close else None)
    return SamplingParams(**options)


def _stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    for text in stops:
        if not isinstance(text, str):
            raise BadRequest(f"stop holds {text!r}: it must hold strings", "stop")
    return stops


def _token_ids(tokens: Sequence[int]) -> list[int]:
    """Plain ints; anything that is an integer is taken, as from numpy. Raises BadRequest."""
    if isinstance(tokens, (bytes, bytearray)):  # a sequence of ints, but never meant as token ids
        raise BadRequest("the prompt must be a text or a sequence of token ids, not bytes", "prompt")
    try:
        return [operator.index(token) for token in tokens]
    except TypeError:
        raise BadRequest("the prompt must be a text or a sequence of token ids", "prompt") from None


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"the text is not valid Unicode: {error.reason} at character {error.start}", "prompt"
        ) from None


def _usage(finished: Finished) -> Usage:
    return Usage(finished.prompt_tokens, finished.completion_tokens)


def _require_finished(finished: Finished | None) -> Finished:
    if finished is None:
        raise RuntimeError("the events of the request ended without a terminal event")
    return finished


def _chat_completion(completion: Completion) -> ChatCompletion:
    return ChatCompletion(completion.text, completion.finish_reason, completion.usage, completion.timings)
