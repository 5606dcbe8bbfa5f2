"""What the commands work with; tests put others in their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from llamaserve.cli.model_facts import GgufHeader
from llamaserve.config import CacheConfig, EngineConfig, HttpConfig, SchedulerConfig
from llamaserve.models import DownloadProgress
from llamaserve.service import Service


class Resolve(Protocol):
    """``llamaserve.models.resolve``."""

    def __call__(self, source: str, *, progress: DownloadProgress) -> Path: ...


class LoadService(Protocol):
    """``llamaserve.load_service.load_service``."""

    def __call__(
        self,
        engine_config: EngineConfig,
        scheduler_config: SchedulerConfig,
        model_name: str,
        progress: Callable[[float], bool],
        *,
        cache: CacheConfig,
    ) -> Service: ...


class RunServer(Protocol):
    """``llamaserve.server.run.run_server``."""

    def __call__(
        self,
        load: Callable[[], Service],
        config: HttpConfig,
        *,
        on_ready: Callable[[Service, str], None],
        cancel_load: Callable[[], None] | None = None,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The doors to models, engine and server."""

    resolve: Resolve
    load_service: LoadService
    read_gguf: Callable[[Path], GgufHeader]
    run_server: RunServer
