"""The command line over the fake engine: real server, real scheduler, no model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from llamaserve.chat.template import PLAIN_CHAT, ChatOptions, RenderedChat
from llamaserve.cli import main
from llamaserve.cli.parts import Parts
from llamaserve.config import CacheConfig, EngineConfig, HttpConfig, SchedulerConfig
from llamaserve.engine.fake import Continuation, FakeEngine, scripted
from llamaserve.engine.port import MemoryKind
from llamaserve.errors import BadTemplate, ModelLoad
from llamaserve.models import DownloadProgress
from llamaserve.service import Service

MODEL_PATH = Path("models") / "tiny.Q4_1.gguf"


class PlainTemplate:
    """Writes a conversation as "user: hi|assistant:", so that a script can answer it."""

    def render(self, messages: Sequence[Mapping[str, object]], options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
        for message in messages:
            if message["content"] == "unspeakable":
                raise BadTemplate("the template refuses this")
        lines = [f"{message['role']}: {message['content']}" for message in messages]
        return RenderedChat("|".join([*lines, "assistant:"] if options.add_generation_prompt else lines), ())


@dataclass(frozen=True)
class Header:
    """What a small file says."""

    architecture: str = "llama"
    description: str = "llama 1M Q4_1"
    n_tensors: int = 12
    size_bytes: int = 2_500_000
    n_params: int = 1_250_000
    n_ctx_train: int = 2048
    memory: MemoryKind = MemoryKind.KV
    chat_template: str | None = "{{ messages }}\nsecond line"
    metadata: Mapping[str, str | int | float | bool] = field(
        default_factory=lambda: {
            "general.name": "Tiny\x1b[31m",
            "llama.block_count": 3,
            "tokenizer.ggml.tokens[]": 99,
            "general.license": "mit",
        }
    )


@dataclass
class FakeParts:
    """Stand-ins that remember what they were asked."""

    continuation: Continuation = field(default_factory=lambda: scripted({}))
    n_ctx: int = 1024
    template: PlainTemplate | None = field(default_factory=PlainTemplate)
    header: Header = field(default_factory=Header)
    load_error: Exception | None = None
    resolved: list[str] = field(default_factory=list)
    engine_configs: list[EngineConfig] = field(default_factory=list)
    scheduler_configs: list[SchedulerConfig] = field(default_factory=list)
    cache_configs: list[CacheConfig] = field(default_factory=list)
    http_configs: list[HttpConfig] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    engines: list[FakeEngine] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)

    @property
    def parts(self) -> Parts:
        return Parts(
            resolve=self._resolve, load_service=self._load, read_gguf=lambda path: self.header, run_server=self._serve
        )

    def _resolve(self, source: str, *, progress: DownloadProgress) -> Path:
        self.resolved.append(source)
        if source == "missing.gguf":
            raise ModelLoad("there is no model file\n'missing.gguf'")
        progress.note("downloading tiny")
        progress.advance(10, 100)
        return MODEL_PATH

    def _load(
        self,
        engine_config: EngineConfig,
        scheduler_config: SchedulerConfig,
        model_name: str,
        progress: Callable[[float], bool],
        *,
        cache: CacheConfig,
    ) -> Service:
        self.engine_configs.append(engine_config)
        self.scheduler_configs.append(scheduler_config)
        self.cache_configs.append(cache)
        self.names.append(model_name)
        if self.load_error:
            raise self.load_error
        assert progress(0.5)
        engine = FakeEngine(n_slots=engine_config.n_slots, n_ctx=self.n_ctx, continuation=self.continuation)
        service = Service(engine, self.template, scheduler_config, model_name, cache=cache)
        self.engines.append(engine)
        self.services.append(service)
        return service

    def _serve(
        self,
        load: Callable[[], Service],
        config: HttpConfig,
        *,
        on_ready: Callable[[Service, str], None],
        cancel_load: Callable[[], None] | None = None,
    ) -> None:
        self.http_configs.append(config)
        with_service: list[Service] = []
        thread = threading.Thread(target=lambda: with_service.append(load()))
        thread.start()
        thread.join()
        host = f"[{config.host}]" if ":" in config.host else config.host
        on_ready(with_service[0], f"http://{host}:{config.port}")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeParts]:
    monkeypatch.delenv("LLAMASERVE_API_KEY", raising=False)
    parts = FakeParts()
    yield parts
    for service in parts.services:
        service.close()


@dataclass(frozen=True)
class Outcome:
    """How a command line ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(fake: FakeParts, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            main(arguments, fake.parts)
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Outcome(code, captured.out, captured.err)

    return run_command
