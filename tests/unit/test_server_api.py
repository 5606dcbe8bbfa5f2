"""The Python API on a fake engine: folding of events, options, twins."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import sys
import time
import types
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest

from llamaserve import Server, load_service, service
from llamaserve.chat.template import ChatTemplate
from llamaserve.config import CacheConfig, EngineConfig, FlashAttention, Profile, SchedulerConfig
from llamaserve.engine.fake import BOS, EOS, FakeEngine, FakeVocabulary, scripted
from llamaserve.engine.port import Engine
from llamaserve.errors import (
    BadRequest,
    BadSampler,
    BadTemplate,
    BadToken,
    ConfigError,
    ContextFull,
    DeadlineExceeded,
    EmptyPrompt,
    EngineDown,
    PromptTooLong,
    UnknownOption,
)
from llamaserve.request import Event, FinishReason, GenerationRequest, SamplingParams
from llamaserve.request_options import RequestOptions, SamplingOptions
from llamaserve.service import Service
from tests.unit.fake_template import FakeTemplate

REPLIES = {"p": "one two three", "user:hi\nassistant:": "hello|there", "user:bye\nassistant:": "so long"}
HI = [{"role": "user", "content": "hi"}]
BYE = [{"role": "user", "content": "bye"}]


class Served:
    """A server, and the engine behind it."""

    def __init__(self, engine: FakeEngine, template: FakeTemplate | None) -> None:
        self.engine = engine
        self.server = Server.from_service(Service(engine, template, SchedulerConfig(), "fake"))


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served(FakeEngine(n_slots=2, continuation=scripted(REPLIES)), FakeTemplate())
    with served.server:
        yield served


@pytest.fixture
def server(served: Served) -> Server:
    return served.server


def test_complete_tokens_gives_text_tokens_and_reason(server: Server) -> None:
    """S46: until the model ends, and until max_tokens."""
    assert server.complete_tokens("p") == ("one two three", tuple(b"one two three"), FinishReason.EOS)
    text, tokens, reason = server.complete_tokens("p", max_tokens=3)
    assert (text, tokens, reason) == ("one", tuple(b"one"), FinishReason.LENGTH)


def test_token_ids_are_a_prompt_too(server: Server) -> None:
    assert server.complete_tokens(server.tokenize("p")) == server.complete_tokens("p")
    assert server.complete_tokens(list(numpy.array([BOS, ord("p")]))).text == "one two three"


def test_generate_counts_and_times(server: Server) -> None:
    completion = server.generate("p", stop="two")
    assert (completion.text, completion.stop_sequence) == ("one ", "two")
    assert completion.finish_reason is FinishReason.STOP_SEQUENCE
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (
        2,
        7,
        9,
    )
    assert completion.timings.ttft_s >= 0


def test_a_stream_gives_the_same_text_and_then_how_it_ended(server: Server) -> None:
    stream = server.stream("p")
    assert (stream.finish_reason, stream.usage, stream.timings) == (None, None, None)
    assert "".join(stream) == "one two three"
    assert stream.finish_reason is FinishReason.EOS
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 13
    assert stream.timings is not None


def test_a_stream_gives_no_empty_text(server: Server) -> None:
    assert list(server.stream("p", stop=["twx"])) == ["o", "n", "e", " ", "two", " ", "th", "r", "e", "e"]


def test_the_default_ends_after_256_tokens() -> None:
    """§1.1."""
    with Served(FakeEngine(), None).server as server:
        assert len(server.complete_tokens("p").completion_tokens) == 256
        assert server.generate("p", max_tokens=None).finish_reason is FinishReason.CONTEXT_EXHAUSTED


def test_chat_renders_stops_and_answers(server: Server) -> None:
    """The template's own stop strings end the answer."""
    answer = server.chat(HI)
    assert (answer.content, answer.finish_reason) == ("hello", FinishReason.STOP_SEQUENCE)
    assert answer.message == {"role": "assistant", "content": "hello"}
    assert server.chat(BYE, stop=" ").content == "so"
    assert "".join(server.chat_stream(HI)) == "hello"


def test_the_async_twins_give_the_same(server: Server) -> None:
    async def check() -> None:
        assert await server.acomplete_tokens("p", max_tokens=5) == server.complete_tokens("p", max_tokens=5)
        assert (await server.agenerate("p", stop="two")).text == "one "
        assert "".join([text async for text in server.astream("p")]) == "one two three"
        assert (await server.achat(HI)).content == "hello"
        async with server.achat_stream(HI) as stream:
            assert "".join([text async for text in stream]) == "hello"
        assert stream.finish_reason is FinishReason.STOP_SEQUENCE
        assert stream.usage is not None
        assert stream.timings is not None

    asyncio.run(check())


def test_eight_at_once_get_what_each_gets_alone(server: Server) -> None:
    async def check() -> None:
        answers = await asyncio.gather(*(server.acomplete_tokens("p", max_tokens=n) for n in range(1, 9)))
        assert [answer.text for answer in answers] == ["one two three"[:n] for n in range(1, 9)]

    asyncio.run(check())


def test_a_server_is_a_context_manager_on_a_loop_too() -> None:
    engine = FakeEngine()

    async def check() -> None:
        async with Served(engine, None).server as server:
            await server.agenerate("p", max_tokens=1)

    asyncio.run(check())
    assert engine.is_shut_down


def endless() -> Served:
    """One slot, no end."""
    return Served(FakeEngine(n_slots=1, n_ctx=1_000_000), None)


@pytest.mark.parametrize("how", ["close", "with", "collect"])
def test_a_stream_that_is_left_frees_its_slot(how: str) -> None:
    """S52, S54."""
    with endless().server as server:
        stream = server.stream("p", max_tokens=None)
        if how == "with":
            with stream:
                next(stream)
        else:
            next(stream)
        if how == "close":
            stream.close()
            stream.close()
        del stream
        gc.collect()
        assert server.generate("p", max_tokens=2).finish_reason is FinishReason.LENGTH
        assert server.service.stats().requests_cancelled == 1


def test_an_async_stream_that_is_left_frees_its_slot() -> None:
    """S52, S54."""

    async def check() -> None:
        async with endless().server as server:
            async with server.astream("p", max_tokens=None) as stream:
                await anext(stream)
            await server.agenerate("p", max_tokens=2)
            assert server.service.stats().requests_cancelled == 1

    asyncio.run(check())


def listeners() -> int:
    """How many consumers wait for events, in the whole process."""
    return sum(isinstance(each, (service._ThreadListener, service._TaskListener)) for each in gc.get_objects())


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_failed_streams_leave_nothing_behind_even_without_a_collection(kind: str) -> None:
    """K7, S54: the error's traceback refers to the stream, and the caller keeps the error."""
    errors: list[DeadlineExceeded] = []

    async def read_async(server: Server) -> None:
        async for _ in server.astream("p", max_tokens=None, timeout_s=1e-6):
            pass

    def read(server: Server) -> None:
        if kind == "async":
            asyncio.run(read_async(server))
        else:
            list(server.stream("p", max_tokens=None, timeout_s=1e-6))

    with endless().server as server:
        gc.collect()
        gc.disable()
        try:
            for _ in range(200):
                with pytest.raises(DeadlineExceeded) as caught:
                    read(server)
                errors.append(caught.value)
            assert server.generate("p", max_tokens=2).finish_reason is FinishReason.LENGTH
            assert listeners() == 0
        finally:
            gc.enable()
        assert server.service.stats().requests_cancelled == 200
    assert len(errors) == 200


def test_a_request_that_runs_out_of_time_raises() -> None:
    """K37, K38: an error, never a short answer."""
    with endless().server as server:
        with pytest.raises(DeadlineExceeded):
            server.generate("p", max_tokens=None, timeout_s=0.02)
        with pytest.raises(DeadlineExceeded):
            list(server.stream("p", max_tokens=None, timeout_s=0.02))
        with pytest.raises(DeadlineExceeded):
            asyncio.run(server.agenerate("p", max_tokens=None, timeout_s=0.02))


def test_an_error_in_the_middle_is_raised_not_cut_short() -> None:
    """K37: ContextFull comes through on every path."""
    with Served(FakeEngine(n_ctx=20, n_ctx_seq=100), FakeTemplate()).server as server:
        with pytest.raises(ContextFull, match="20 cells"):
            server.generate("p")
        with pytest.raises(ContextFull):
            list(server.stream("p"))
        with pytest.raises(ContextFull):
            server.chat([{"role": "u", "content": ""}])

        async def read() -> None:
            async for _ in server.astream("p"):
                pass

        with pytest.raises(ContextFull):
            asyncio.run(read())


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ([], EmptyPrompt),
        ([258], BadToken),
        ([-1], BadToken),
        ([10**5000], BadToken),
        ([-(10**5000)], BadToken),
        ("p" * 2000, PromptTooLong),
        ("\ud800", BadRequest),
        (b"bytes", BadRequest),
        ([1.5], BadRequest),
        (["a"], BadRequest),
        (None, BadRequest),
        (7, BadRequest),
    ],
)
def test_a_bad_prompt_raises_and_the_next_one_is_served(server: Server, prompt: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        server.generate(prompt)  # type: ignore[arg-type]  # that is the point
    assert server.generate("p", max_tokens=1).text == "o"


def test_an_unknown_keyword_names_the_closest_one(server: Server) -> None:
    """K33."""
    for name, meant in (("temprature", "temperature"), ("max_token", "max_tokens"), ("stops", "stop")):
        with pytest.raises(UnknownOption, match=f"'{name}'; did you mean '{meant}'"):
            server.generate("p", **{name: 1})  # type: ignore[arg-type]  # that is the point
    with pytest.raises(UnknownOption, match=r"'zzz'$"):
        asyncio.run(server.achat(HI, zzz=1))  # type: ignore[call-arg]  # that is the point


def test_every_sampling_parameter_is_a_keyword_and_reaches_the_engine(served: Served) -> None:
    """S39, K34."""
    assert SamplingOptions.__annotations__.keys() == {field.name for field in dataclasses.fields(SamplingParams)}
    assert RequestOptions.__annotations__.keys() - SamplingOptions.__annotations__ == {
        "max_tokens",
        "stop",
        "timeout_s",
        "cache_prompt",
        "cache_salt",
        "session",
        "schema",
        "grammar",
        "stop_token_ids",
        "logprobs",
        "prompt_logprobs",
    }
    given: SamplingOptions = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.5,
        "min_p": 0.1,
        "seed": 42,
        "repeat_penalty": 1.1,
        "repeat_last_n": 9,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "logit_bias": {5: -1.0},
        "ignore_eos": True,
        "dynatemp_range": 0.1,
        "dynatemp_exponent": 1.5,
        "typical_p": 0.9,
        "top_n_sigma": 2.0,
        "xtc_probability": 0.1,
        "xtc_threshold": 0.2,
        "min_keep": 3,
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.2,
        "adaptive_target": 0.5,
        "adaptive_decay": 0.8,
        "dry_multiplier": 0.8,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 99,
        "dry_sequence_breakers": ("x",),
        "samplers": ("dry", "top_k"),
        "min_tokens": 1,
        "bad_words": ((1, 2),),
        "allowed_token_ids": (1, 2, 3),
    }
    assert given.keys() == SamplingOptions.__annotations__.keys()
    served.server.generate("p", max_tokens=1, **given)
    assert served.engine.opened[-1].sampling == SamplingParams(**given)


@pytest.fixture
def requests(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """What reaches the service from blocking calls."""
    seen: list[GenerationRequest] = []
    stream = server.service.stream_blocking

    def recording(request: GenerationRequest, *, timeout_s: float | None = None) -> Iterator[Event]:
        seen.append(request)
        return stream(request, timeout_s=timeout_s)

    monkeypatch.setattr(server.service, "stream_blocking", recording)
    return seen


def test_the_options_of_the_cache_are_keywords_of_every_call(server: Server, requests: list[GenerationRequest]) -> None:
    """K34."""
    options: RequestOptions = {"cache_prompt": False, "cache_salt": "salt", "session": "talk", "max_tokens": 1}
    server.complete_tokens("p", **options)
    server.generate("p", **options)
    list(server.stream("p", **options))
    server.chat(HI, **options)
    list(server.chat_stream(HI, **options))
    assert len(requests) == 5
    for request in requests:
        assert (request.cache_prompt, request.cache_salt, request.session) == (False, "salt", "talk")


def test_none_is_as_if_an_option_of_the_cache_was_not_given(server: Server, requests: list[GenerationRequest]) -> None:
    server.generate("p", max_tokens=1)
    server.generate("p", max_tokens=1, cache_prompt=None, cache_salt=None, session=None)
    for request in requests:
        assert (request.cache_prompt, request.cache_salt, request.session) == (True, "", None)


def settled(server: Server) -> Server:
    """The server, once what its last request left can be found."""
    ends_at = time.monotonic() + 30
    while server.service.stats().active_slots:
        assert time.monotonic() < ends_at, "the slots did not become idle"
        time.sleep(0.001)
    return server


def test_the_same_prompt_again_reports_cached_tokens(server: Server) -> None:
    """S18, S45: on every kind of result that has a usage."""
    assert server.generate("p").usage.cached_tokens == 0
    assert settled(server).generate("p").usage.cached_tokens == 1
    stream = settled(server).stream("p")
    list(stream)
    assert stream.usage is not None
    assert stream.usage.cached_tokens == 1
    assert settled(server).chat(HI).usage.cached_tokens == 1  # a BOS token
    assert settled(server).chat(HI).usage.cached_tokens == len("user:hi\nassistant:")
    assert settled(server).generate("p", cache_prompt=False).usage.cached_tokens == 0
    assert settled(server).generate("p", cache_salt="another").usage.cached_tokens == 0


def test_a_server_may_have_its_cache_off_and_a_call_may_turn_it_on() -> None:
    """S17, S18."""
    engine = FakeEngine(continuation=scripted(REPLIES))
    off = Service(engine, None, SchedulerConfig(), "fake", cache=CacheConfig(cache_prompt=False))
    with Server.from_service(off) as server:
        counts = [
            settled(server).generate("p", cache_prompt=answer).usage.cached_tokens
            for answer in (None, None, True, True)
        ]
    assert counts == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("cache_prompt", "no", "cache_prompt is 'no': it must be True or False"),
        ("cache_salt", 7, "cache_salt is 7: it must be a string"),
        ("session", "", "session has 0 characters"),
        ("session", "\ud800", "session is not valid Unicode"),
    ],
)
def test_a_bad_option_of_the_cache_raises_before_anything_is_queued(
    served: Served, option: str, value: object, says: str
) -> None:
    """K27."""
    with pytest.raises(BadRequest, match=says) as caught:
        served.server.generate("p", **{option: value})  # type: ignore[arg-type]  # that is the point
    assert caught.value.param == option
    assert served.engine.opened == []


def test_a_chat_passes_the_ends_of_its_messages_where_memory_cannot_share(
    server: Server, requests: list[GenerationRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K11."""
    server.chat(HI)
    monkeypatch.setattr(type(server.service), "wants_boundaries", True)
    server.chat([*HI, {"role": "assistant", "content": "x"}, *BYE], max_tokens=1)
    server.generate("p", max_tokens=1)
    history = 1 + len("user:hi\nassistant:x\n")
    assert [request.boundaries for request in requests] == [(), (history, history + len("user:bye\n")), ()]


def test_bad_values_raise_before_anything_is_queued(served: Served) -> None:
    """K27."""
    server = served.server
    with pytest.raises(BadSampler, match="temperature is -1"):
        server.generate("p", temperature=-1)
    with pytest.raises(BadRequest, match="max_tokens is -1"):
        server.generate("p", max_tokens=-1)
    with pytest.raises(BadRequest, match="logprobs is 101"):
        server.generate("p", logprobs=101)
    with pytest.raises(BadRequest, match="stop_token_ids is 5"):
        server.generate("p", stop_token_ids=5)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(BadRequest, match="stop_token_ids must be"):
        server.generate("p", stop_token_ids=["5"])  # type: ignore[list-item]  # that is the point
    with pytest.raises(BadRequest, match="stop string has 0 characters"):
        server.generate("p", stop="")
    with pytest.raises(BadRequest, match="stop holds 7"):
        server.generate("p", stop=[7])  # type: ignore[list-item]  # that is the point
    with pytest.raises(BadRequest, match="stop is 5"):
        server.generate("p", stop=5)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(BadRequest, match=r"stop holds <a number"):
        server.generate("p", stop=[10**5000])  # type: ignore[list-item]  # that is the point
    with pytest.raises(BadSampler, match="logit_bias is"):
        server.generate("p", logit_bias=[(1, 1.0)])  # type: ignore[arg-type]  # that is the point
    with pytest.raises(BadRequest, match="timeout_s"):
        server.generate("p", timeout_s=0)
    with pytest.raises(BadToken):
        server.generate("p", logit_bias={99999: 1.0})
    assert served.engine.opened == []


def test_logarithms_come_with_the_answer(server: Server) -> None:
    """Of the text, of the prompt, and of nothing that was not asked for."""
    answer = server.generate("p", logprobs=2, prompt_logprobs=0)
    assert [logprob.token for logprob in answer.logprobs] == list(answer.tokens)
    assert all(len(logprob.top) == 2 for logprob in answer.logprobs)
    assert [(logprob.piece, logprob.logprob is None) for logprob in answer.prompt_logprobs] == [
        (b"<bos>", True),
        (b"p", False),
    ]
    plain = server.generate("p")
    assert (plain.logprobs, plain.prompt_logprobs, plain.text) == ((), (), answer.text)
    only_prompt = server.generate("p", max_tokens=0, prompt_logprobs=1)
    assert (only_prompt.text, only_prompt.tokens, len(only_prompt.prompt_logprobs)) == ("", (), 2)
    chat = server.chat(HI, logprobs=0)
    assert b"".join(logprob.piece for logprob in chat.logprobs).decode().startswith(chat.content)


def test_a_stream_has_the_logarithms_of_the_text_it_gave_last(server: Server) -> None:
    with server.stream("p", logprobs=0, prompt_logprobs=0) as stream:
        for text in stream:
            assert b"".join(logprob.piece for logprob in stream.logprobs) == text.encode()
            assert len(stream.prompt_logprobs) == 2


def test_a_stop_token_ends_the_answer(server: Server) -> None:
    answer = server.generate("p", stop_token_ids=[ord("t")])
    assert (answer.text, answer.finish_reason) == ("one ", FinishReason.EOS)


def test_none_is_as_if_stop_and_logit_bias_were_not_given(served: Served) -> None:
    assert served.server.generate("p", stop=None, logit_bias=None).text == "one two three"
    assert served.engine.opened[-1].sampling == SamplingParams()


@pytest.mark.parametrize("text", [None, 5, b"bytes"])
def test_only_a_text_can_be_tokenised(server: Server, text: Any) -> None:
    with pytest.raises(BadRequest, match=r"the text is .*: it must be a string"):
        server.tokenize(text)


def test_a_model_without_a_template_cannot_chat() -> None:
    with Served(FakeEngine(), None).server as server, pytest.raises(BadTemplate, match="no chat template"):
        server.chat(HI)


def test_a_template_that_refuses_the_messages_says_so(server: Server) -> None:
    with pytest.raises(BadTemplate, match="does not write 'unspeakable'"):
        server.chat([{"role": "user", "content": "unspeakable"}])


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "is empty: it must have at least 1 message"),
        ("hi", "is 'hi'"),
        (None, "is None"),
        ([HI[0], 7], r"\[1\] is 7"),
    ],
)
def test_messages_that_are_none_are_refused_before_the_template_sees_them(
    server: Server, messages: Any, says: str
) -> None:
    """As over HTTP: a template would write a prompt out of nothing."""
    with pytest.raises(BadRequest, match=f"^messages.*{says}") as caught:
        server.chat(messages)
    assert caught.value.param == "messages"
    with pytest.raises(BadRequest):
        server.chat_stream(messages)
    with pytest.raises(BadRequest):
        asyncio.run(server.achat(messages))


def test_tokens_become_text_again(server: Server) -> None:
    assert server.tokenize("hé") == [BOS, *"hé".encode()]
    assert server.detokenize(server.tokenize("hé🙂")) == "hé🙂"
    assert server.tokenize("<eos>", add_special=False) == [EOS]
    assert server.tokenize("<eos>", add_special=False, parse_special=False) == list(b"<eos>")
    assert server.detokenize([104, EOS], special=True) == "h<eos>"
    assert server.detokenize([0xF0, 0x9F]) == "\ufffd"
    for token in (300, 10**5000):
        with pytest.raises(BadToken):
            server.detokenize([token])


class NarrowVocabulary(FakeVocabulary):
    """Takes 64-bit integers only, as a native one."""

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> bytes:
        return super().detokenize(array("q", tokens), special=special)


def test_a_token_no_c_integer_holds_is_a_bad_token(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    monkeypatch.setattr(FakeEngine, "vocab", NarrowVocabulary())
    with Served(engine, None).server as server:
        assert server.detokenize([104, 105]) == "hi"
        assert server.detokenize([]) == ""
        for token in (2**63, -(2**63) - 1, 10**5000):
            with pytest.raises(BadToken) as caught:
                server.detokenize([104, token])
            assert caught.value.param == "tokens"


def test_a_closed_server_refuses(server: Server) -> None:
    server.close()
    server.close()
    with pytest.raises(EngineDown):
        server.generate("p")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_cxt": 5}, UnknownOption, "did you mean 'n_ctx'"),
        ({"model_path": "x"}, UnknownOption, "did you mean 'model'"),
        ({"n_ctx": 0}, ConfigError, "n_ctx is 0"),
        ({"n_slots": "4"}, ConfigError, "n_slots is '4'"),
        ({"max_queue": -1}, ConfigError, "max_queue is -1"),
        ({"profile": "fast"}, ConfigError, "profile is 'fast': it must be one of 'shared', 'parity'"),
        ({"flash_attention": 1}, ConfigError, "'auto', 'on', 'off'"),
        ({"cache_ram": -1}, ConfigError, "cache_ram is -1"),
        ({"cache_disk": 7}, ConfigError, "cache_disk is 7"),
        ({"cache_disk": ""}, ConfigError, "cache_disk is ''"),
        ({"cache_rma": 7}, UnknownOption, "did you mean 'cache_ram'"),
    ],
)
def test_bad_options_raise_before_a_model_is_looked_for(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    """K33, K18: the model does not exist, which nobody gets to notice."""
    with pytest.raises(error, match=message):
        Server("/nowhere/model.gguf", **options)


class LoadedEngine(FakeEngine):
    """What loading a model gives."""

    configs: ClassVar[list[EngineConfig]] = []
    chat_template = FakeTemplate()

    @classmethod
    def load(cls, config: EngineConfig, progress: Callable[[float], bool] | None) -> LoadedEngine:
        """Remembers the options."""
        cls.configs.append(config)
        return cls(n_slots=config.n_slots)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model file, for an engine that does not read it."""
    native = types.ModuleType("llamaserve.engine.native")
    native.NativeEngine = LoadedEngine  # type: ignore[attr-defined]  # a stand-in for the real module
    monkeypatch.setitem(sys.modules, "llamaserve.engine.native", native)
    monkeypatch.setattr(LoadedEngine, "configs", [])
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_every_option_reaches_the_engine_or_the_scheduler(model: Path) -> None:
    """K34."""
    options: dict[str, Any] = {
        "n_ctx": 512,
        "n_slots": 2,
        "n_batch": 64,
        "n_ubatch": 32,
        "n_threads": 3,
        "n_threads_batch": 5,
        "n_gpu_layers": 1,
        "flash_attention": FlashAttention.ON,
        "use_mmap": False,
        "use_mlock": True,
        "check_tensors": True,
        "swa_full": True,
        "gather_cells": False,
        "profile": Profile.SHARED,
    }
    assert options.keys() == {field.name for field in dataclasses.fields(EngineConfig)} - {"model_path"}
    with Server(model, **options, max_queue=0) as server:
        assert LoadedEngine.configs == [EngineConfig(model_path=model, **options)]
        assert server.service.model_name == "tiny"
        assert server.chat([{"role": "user", "content": "x"}], max_tokens=2).usage.completion_tokens == 2


def test_every_option_of_the_cache_reaches_the_service(model: Path, tmp_path: Path) -> None:
    """K34: a folder also as a string."""
    options: dict[str, Any] = {
        "cache_prompt": False,
        "cache_cells": 77,
        "cache_ram": 3,
        "cache_disk": str(tmp_path / "kept"),
        "cache_disk_gib": 0.5,
        "slot_prompt_similarity": 0.3,
    }
    assert options.keys() == {field.name for field in dataclasses.fields(CacheConfig)}
    with Server(model, **options) as server:
        assert server.service.cache == CacheConfig(**{**options, "cache_disk": tmp_path / "kept"})
    with Server(model, cache_disk=tmp_path) as server:
        assert server.service.cache == CacheConfig(cache_disk=tmp_path)


def test_enums_are_taken_by_value(model: Path) -> None:
    with Server(model, profile="parity", flash_attention="off"):
        (config,) = LoadedEngine.configs
        assert (config.profile, config.flash_attention) == (Profile.PARITY, FlashAttention.OFF)


@pytest.mark.parametrize(
    ("options", "mixed_step"),
    [({}, True), ({"profile": "parity"}, False), ({"profile": "parity", "mixed_step": True}, True)],
)
def test_the_parity_profile_computes_prompts_alone_unless_told_otherwise(
    model: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], mixed_step: bool
) -> None:
    """§0, T14."""
    seen: list[SchedulerConfig] = []

    class RecordingService(Service):
        def __init__(
            self,
            engine: Engine,
            template: ChatTemplate | None,
            config: SchedulerConfig,
            model_name: str,
            *,
            cache: CacheConfig,
            model_path: Path,
        ) -> None:
            seen.append(config)
            super().__init__(engine, template, config, model_name, cache=cache, model_path=model_path)

    monkeypatch.setattr(load_service, "Service", RecordingService)
    with Server(model, **options):
        assert [config.mixed_step for config in seen] == [mixed_step]
