"""Copying and forgetting sequence memory, and what is refused because llama.cpp would abort on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import llamaserve._engine as native
from llamaserve.errors import EngineError

PROMPT = [1, *range(10, 60)]
GREEDY = {
    "temperature": 0.0,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "seed": None,
    "repeat_penalty": 1.0,
    "repeat_last_n": 64,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "ignore_eos": True,
    "logit_bias": [],
}


def make_engine(path: Path, *, unified: bool = True, n_slots: int = 2, n_batch: int = 256) -> native.Engine:
    model = native.Model.load(
        os.fsencode(path), n_gpu_layers=0, use_mmap=True, use_mlock=False, check_tensors=False, progress=None
    )
    options = native.ContextOptions(
        n_ctx=512,
        n_slots=n_slots,
        n_batch=n_batch,
        n_ubatch=n_batch,
        n_threads=1,
        n_threads_batch=1,
        flash_attention=-1,
        kv_unified=unified,
        swa_full=False,
    )
    return native.Engine(model, options)


def draw(engine: native.Engine, seq_id: int, n_tokens: int) -> list[int | None]:
    return [engine.batch_eval_sample([seq_id], [])[0].token for _ in range(n_tokens)]


def test_a_parked_prefix_continues_like_a_cold_prompt(dense_model: Path) -> None:
    """S19, D7: ids from n_slots on hold what no slot needs; adopting one costs no computation."""
    engine = make_engine(dense_model)
    engine.open(0, **GREEDY)
    first = engine.batch_eval_sample([], [(0, PROMPT, True)])[0].token
    expected = [first, *draw(engine, 0, 6)]
    assert engine.memory_seq_rm(0, len(PROMPT) - 1)
    engine.memory_seq_cp(0, 200)
    engine.close(0)
    assert engine.memory_seq_length(200) == len(PROMPT) - 1

    engine.open(1, **GREEDY)
    engine.memory_seq_cp(200, 1)
    row = engine.batch_eval_sample([], [(1, PROMPT[-1:], True)])[0]
    assert [row.token, *draw(engine, 1, 6)] == expected
    assert engine.used_cells() == len(PROMPT) + 6


def test_a_prefix_parked_after_a_step_was_taken_back_continues_like_a_cold_prompt(dense_model: Path) -> None:
    """L25, K109: the cells of the step that ran ahead are not in it."""
    engine = make_engine(dense_model)
    engine.open(0, **GREEDY)
    first = engine.batch_eval_sample([], [(0, PROMPT, True)])[0].token
    expected = [first, *draw(engine, 0, 6)]
    engine.close(0)

    engine.open(0, **GREEDY)
    engine.batch_eval_sample([], [(0, PROMPT, True)])
    for _ in range(2):
        engine.collect(engine.submit([0], ahead=True))
    assert engine.ahead_rows == [0]
    engine.memory_seq_cp(0, 200)
    assert engine.ahead_rows == ()
    assert engine.memory_seq_length(200) == engine.memory_seq_length(0) == len(PROMPT) + 2
    engine.close(0)

    engine.open(1, **GREEDY)
    engine.memory_seq_cp(200, 1)
    row = engine.batch_eval_sample([], [(1, expected[2:3], True)])[0]
    assert [row.token, *draw(engine, 1, 3)] == expected[3:]


def test_a_removed_tail_is_computed_again_with_the_same_result(dense_model: Path) -> None:
    """F5."""
    engine = make_engine(dense_model)
    engine.open(0, **GREEDY)
    expected = engine.batch_eval_sample([], [(0, PROMPT, True)])[0].token
    draw(engine, 0, 3)
    assert engine.memory_seq_rm(0, 20)
    assert engine.memory_seq_length(0) == 20
    assert engine.batch_eval_sample([], [(0, PROMPT[20:], True)])[0].token == expected


@pytest.mark.parametrize("seq_id", [-1, 256, 2**31 - 1])
def test_ids_outside_the_table_are_refused(dense_model: Path, seq_id: int) -> None:
    """K126: llama.cpp aborts on them."""
    engine = make_engine(dense_model)
    for call in (
        lambda: engine.memory_seq_length(seq_id),
        lambda: engine.memory_seq_rm(seq_id),
        lambda: engine.memory_seq_cp(0, seq_id),
        lambda: engine.memory_seq_cp(seq_id, 0),
    ):
        with pytest.raises(EngineError, match=r"outside 0\.\.255"):
            call()
    assert engine.memory_seq_length(0) == 0


def test_split_memory_copies_whole_sequences_only(dense_model: Path) -> None:
    """S26: a part of a stream aborts the process."""
    engine = make_engine(dense_model, unified=False)
    engine.open(0, **GREEDY)
    expected = [engine.batch_eval_sample([], [(0, PROMPT, True)])[0].token, *draw(engine, 0, 3)]
    with pytest.raises(EngineError, match="only a whole sequence"):
        engine.memory_seq_cp(0, 1, 0, 5)
    with pytest.raises(EngineError, match=r"outside 0\.\.1"):
        engine.memory_seq_cp(0, 2)
    assert engine.memory_seq_rm(0, len(PROMPT) - 1)
    engine.open(1, **GREEDY)
    engine.memory_seq_cp(0, 1)
    assert [engine.batch_eval_sample([], [(1, PROMPT[-1:], True)])[0].token, *draw(engine, 1, 3)] == expected


def test_recurrent_memory_does_not_forget_its_tail(recurrent_model: Path) -> None:
    """K41: the answer is no, and the sequence goes on."""
    engine = make_engine(recurrent_model)
    engine.open(0, **GREEDY)
    engine.batch_eval_sample([], [(0, PROMPT, True)])
    assert not engine.memory_seq_rm(0, 10)
    assert engine.memory_seq_length(0) == len(PROMPT)
    assert None not in draw(engine, 0, 2)
    with pytest.raises(EngineError, match="only a whole sequence"):
        engine.memory_seq_cp(0, 1, 0, 5)
    with pytest.raises(EngineError, match=r"outside 0\.\.1"):
        engine.memory_seq_cp(0, 200)
    assert engine.memory_seq_rm(0)
    assert engine.memory_seq_length(0) == 0


def test_a_window_that_is_gone_is_not_trimmed_into(sliding_window_model: Path) -> None:
    """llama.cpp says yes to it and computes garbage afterwards."""
    engine = make_engine(sliding_window_model, n_batch=64)  # a window of 32 in a cache of 256 cells
    engine.open(0, **GREEDY)
    for start in range(0, 480, 60):
        engine.batch_eval_sample([], [(0, [1 + i for i in range(60)], start == 420)])
    assert not engine.memory_seq_rm(0, 100)
    assert engine.memory_seq_length(0) == 480
    assert engine.memory_seq_rm(0, 479)


def test_a_window_is_not_shared(sliding_window_model: Path) -> None:
    """F10: cells with two owners are never reused, and the window's cache runs dry."""
    engine = make_engine(sliding_window_model)
    engine.open(0, **GREEDY)
    engine.batch_eval_sample([], [(0, PROMPT, True)])
    with pytest.raises(EngineError, match="swa_full"):
        engine.memory_seq_cp(0, 1)


def test_a_copy_leaves_no_hole(dense_model: Path) -> None:
    """A sequence whose first tokens are missing computes garbage."""
    engine = make_engine(dense_model)
    engine.open(0, **GREEDY)
    engine.batch_eval_sample([], [(0, PROMPT, True)])
    with pytest.raises(EngineError, match="sequence 1 holds 0 tokens"):
        engine.memory_seq_cp(0, 1, 20, 50)
    engine.memory_seq_cp(0, 1, 0, 20)
    engine.memory_seq_cp(0, 1, 20, 50)
    assert engine.memory_seq_length(1) == 50


def test_a_copy_onto_tokens_or_itself_is_refused(dense_model: Path) -> None:
    engine = make_engine(dense_model)
    for seq_id in (0, 1):
        engine.open(seq_id, **GREEDY)
        engine.batch_eval_sample([], [(seq_id, PROMPT, True)])
    with pytest.raises(EngineError, match="sequence 1 has drawn a token already"):
        engine.memory_seq_cp(0, 1)
    with pytest.raises(EngineError, match="onto itself"):
        engine.memory_seq_cp(5, 5)
    with pytest.raises(EngineError, match="only the tail"):
        engine.memory_seq_rm(0, 0, 5)
