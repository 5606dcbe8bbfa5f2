"""From a model file to a running service. Any thread; blocks while the weights are read."""

from __future__ import annotations

from collections.abc import Callable

from llamaserve.config import CacheConfig, EngineConfig, SchedulerConfig
from llamaserve.service import Service


def load_service(
    engine_config: EngineConfig,
    scheduler_config: SchedulerConfig,
    model_name: str,
    progress: Callable[[float], bool] | None = None,
    *,
    cache: CacheConfig | None = None,
) -> Service:
    """Load a model and serve it under a name.

    ``progress`` gets 0.0 to 1.0 while the weights load; returning False stops. ``cache`` None takes the defaults.

    Raises ModelLoad, ConfigError.
    """
    # Heavy: llama.cpp. Who brings an engine of his own does without.
    from llamaserve.engine.native import NativeEngine  # noqa: PLC0415

    engine = NativeEngine.load(engine_config, progress)
    return Service(
        engine,
        engine.chat_template,
        scheduler_config,
        model_name,
        cache=CacheConfig() if cache is None else cache,
        model_path=engine_config.model_path,
    )
