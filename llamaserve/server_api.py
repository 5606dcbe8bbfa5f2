"""The Python API: a model in this process, called like a library. Knows no HTTP.

Every call that computes has an async twin with an ``a`` in front; both only fold the events of ``Service``.
"""

from __future__ import annotations

import asyncio
import operator
import os
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from llamaserve.chat.prepared import PreparedChat, prepare_chat
from llamaserve.chat.restriction import chat_restriction
from llamaserve.chat.template import ChatOptions
from llamaserve.chat.tools import read_tool_use
from llamaserve.completion import ChatCompletion, CompletedTokens, Completion, CompletionBuilder
from llamaserve.config import CacheConfig, EngineConfig, FlashAttention, Profile, SchedulerConfig, split_options
from llamaserve.errors import BadRequest, BadTemplate, BadToken, ConfigError, UnknownOption, shown
from llamaserve.load_service import load_service
from llamaserve.models import DEFAULT_MODEL, model_name, resolve
from llamaserve.request import Event, GenerationRequest
from llamaserve.request_options import ReadOptions, RequestOptions, read_options
from llamaserve.scheduler.prefill_settings import MIXED_STEP_VARIABLE, resolve_mixed_step
from llamaserve.service import Service
from llamaserve.text_stream import AsyncTextStream, TextStream

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

Prompt = str | Sequence[int]
"""A text, or token ids."""
Messages = Sequence[Mapping[str, object]]
"""Chat messages as OpenAI has them: ``role`` and ``content`` each."""
Tools = Sequence[Mapping[str, object]]
"""Functions the model may call, as OpenAI has them: ``type`` and ``function`` each."""
ToolChoice = str | Mapping[str, object]
""""none", "auto", "required", or the one to call."""
MakeRequest = Callable[[ReadOptions], GenerationRequest]


class Server:
    """A loaded model. Any thread; the ``a`` methods from any event loop. A context manager, sync and async.

    >>> with Server("model.gguf", n_ctx=4096) as server:
    ...     server.generate("The capital of France is", max_tokens=8).text

    ``model`` is a path to a ``.gguf``, "smollm2" (fetched on first use) or "hf:owner/repo/file". ``options`` are the
    fields of ``EngineConfig``, ``SchedulerConfig`` and ``CacheConfig``; enums also by their value, as
    ``profile="parity"``, and ``cache_disk`` also as a string.

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
        """Fail what runs, free the context. May be called twice. The weights go with this object."""
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
        vocab, token_ids = self._service.vocab, _token_ids(tokens, "tokens must be a sequence of token ids")
        for token in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token < vocab.n_tokens:  # also those no C integer holds
                raise BadToken(token, vocab.n_tokens, "tokens")
        return vocab.detokenize(token_ids, special=special).decode(errors="replace")

    # Completions and chat; the keywords are those of ``RequestOptions``. All raise RequestError for input that cannot
    # be served, CapacityError when there is no room or time, EngineError when the model failed, UnknownOption for a
    # keyword that does not exist.

    def complete_tokens(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> CompletedTokens:
        """Continue a prompt; text, token ids and reason."""
        completion = self.generate(prompt, **options)
        return CompletedTokens(completion.text, completion.tokens, completion.finish_reason)

    async def acomplete_tokens(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> CompletedTokens:
        """As ``complete_tokens``."""
        completion = await self.agenerate(prompt, **options)
        return CompletedTokens(completion.text, completion.tokens, completion.finish_reason)

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Completion:
        """Continue a prompt."""
        return _fold(self._events(partial(self._request, prompt), read_options(options)))

    async def agenerate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Completion:
        """As ``generate``."""
        return await _afold(self._aevents(partial(self._request, prompt), read_options(options)))

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> TextStream:
        """Continue a prompt, text by text as it comes. The request is queued at the first ``next``."""
        return TextStream(self._events(partial(self._request, prompt), read_options(options)))

    def astream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncTextStream:
        """As ``stream``: ``async for text in server.astream(…)``. Errors of the prompt come with the first step."""
        return AsyncTextStream(self._aevents(partial(self._request, prompt), read_options(options)))

    def chat(
        self,
        messages: Messages,
        *,
        tools: Tools | None = None,
        tool_choice: ToolChoice | None = None,
        parallel_tool_calls: bool | None = None,
        **options: Unpack[RequestOptions],
    ) -> ChatCompletion:
        """Answer a conversation, written with the model's own template; ``tools`` and what follows as OpenAI has them.
        Raises BadTemplate when the model has no template, or it cannot write these messages."""
        read = read_options(options)
        chat = self._prepare_chat(messages, read, _chat_options(tools, tool_choice, parallel_tool_calls))
        return ChatCompletion.of(_fold(self._events(partial(self._chat_request, chat), read)), chat.make_parser())

    async def achat(
        self,
        messages: Messages,
        *,
        tools: Tools | None = None,
        tool_choice: ToolChoice | None = None,
        parallel_tool_calls: bool | None = None,
        **options: Unpack[RequestOptions],
    ) -> ChatCompletion:
        """As ``chat``."""
        read = read_options(options)
        asked = _chat_options(tools, tool_choice, parallel_tool_calls)
        chat = await asyncio.to_thread(self._prepare_chat, messages, read, asked)
        completion = await _afold(self._aevents(partial(self._chat_request, chat), read))
        return ChatCompletion.of(completion, chat.make_parser())

    def chat_stream(self, messages: Messages, **options: Unpack[RequestOptions]) -> TextStream:
        """Answer a conversation, text by text as the model writes it: reasoning is not told apart."""
        return TextStream(self._events(partial(self._text_chat_request, messages), read_options(options)))

    def achat_stream(self, messages: Messages, **options: Unpack[RequestOptions]) -> AsyncTextStream:
        """As ``chat_stream``: ``async for text in server.achat_stream(…)``."""
        return AsyncTextStream(self._aevents(partial(self._text_chat_request, messages), read_options(options)))

    def _request(self, prompt: Prompt, options: ReadOptions) -> GenerationRequest:
        """Tokenises a text, so it may take a while."""
        return self._token_request(self.tokenize(prompt) if isinstance(prompt, str) else _token_ids(prompt), options)

    def _token_request(self, tokens: Sequence[int], options: ReadOptions) -> GenerationRequest:
        cache_prompt = options.cache_prompt
        if options.sampling.has_dry:
            self._service.vocab.find_breakers(options.sampling.dry_sequence_breakers)
        return GenerationRequest(
            f"python-{uuid.uuid4().hex}",
            tuple(tokens),
            options.max_tokens,
            options.stop,
            options.sampling,
            cache_prompt=self._service.cache.cache_prompt if cache_prompt is None else cache_prompt,
            cache_salt=options.cache_salt,
            session=options.session,
            constraint=None if options.grammar is None else self._service.grammars.compile(options.grammar),
            stop_tokens=options.stop_tokens,
            logprobs=options.logprobs,
            prompt_logprobs=options.prompt_logprobs,
        )

    def _prepare_chat(self, messages: Messages, options: ReadOptions, asked: ChatOptions) -> PreparedChat:
        """Renders and tokenises, so it may take a while."""
        _check_messages(messages)
        template = self._service.template
        if template is None:
            raise BadTemplate("the model has no chat template; use generate with a prompt")
        return prepare_chat(
            messages,
            template,
            self._service.vocab,
            self.tokenize,
            replace(asked, wants_content_mark=options.grammar is not None),
            wants_boundaries=self._service.wants_boundaries,
        )

    def _chat_request(self, chat: PreparedChat, options: ReadOptions) -> GenerationRequest:
        service = self._service
        request = self._token_request(chat.tokens, replace(options, grammar=None))
        return replace(
            request,
            stop=tuple(dict.fromkeys((*request.stop, *chat.stops))),
            boundaries=chat.boundaries,
            visible_tokens=chat.visible_tokens,
            constraint=chat_restriction(
                chat, options.grammar, lambda spec, _: service.grammars.compile(spec), service.vocab, param="grammar"
            ),
        )

    def _text_chat_request(self, messages: Messages, options: ReadOptions) -> GenerationRequest:
        chat = self._prepare_chat(messages, options, ChatOptions(extract_reasoning=False))
        return self._chat_request(replace(chat, visible_tokens={}), options)

    def _events(self, make_request: MakeRequest, options: ReadOptions) -> Generator[Event, None, None]:
        """The events of a request that is made now and queued at the first step."""
        return self._service.stream_blocking(make_request(options), timeout_s=options.timeout_s)

    async def _aevents(self, make_request: MakeRequest, options: ReadOptions) -> AsyncGenerator[Event, None]:
        """The events of a request that is made on a thread and queued at the first step."""
        request = await asyncio.to_thread(make_request, options)
        async with aclosing(self._service.stream(request, timeout_s=options.timeout_s)) as events:
            async for event in events:
                yield event


def _chat_options(tools: Tools | None, tool_choice: ToolChoice | None, parallel_tool_calls: bool | None) -> ChatOptions:
    use = read_tool_use(tools, tool_choice)
    parallel_calls = False if use.is_named else parallel_tool_calls
    return ChatOptions(tools=use.tools, must_call=use.must_call, parallel_calls=parallel_calls)


def _fold(events: Generator[Event, None, None]) -> Completion:
    builder = CompletionBuilder()
    with closing(events):
        for event in events:
            builder.add(event)
    return builder.completion


async def _afold(events: AsyncGenerator[Event, None]) -> Completion:
    builder = CompletionBuilder()
    async with aclosing(events):
        async for event in events:
            builder.add(event)
    return builder.completion


def _load(model: str | os.PathLike[str], options: Mapping[str, Any]) -> Service:
    """Read options, find the file, load it. Options are checked before anything is fetched."""
    if "model_path" in options:
        raise UnknownOption("model_path", "model")
    engine_options, scheduler_options, cache_options = split_options(
        options, EngineConfig, SchedulerConfig, CacheConfig
    )
    if "profile" in engine_options:
        engine_options["profile"] = _enum(Profile, "profile", engine_options["profile"])
    if "flash_attention" in engine_options:
        engine_options["flash_attention"] = _enum(FlashAttention, "flash_attention", engine_options["flash_attention"])
    mixes_steps = engine_options.get("profile", Profile.SHARED).mixes_steps
    mixed_step = resolve_mixed_step(flag=None, text=os.environ.get(MIXED_STEP_VARIABLE), default=mixes_steps)
    scheduler_options.setdefault("mixed_step", mixed_step)
    folder = cache_options.get("cache_disk")
    if folder and isinstance(folder, (str, os.PathLike)):  # an empty name would be the current folder
        cache_options["cache_disk"] = Path(folder)
    scheduler_config = SchedulerConfig(**scheduler_options)
    cache_config = CacheConfig(**cache_options)
    EngineConfig(model_path=Path(), **engine_options)

    config = EngineConfig(model_path=resolve(os.fspath(model)), **engine_options)
    return load_service(config, scheduler_config, model_name(model), cache=cache_config)


EnumT = TypeVar("EnumT", Profile, FlashAttention)


def _enum(kind: type[EnumT], name: str, value: object) -> EnumT:
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(repr(member.value) for member in kind)
        raise ConfigError(f"{name} is {shown(value)}: it must be one of {allowed}") from None


def _token_ids(
    tokens: Sequence[int], otherwise: str = "the prompt must be a text or a sequence of token ids"
) -> list[int]:
    """Plain ints; anything that is an integer is taken, as from numpy. Raises BadRequest."""
    if isinstance(tokens, (bytes, bytearray)):  # a sequence of ints, but never meant as token ids
        raise BadRequest(f"{otherwise}, not bytes", "prompt")
    try:
        return [operator.index(token) for token in tokens]
    except TypeError:
        raise BadRequest(otherwise, "prompt") from None


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise BadRequest(f"the text is {shown(text)}: it must be a string", "prompt")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"the text is not valid Unicode: {error.reason} at character {error.start}", "prompt"
        ) from None


def _check_messages(messages: object) -> None:
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise BadRequest(f"messages is {shown(messages)}: it must be a sequence of messages", "messages")
    if not messages:
        raise BadRequest("messages is empty: it must have at least 1 message", "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise BadRequest(
                f"messages[{index}] is {shown(message)}: it must be a mapping with role and content", "messages"
            )
