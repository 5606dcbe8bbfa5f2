"""Engines over tiny generated models, and the real default model."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from llamaserve.config import EngineConfig, Profile
from llamaserve.engine.native import NativeEngine
from llamaserve.models import resolve
from tests.native.faults import Streams
from tests.native.tiny_models import (
    write_dense_model,
    write_hybrid_model,
    write_recurrent_model,
    write_sliding_window_model,
)

LoadEngine = Callable[..., NativeEngine]


@pytest.fixture(scope="session")
def dense_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dense_model(tmp_path_factory.mktemp("models") / "dense.gguf")


@pytest.fixture(scope="session")
def sliding_window_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sliding_window_model(tmp_path_factory.mktemp("models") / "sliding-window.gguf")


@pytest.fixture(scope="session")
def recurrent_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recurrent_model(tmp_path_factory.mktemp("models") / "recurrent.gguf")


@pytest.fixture(scope="session")
def hybrid_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid_model(tmp_path_factory.mktemp("models") / "hybrid.gguf")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """SmolLM2, fetched on first use and cached as for a user."""
    return resolve("smollm2")


@pytest.fixture
def load() -> Generator[LoadEngine, None, None]:
    """Load engines that are shut down at the end of the test; one thread, so that numbers do not depend on timing."""
    engines: list[NativeEngine] = []

    def load_engine(path: Path, **options: object) -> NativeEngine:
        settings = {"n_ctx": 1024, "n_threads": 1, "n_slots": 4} | options
        engine = NativeEngine.load(EngineConfig(path, **settings))  # type: ignore[arg-type]  # any option of the config
        engines.append(engine)
        return engine

    yield load_engine
    for engine in engines:
        engine.shutdown()


@pytest.fixture
def parity_engine(load: LoadEngine, dense_model: Path) -> NativeEngine:
    """A tiny dense model whose sequences do not depend on their neighbours."""
    return load(dense_model, profile=Profile.PARITY)


@pytest.fixture
def streams(parity_engine: NativeEngine) -> Streams:
    """Four sequences that run side by side."""
    streams = Streams(parity_engine)
    streams.start()
    return streams
