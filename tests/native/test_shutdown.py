"""The engine ends in any state without taking the process with it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llamaserve.engine.port import PromptPiece, RowError, SequenceSpec, StepPlan
from llamaserve.errors import EngineDown
from tests.native.conftest import LoadEngine
from tests.native.greedy import GREEDY, generate, start

LONG_PROMPT = [(i % 250) + 3 for i in range(2000)]


def test_a_shutdown_waits_for_the_step_and_its_ticket_is_refused(load: LoadEngine, dense_model: Path) -> None:
    engine = load(dense_model, n_ctx=2048)
    engine.open(SequenceSpec(0, GREEDY))
    ticket = engine.submit(StepPlan(pieces=[PromptPiece(0, LONG_PROMPT, is_last=True)]))
    engine.shutdown()
    for call in (
        lambda: engine.collect(ticket),
        lambda: engine.submit(StepPlan(decode=[0])),
        lambda: engine.open(SequenceSpec(1, GREEDY)),
    ):
        with pytest.raises(EngineDown):
            call()
    assert not engine.close(0)
    assert engine.used_cells() == 0


def test_an_engine_that_is_dropped_in_the_middle_of_a_step_ends(load: LoadEngine, dense_model: Path) -> None:
    engine = load(dense_model, n_ctx=2048)
    engine.open(SequenceSpec(0, GREEDY))
    engine.submit(StepPlan(pieces=[PromptPiece(0, LONG_PROMPT, is_last=True)]))
    del engine


def test_a_flag_stops_a_long_prompt_in_the_middle(load: LoadEngine, default_model: Path) -> None:
    """S56: the step ends long before the prompt could be computed, and the next one is as ever."""
    engine = load(default_model, n_ctx=4096)
    prompt = [100 + i for i in range(2000)]
    expected = generate(engine, prompt[:20], 4)
    engine.open(SequenceSpec(0, GREEDY))
    flag = engine.new_flag()
    ticket = engine.submit(StepPlan(pieces=[PromptPiece(0, prompt, is_last=True)]), flag)
    timer = threading.Timer(0.05, flag.set)
    timer.start()
    (row,) = engine.collect(ticket)
    timer.join()
    assert row.error is RowError.ABORTED
    assert row.token is None
    assert engine.used_cells() == 0
    engine.close(0)
    assert generate(engine, prompt[:20], 4) == expected


def test_a_flag_that_is_set_before_the_step_stops_all_its_rows(load: LoadEngine, dense_model: Path) -> None:
    engine = load(dense_model)
    start(engine, 0, [1, 50, 60])
    engine.open(SequenceSpec(1, GREEDY))
    flag = engine.new_flag()
    flag.set()
    rows = engine.step(StepPlan(decode=[0], pieces=[PromptPiece(1, [1, 70], is_last=True)]), flag)
    assert [row.error for row in rows] == [RowError.ABORTED, RowError.ABORTED]
    assert [row.error for row in engine.step(StepPlan(decode=[0]))] == [None]


FORK = """
import os, sys
from pathlib import Path
from llamaserve.config import EngineConfig
from llamaserve.engine.native import NativeEngine

engine = NativeEngine.load(EngineConfig(Path(sys.argv[1]), n_ctx=256, n_threads=1))
child = os.fork()
if child == 0:
    sys.exit(7)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_ends_without_the_worker_it_does_not_have(dense_model: Path) -> None:
    run = subprocess.run([sys.executable, "-c", FORK, str(dense_model)], timeout=60, check=False)
    assert run.returncode == 7
