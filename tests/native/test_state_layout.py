"""Copies cross between engines that name the same layout, and none of the others is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamaserve.config import FlashAttention, Profile
from llamaserve.engine.port import SequenceSpec
from tests.memory_laws import ROOM, finish, hold
from tests.native.conftest import LoadEngine
from tests.native.greedy import GREEDY, generate

PROMPT = (1, *range(30, 90))
KINDS = ("dense_model", "sliding_window_model", "recurrent_model", "hybrid_model")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("profile", [Profile.SHARED, Profile.PARITY])
def test_an_engine_with_the_same_layout_goes_on_from_a_copy(
    load: LoadEngine, kind: str, profile: Profile, request: pytest.FixtureRequest
) -> None:
    """S34, S75: also one with another context, batch and number of threads."""
    path = request.getfixturevalue(kind)
    one = load(path, profile=profile, n_ctx=1024, n_batch=512)
    other = load(path, profile=profile, n_ctx=2048, n_batch=128, n_ubatch=64, n_threads=2)
    assert one.state_layout == other.state_layout
    expected = generate(other, PROMPT, 6)
    hold(one, 0, PROMPT[:-1])
    state = one.save(0, 0, ROOM)
    assert state is not None
    data = bytes(state.view())
    one.shutdown()
    assert other.restore(2, other.load_state(memoryview(data), 0, len(PROMPT) - 1))
    other.open(SequenceSpec(2, GREEDY))
    assert finish(other, 2, PROMPT[-1:], 6) == expected


def test_slots_of_one_pool_are_not_in_the_layout(load: LoadEngine, dense_model: Path) -> None:
    """S75: a restart with more slots keeps what the disk has."""
    one, other = load(dense_model, n_slots=2), load(dense_model, n_slots=7)
    assert one.state_layout == other.state_layout
    expected = generate(other, PROMPT, 6)
    hold(one, 0, PROMPT[:-1])
    one.adopt(200, 0, 40)
    state = one.save(200, 7, ROOM)
    assert state is not None
    hold(other, 6, PROMPT[:7])
    assert other.restore(6, state)
    other.open(SequenceSpec(6, GREEDY))
    assert finish(other, 6, PROMPT[40:], 6) == expected


def test_what_lays_cells_out_otherwise_has_another_name(load: LoadEngine, sliding_window_model: Path) -> None:
    """S75: one pool or streams, how many, whole windows, V transposed."""
    layouts = [
        load(sliding_window_model, **options).state_layout
        for options in (
            {},
            {"swa_full": True},
            {"flash_attention": FlashAttention.OFF},
            {"profile": Profile.PARITY},
            {"profile": Profile.PARITY, "n_slots": 3},
        )
    ]
    assert len(set(layouts)) == len(layouts)
    assert layouts[0].startswith("llama.cpp 0c1e57098")


def test_a_copy_of_another_layout_is_not_restored(load: LoadEngine, dense_model: Path) -> None:
    """K126: V in rows is refused where it is transposed, one pool where there are streams; nothing changed."""
    one = load(dense_model, flash_attention=FlashAttention.ON)
    hold(one, 0, PROMPT)
    state = one.save(0, 0, ROOM)
    assert state is not None
    for options in ({"flash_attention": FlashAttention.OFF}, {"profile": Profile.PARITY}):
        other = load(dense_model, **options)
        expected = generate(other, PROMPT, 6)
        assert not other.restore(1, other.load_state(state.view(), 0, len(PROMPT)))
        assert (other.length(1), other.used_cells()) == (0, 0)
        assert generate(other, PROMPT, 6) == expected
