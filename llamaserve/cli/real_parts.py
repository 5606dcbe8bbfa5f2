"""The real models, engine and server. Imported when a command runs, so that ``--help`` needs no native module."""

from __future__ import annotations

from collections.abc import Callable

from llamaserve.cli.parts import Parts
from llamaserve.config import EngineConfig, SchedulerConfig
from llamaserve.engine.native import NativeEngine, read_gguf
from llamaserve.models import resolve
from llamaserve.server.run import run_server
from llamaserve.service import Service


def load_service(
    config: EngineConfig, scheduler_config: SchedulerConfig, model_name: str, progress: Callable[[float], bool]
) -> Service:
    """Load the model and start its scheduler. Raises ModelLoad, ConfigError."""
    engine = NativeEngine.load(config, progress)
    return Service(engine, engine.chat_template, scheduler_config, model_name)


PARTS = Parts(resolve=resolve, load_service=load_service, read_gguf=read_gguf, run_server=run_server)
