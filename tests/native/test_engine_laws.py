"""The real engine obeys the laws of the port, on every kind of memory it has."""

from __future__ import annotations

import pytest

from llamaserve.config import Profile
from llamaserve.engine.port import MemoryKind
from tests.engine_laws import FINAL_LAWS, LAWS, Law, close_all
from tests.native.conftest import LoadEngine


@pytest.mark.parametrize("kind", ["dense_model", "sliding_window_model", "recurrent_model", "hybrid_model"])
def test_the_native_engine_obeys_every_law(load: LoadEngine, kind: str, request: pytest.FixtureRequest) -> None:
    """E2–E4, E10, E12, E13, S40, S56, S62, K26, K126."""
    engine = load(request.getfixturevalue(kind), profile=Profile.PARITY, n_slots=3)
    for law in LAWS:
        law(engine)
        close_all(engine)
        assert engine.used_cells() == 0


@pytest.mark.parametrize("law", FINAL_LAWS, ids=lambda law: law.__name__)
def test_a_shut_down_engine_obeys_the_last_laws(load: LoadEngine, dense_model: object, law: Law) -> None:
    """Errors, never a crash, after the end."""
    law(load(dense_model))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("dense_model", MemoryKind.KV),
        ("sliding_window_model", MemoryKind.SLIDING_WINDOW),
        ("recurrent_model", MemoryKind.RECURRENT),
        ("hybrid_model", MemoryKind.HYBRID),
    ],
)
def test_the_memory_kind_is_the_models_nature(
    load: LoadEngine, model: str, kind: MemoryKind, request: pytest.FixtureRequest
) -> None:
    """L12."""
    assert load(request.getfixturevalue(model)).info.memory is kind
