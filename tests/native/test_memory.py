"""What sequence ids hold on the real engine, beyond the laws: where llama.cpp would abort or compute garbage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from llamaserve.config import FlashAttention, Profile
from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import PromptPiece, RowError, SequenceSpec, StepPlan
from llamaserve.errors import EngineError
from tests.memory_laws import ROOM, feed, finish, hold
from tests.native.conftest import LoadEngine
from tests.native.greedy import GREEDY, continue_alone, generate, start

PROMPT = [1, *range(10, 60)]
WINDOW = 32
"""Of the tiny model with a sliding window."""
LONG = tuple((7 * i % 250) + 3 for i in range(480))


def feed_long(engine: NativeEngine, seq_id: int, tokens: Sequence[int]) -> None:
    """Have a slot hold a text longer than a batch."""
    engine.open(SequenceSpec(seq_id, GREEDY))
    for at in range(0, len(tokens), 60):
        feed(engine, seq_id, tokens[at : at + 60], draw=False)
    engine.close(seq_id, keep=True)


def go_on(engine: NativeEngine, seq_id: int, rest: Sequence[int], n_tokens: int) -> list[int]:
    """The tokens after what an id holds and these; the sequence is closed afterwards."""
    engine.open(SequenceSpec(seq_id, GREEDY))
    for at in range(0, len(rest) - 1, 60):
        feed(engine, seq_id, rest[at : min(at + 60, len(rest) - 1)], draw=False)
    tokens = finish(engine, seq_id, rest[-1:], n_tokens)
    engine.close(seq_id)
    return tokens


@pytest.mark.parametrize("flash_attention", [FlashAttention.AUTO, FlashAttention.OFF])
def test_a_parked_prefix_continues_like_a_cold_prompt(
    load: LoadEngine, dense_model: Path, flash_attention: FlashAttention
) -> None:
    """S19, D7: the last id there is holds what no slot needs; adopting it costs no computation."""
    engine = load(dense_model, flash_attention=flash_attention)
    expected = generate(engine, PROMPT, 7)
    hold(engine, 0, PROMPT[:-1])
    parked = engine.n_ids - 1
    engine.adopt(parked, 0, len(PROMPT) - 1)
    assert engine.trim(0, 0)
    assert engine.length(parked) == len(PROMPT) - 1
    engine.adopt(1, parked, len(PROMPT) - 1)
    engine.open(SequenceSpec(1, GREEDY))
    assert finish(engine, 1, PROMPT[-1:], 7) == expected
    assert engine.used_cells() == len(PROMPT) + 6


@pytest.mark.parametrize("seq_id", [4, 5, 128, 253, 254])
def test_every_id_beside_the_slots_holds_what_it_is_given(load: LoadEngine, dense_model: Path, seq_id: int) -> None:
    """K126: ids are shifted by the one that copies are made through, and none of them is that one."""
    engine = load(dense_model)
    expected = generate(engine, PROMPT, 5)
    hold(engine, 0, PROMPT[:-1])
    for parked in (seq_id, *(other for other in (4, 254) if other != seq_id)):
        engine.adopt(parked, 0, 20)
    state = engine.save(seq_id, 0, ROOM)
    assert state is not None
    assert engine.used_cells() == len(PROMPT) - 1
    assert engine.trim(0, 0)
    assert engine.trim(seq_id, 0)
    assert engine.restore(seq_id, state)
    assert engine.length(4) == engine.length(254) == engine.length(seq_id) == 20
    assert engine.used_cells() == 40
    engine.adopt(3, seq_id, 20)
    assert go_on(engine, 3, PROMPT[20:], 5) == expected


@pytest.mark.parametrize(("n_slots", "n_ids"), [(1, 255), (3, 255), (254, 255), (255, 255), (256, 256)])
def test_an_id_is_left_for_copies_or_nothing_is_shared(
    load: LoadEngine, dense_model: Path, n_slots: int, n_ids: int
) -> None:
    """All 256 ids of llama.cpp decode, or one of them is the engine's own."""
    engine = load(dense_model, n_slots=n_slots, n_batch=n_slots, n_ubatch=n_slots)
    assert (engine.can_share, engine.n_ids) == (n_slots < 256, n_ids)
    assert (engine.info.n_slots, engine.info.n_batch) == (n_slots, n_slots)
    texts = []
    for seq_id in (0, n_slots - 1):
        for token in (1, 50):
            engine.open(SequenceSpec(seq_id, GREEDY))
            feed(engine, seq_id, [token], draw=False)
            engine.close(seq_id, keep=True)
        state = engine.save(seq_id, 0, ROOM)
        assert state is not None
        texts.append(go_on(engine, seq_id, [60], 3))
        assert engine.restore(seq_id, state)
        texts.append(go_on(engine, seq_id, [60], 3))
    assert texts == [texts[0]] * 4


def test_a_full_cache_takes_no_copy(load: LoadEngine, dense_model: Path) -> None:
    """S33: all or nothing, behind a prefix too; with one cell more it goes in."""
    engine = load(dense_model, n_ctx=256)
    hold(engine, 0, LONG[:60])
    whole, tail = engine.save(0, 0, ROOM), engine.save(0, 20, ROOM)
    assert whole is not None
    assert tail is not None
    assert engine.trim(0, 20)
    hold(engine, 1, LONG[:197])
    for seq_id, state in ((0, tail), (2, whole), (200, whole)):
        n_held = engine.length(seq_id)
        assert not engine.restore(seq_id, state)
        assert engine.length(seq_id) == n_held
        assert engine.used_cells() == 217
    assert engine.trim(1, 196)
    assert engine.restore(0, tail)
    assert engine.used_cells() == 256
    assert engine.trim(1, 0)
    assert go_on(engine, 0, LONG[60:80], 4) == generate(engine, LONG[:80], 4)


def test_a_full_stream_takes_no_copy(load: LoadEngine, dense_model: Path) -> None:
    """S12: split KV has as many cells for every slot."""
    roomy = load(dense_model, n_ctx=1024, n_slots=2, profile=Profile.PARITY)
    feed_long(roomy, 0, LONG[:300])
    state = roomy.save(0, 0, ROOM)
    assert state is not None
    engine = load(dense_model, n_ctx=512, n_slots=2, profile=Profile.PARITY)
    assert engine.state_layout == roomy.state_layout
    assert engine.info.n_ctx_seq == 256
    assert not engine.restore(1, state)
    assert engine.used_cells() == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:8],
        lambda data: data[:3],
        lambda data: b"",
        lambda data: (2**63).to_bytes(8, "little") + data[8:],
        lambda data: data[:8] + bytes(8) + data[16:],
    ],
    ids=["one byte less", "one more", "only a length", "not even that", "empty", "absurd length", "wrong magic"],
)
@pytest.mark.parametrize("kind", ["dense_model", "recurrent_model", "hybrid_model"])
def test_a_copy_of_the_wrong_size_is_not_restored(
    load: LoadEngine, kind: str, request: pytest.FixtureRequest, damage: object
) -> None:
    """K126: the bytes are trusted, but a length that does not fit ends nothing."""
    engine = load(request.getfixturevalue(kind))
    expected = generate(engine, PROMPT, 5)
    hold(engine, 0, PROMPT[:30])
    state = engine.save(0, 0, ROOM)
    assert state is not None
    data = damage(bytes(state.view()))  # type: ignore[operator]
    assert not engine.restore(1, engine.load_state(data, 0, 30))
    assert (engine.length(1), engine.used_cells()) == (0, 30)
    assert not engine.restore(1, engine.load_state(state.view(), 0, 31))
    assert (engine.length(1), engine.used_cells()) == (0, 30)
    assert engine.restore(1, state)
    assert go_on(engine, 1, PROMPT[30:], 5) == expected


@pytest.mark.parametrize("seq_id", [-1, 255, 2**31 - 1])
def test_ids_outside_the_table_are_named_with_their_limit(load: LoadEngine, dense_model: Path, seq_id: int) -> None:
    """K126: llama.cpp aborts on them."""
    engine = load(dense_model)
    for call in (
        lambda: engine.length(seq_id),
        lambda: engine.trim(seq_id, 0),
        lambda: engine.adopt(0, seq_id, 1),
        lambda: engine.adopt(seq_id, 0, 1),
    ):
        with pytest.raises(EngineError, match=r"outside 0\.\.254"):
            call()
    assert engine.length(0) == 0


@pytest.mark.parametrize("kind", ["dense_model", "recurrent_model", "hybrid_model", "sliding_window_model"])
def test_memory_that_cannot_share_says_so(load: LoadEngine, kind: str, request: pytest.FixtureRequest) -> None:
    """S26, F10: a part of a stream aborts the process; cells of a window with two owners are never reused."""
    engine = load(request.getfixturevalue(kind), n_slots=2, profile=Profile.PARITY)
    hold(engine, 0, PROMPT)
    for n_tokens in (5, len(PROMPT)):
        with pytest.raises(EngineError, match="cannot share"):
            engine.adopt(1, 0, n_tokens)
    with pytest.raises(EngineError, match=r"outside 0\.\.1"):
        engine.adopt(2, 0, 5)
    assert engine.length(0) == len(PROMPT)


@pytest.mark.parametrize("kind", ["recurrent_model", "hybrid_model"])
def test_a_recurrent_state_does_not_forget_its_tail(
    load: LoadEngine, kind: str, request: pytest.FixtureRequest
) -> None:
    """K41: the answer is no, and the sequence goes on."""
    engine = load(request.getfixturevalue(kind))
    expected = generate(engine, PROMPT, 4)
    hold(engine, 0, PROMPT[:-1])
    assert not engine.trim(0, 10)
    assert engine.length(0) == engine.used_cells() == len(PROMPT) - 1
    assert go_on(engine, 0, PROMPT[-1:], 4) == expected


@pytest.mark.parametrize("kind", ["recurrent_model", "hybrid_model", "sliding_window_model"])
@pytest.mark.parametrize("profile", [Profile.SHARED, Profile.PARITY])
def test_a_long_text_goes_back_to_its_checkpoints(
    load: LoadEngine, kind: str, profile: Profile, request: pytest.FixtureRequest
) -> None:
    """S31, K41: behind many windows; what diverges there is as after a cold prompt, and so is the next checkpoint."""
    engine = load(request.getfixturevalue(kind), n_batch=64, n_ubatch=64, n_slots=2, n_ctx=2048, profile=profile)
    branches = [(*LONG[:n_shared], *LONG[40 + index : 140 + index]) for index, n_shared in enumerate((300, 180, 60))]
    cold = [go_on(engine, 0, branch, 6) for branch in branches]
    feed_long(engine, 1, LONG[:200])

    engine.open(SequenceSpec(0, GREEDY))
    checkpoints = []
    for start_at, end in ((0, 60), (60, 120), (120, 180), (180, 240), (240, 300), (300, 360)):
        feed(engine, 0, LONG[start_at:end], draw=False)
        checkpoints.append(engine.checkpoint(0, ROOM))
    finish(engine, 0, LONG[360:380], 4)
    engine.close(0, keep=True)
    for branch, expected, index in zip(branches, cold, (4, 2, 0), strict=True):
        checkpoint = checkpoints[index]
        assert checkpoint is not None
        assert engine.go_back(0, checkpoint)
        assert engine.length(0) == checkpoint.end == 60 * (index + 1)
        assert engine.used_cells() == 60 * (index + 1) + 200
        engine.open(SequenceSpec(0, GREEDY))
        feed(engine, 0, branch[checkpoint.end : -41], draw=False)
        later = engine.checkpoint(0, ROOM)
        feed(engine, 0, branch[-41:-1], draw=False)
        assert later is not None
        engine.close(0, keep=True)
        assert engine.go_back(0, later)
        engine.open(SequenceSpec(0, GREEDY))
        feed(engine, 0, branch[-41:-1], draw=False)
        assert finish(engine, 0, branch[-1:], 6) == expected
        engine.close(0, keep=True)
    assert engine.length(1) == 200


@pytest.mark.parametrize("kind", ["recurrent_model", "hybrid_model", "sliding_window_model"])
def test_a_damaged_checkpoint_leaves_nothing(load: LoadEngine, kind: str, request: pytest.FixtureRequest) -> None:
    """K126: half of a state is worse than none; here it is one of another model of the same kind."""
    engine = load(request.getfixturevalue(kind), n_slots=2)
    expected = generate(engine, PROMPT, 4)
    hold(engine, 0, PROMPT)
    hold(engine, 1, PROMPT[:30])
    checkpoint = engine.checkpoint(1, ROOM)
    assert checkpoint is not None
    foreign = load(request.getfixturevalue("recurrent_model" if kind == "hybrid_model" else "hybrid_model"))
    hold(foreign, 0, PROMPT[:30])
    other = foreign.checkpoint(0, ROOM)
    assert other is not None
    assert not engine.go_back(0, other)
    assert (engine.length(0), engine.used_cells()) == (0, 30)
    assert engine.go_back(1, checkpoint)
    assert go_on(engine, 1, PROMPT[30:], 4) == expected
    assert generate(engine, PROMPT, 4) == expected


@pytest.mark.parametrize("profile", [Profile.SHARED, Profile.PARITY])
def test_a_window_that_is_gone_is_not_trimmed_into(
    load: LoadEngine, sliding_window_model: Path, profile: Profile
) -> None:
    """K41: llama.cpp says yes to it and computes garbage afterwards."""
    engine = load(sliding_window_model, n_batch=64, n_ubatch=64, n_ctx=2048, profile=profile)  # 256 cells for windows
    expected = generate(engine, LONG[:60], 4)
    feed_long(engine, 0, LONG)
    assert not engine.trim(0, 100)
    assert engine.length(0) == len(LONG)
    assert engine.trim(0, len(LONG) - 1)
    assert len(go_on(engine, 0, LONG[-1:], 3)) == 3
    assert generate(engine, LONG[:60], 4) == expected


def whole_windows(load: LoadEngine, path: Path) -> NativeEngine:
    return load(path, n_ctx=1024, n_slots=2, swa_full=True, flash_attention=FlashAttention.OFF)


def test_whole_windows_are_shared_far_behind_their_end(load: LoadEngine, sliding_window_model: Path) -> None:
    """S19: with swa_full any prefix is as good as a computed one."""
    engine = whole_windows(load, sliding_window_model)
    assert engine.can_share
    cut = 3 * WINDOW
    branch = (*LONG[:cut], *LONG[20:60])
    expected = go_on(engine, 0, branch, 6)
    feed_long(engine, 0, LONG[:300])
    engine.adopt(100, 0, 300)
    engine.adopt(1, 100, cut)
    assert go_on(engine, 1, branch[cut:], 6) == expected
    assert engine.trim(0, cut)
    assert go_on(engine, 0, branch[cut:], 6) == expected


def test_copies_of_whole_windows_have_all_of_them(load: LoadEngine, sliding_window_model: Path) -> None:
    """S33, S34: llama.cpp leaves out what the end of a sequence does not see; a prefix of what is restored must not
    miss it, whether it was copied whole or in parts."""
    engine = whole_windows(load, sliding_window_model)
    cut = 3 * WINDOW
    branch = (*LONG[:cut], *LONG[20:60])
    expected = go_on(engine, 0, branch, 6)
    feed_long(engine, 0, LONG[:200])
    whole, tail = engine.save(0, 0, ROOM), engine.save(0, 50, ROOM)
    engine.adopt(1, 0, 50)
    head = engine.save(1, 0, ROOM)
    assert whole is not None
    assert head is not None
    assert tail is not None
    assert engine.trim(0, 0)
    assert engine.trim(1, 0)
    for seq_id, parts in ((100, (whole,)), (101, (head, tail))):
        for part in parts:
            assert engine.restore(seq_id, part)
        assert engine.length(seq_id) == 200
        engine.adopt(1, seq_id, cut)
        assert go_on(engine, 1, branch[cut:], 6) == expected
    assert engine.used_cells() == 400


def test_a_window_that_llama_cpp_reused_is_not_shared_any_more(load: LoadEngine, sliding_window_model: Path) -> None:
    """K41: cells that left the window are taken by others also where there would be room; the last window stays."""
    engine = load(sliding_window_model, n_ctx=512, n_slots=2, swa_full=True, flash_attention=FlashAttention.OFF)
    expected = go_on(engine, 0, LONG[:220], 6)
    branch = go_on(engine, 0, (*LONG[:100], *LONG[20:60]), 6)
    hold(engine, 0, LONG[:30])
    feed_long(engine, 1, LONG[:200])
    engine.adopt(100, 1, 200)
    assert engine.trim(1, 0)
    assert engine.trim(0, 0)
    feed_long(engine, 0, LONG[50:250])  # fills the gap in front, and goes on over what it finds behind it
    assert engine.length(100) == 200
    with pytest.raises(EngineError, match="window before token 100 of sequence 100 is gone"):
        engine.adopt(1, 100, 100)
    assert engine.length(1) == 0
    assert not engine.trim(100, 100)
    assert engine.save(100, 20, ROOM) is None
    engine.adopt(1, 100, 200)
    assert go_on(engine, 1, LONG[200:220], 6) == expected
    assert engine.trim(0, 0)
    assert go_on(engine, 1, (*LONG[:100], *LONG[20:60]), 6) == branch


def test_a_broken_sequence_is_not_kept(load: LoadEngine, recurrent_model: Path) -> None:
    """K133: what its id holds is not the tokens the caller knows of."""
    engine = load(recurrent_model)
    engine.open(SequenceSpec(0, GREEDY))
    feed(engine, 0, PROMPT[:20], draw=False)
    engine._engine.inject_faults(decode_codes=[2], n_failing_rewinds=1)
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(0, PROMPT[20:], is_last=True)]))
    assert row.error is RowError.ABORTED
    assert engine.length(0) == 0
    assert engine.close(0, keep=True)
    assert engine.used_cells() == 0
    with pytest.raises(EngineError):
        engine.save(0, 0, ROOM)


def test_a_broken_sequence_adopts_nothing(load: LoadEngine, dense_model: Path) -> None:
    """K133: it can only be closed."""
    engine = load(dense_model)
    hold(engine, 1, PROMPT)
    start(engine, 0, PROMPT)
    engine._engine.inject_faults(n_failing_rewinds=1)
    engine.collect(engine.submit(StepPlan(decode=[0]), ahead=True))
    assert list(engine.unwind()) == [0]
    with pytest.raises(EngineError, match="can only be closed"):
        engine.adopt(0, 1, 10)
    assert engine.length(0) == 0


def test_a_copy_is_made_while_a_step_runs_ahead(load: LoadEngine, dense_model: Path) -> None:
    """L25: the step is taken back first, and the copy has no cell of it."""
    engine = load(dense_model)
    expected = generate(engine, PROMPT, 8)
    tokens = [start(engine, 0, PROMPT).token]
    for _ in range(2):
        (row,) = engine.collect(engine.submit(StepPlan(decode=[0]), ahead=True))
        tokens.append(row.token)
    assert list(engine.ahead_rows) == [0]
    state = engine.save(0, 0, ROOM)
    assert state is not None
    assert state.end == len(PROMPT) + 2
    assert [*tokens, *continue_alone(engine, 0, 5)] == expected
    assert engine.restore(1, state)
    assert go_on(engine, 1, expected[2:3], 5) == expected[3:]
