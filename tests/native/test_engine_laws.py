"""The real engine obeys the laws of the port, on every kind of memory it has."""

from __future__ import annotations

import pytest

from llamaserve.config import FlashAttention, Profile
from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import MemoryKind
from tests.engine_laws import FINAL_LAWS, LAWS, Law, close_all
from tests.mask_laws import MASK_LAWS
from tests.memory_laws import FINAL_MEMORY_LAWS, MEMORY_LAWS
from tests.native.conftest import LoadEngine


@pytest.mark.parametrize("kind", ["dense_model", "sliding_window_model", "recurrent_model", "hybrid_model"])
def test_the_native_engine_obeys_every_law(load: LoadEngine, kind: str, request: pytest.FixtureRequest) -> None:
    """E2–E4, E10, E12, E13, S40, S56, S62, K26, K126."""
    engine = load(request.getfixturevalue(kind), profile=Profile.PARITY, n_slots=3)
    assert not engine.can_share
    obey(engine)


@pytest.mark.parametrize("kind", ["dense_model", "sliding_window_model", "recurrent_model", "hybrid_model"])
@pytest.mark.parametrize("swa_full", [False, True], ids=["", "swa_full"])
def test_one_pool_for_all_obeys_every_law(
    load: LoadEngine, kind: str, swa_full: bool, request: pytest.FixtureRequest
) -> None:
    """S19, D7: without flash attention, so that the order of cells moves logits by rounding errors only."""
    engine = load(
        request.getfixturevalue(kind), n_slots=3, swa_full=swa_full, flash_attention=FlashAttention.OFF, n_ctx=2048
    )
    assert engine.can_share == (kind == "dense_model" or (kind == "sliding_window_model" and swa_full))
    assert engine.n_ids == (255 if engine.can_share else 3)
    obey(engine)


def obey(engine: NativeEngine) -> None:
    for law in (*LAWS, *MASK_LAWS, *MEMORY_LAWS):
        law(engine)
        close_all(engine)
        assert engine.used_cells() == 0, law.__name__


@pytest.mark.parametrize("law", [*FINAL_LAWS, *FINAL_MEMORY_LAWS], ids=lambda law: law.__name__)
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
