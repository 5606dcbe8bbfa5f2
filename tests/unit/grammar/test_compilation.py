"""Requests that wait for grammars to be compiled: each for its own time only, and those that want the same together."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from llamaserve.engine.fake_text import FakeVocabulary
from llamaserve.errors import BadGrammar, CompilerBusy, EngineDown
from llamaserve.grammar import compilation as compilation_module
from llamaserve.grammar import compiler as compiler_module
from llamaserve.grammar.compilation import Compilation
from llamaserve.grammar.compile_threads import THREADS, CompileThreads
from llamaserve.grammar.compiler import CompiledGrammar, GrammarCompiler
from llamaserve.grammar.json_schema import place_of_fault
from llamaserve.grammar.spec import GrammarKind, GrammarSpec
from tests.unit.grammar.walk import takes

PATIENCE_S = 30.0
SHORT_S = 0.15


class Gate:
    """Compiles what begins with "slow" when it is opened, the rest at once; counts."""

    def __init__(self, compiles: Callable[..., CompiledGrammar]) -> None:
        self._compiles = compiles
        self.opened = threading.Event()
        self.begun = threading.Semaphore(0)
        self.n_runs = 0

    def __call__(self, spec: GrammarSpec, *rest: object) -> CompiledGrammar:
        self.n_runs += 1
        self.begun.release()
        if spec.source.startswith("slow"):
            assert self.opened.wait(PATIENCE_S)
        return self._compiles(spec, *rest)


class Rig:
    """A compiler behind a gate, and threads that ask it."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.compiler = GrammarCompiler(FakeVocabulary())
        self.compiler.compile(spec("a"))  # reads the vocabulary
        self.gate.begun.acquire()
        self._askers = ThreadPoolExecutor(8)

    def ask(self, source: str) -> Future[CompiledGrammar]:
        return self._askers.submit(self.compiler.compile, spec(source))

    def keep_busy(self) -> list[Future[CompiledGrammar]]:
        """Requests that hold all compiling threads."""
        asked = [self.ask(f"slow{index}") for index in range(THREADS)]
        for _ in asked:
            assert self.gate.begun.acquire(timeout=PATIENCE_S)
        return asked

    def close(self) -> None:
        self.gate.opened.set()
        self.compiler.close()
        self._askers.shutdown()


def spec(source: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.REGEX, source)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Generator[Rig, None, None]:
    gate = Gate(compiler_module._compile)
    monkeypatch.setattr(compiler_module, "_compile", gate)
    rig = Rig(gate)
    yield rig
    rig.close()


def test_time_spent_waiting_for_others_does_not_count(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation_module, "COMPILE_TIMEOUT_S", SHORT_S)
    others = rig.keep_busy()
    innocent = rig.ask("innocent")
    for other in others:
        with pytest.raises(BadGrammar, match=r"takes more than .* s to compile"):
            other.result(PATIENCE_S)
    rig.gate.opened.set()
    assert takes(innocent.result(PATIENCE_S), b"innocent")


def test_a_request_that_waits_too_long_is_told_to_come_back_and_costs_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation_module, "QUEUE_TIMEOUT_S", SHORT_S)
    monkeypatch.setattr(compilation_module, "COMPILE_TIMEOUT_S", PATIENCE_S)
    others = rig.keep_busy()
    n_before = rig.gate.n_runs
    with pytest.raises(CompilerBusy, match="was not begun within") as caught:
        rig.ask("innocent").result(PATIENCE_S)
    assert caught.value.retry_after_s == 1
    rig.gate.opened.set()
    assert takes(others[0].result(PATIENCE_S), b"slow0")
    assert rig.ask("innocent2").result(PATIENCE_S)
    assert rig.gate.n_runs == n_before + 1  # what was given up never ran


def test_the_same_restriction_is_compiled_once_for_all_who_ask_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation_module, "COMPILE_TIMEOUT_S", PATIENCE_S)
    first = rig.ask("slow")
    assert rig.gate.begun.acquire(timeout=PATIENCE_S)
    n_before = rig.gate.n_runs
    others = [rig.ask("slow") for _ in range(5)]
    rig.gate.opened.set()
    assert {id(one.result(PATIENCE_S)) for one in (first, *others)} == {id(first.result())}
    assert rig.gate.n_runs == n_before


def test_what_took_too_long_is_there_for_who_comes_later(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation_module, "COMPILE_TIMEOUT_S", SHORT_S)
    with pytest.raises(BadGrammar, match="takes more than"):
        rig.ask("slow").result(PATIENCE_S)
    n_before = rig.gate.n_runs
    with pytest.raises(BadGrammar, match="takes more than"):  # it runs yet: not once more
        rig.ask("slow").result(PATIENCE_S)
    rig.gate.opened.set()
    while spec("slow") in rig.compiler._running:
        threading.Event().wait(0.001)
    assert takes(rig.ask("slow").result(PATIENCE_S), b"slow")
    assert rig.gate.n_runs == n_before
    # It is no slow one for good: the machine may have been busy.
    rig.compiler._cache.clear()
    assert takes(rig.ask("slow").result(PATIENCE_S), b"slow")


def test_others_take_the_place_of_threads_that_slow_restrictions_hold(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation_module, "COMPILE_TIMEOUT_S", SHORT_S)
    for other in rig.keep_busy():
        with pytest.raises(BadGrammar, match="takes more than"):
            other.result(PATIENCE_S)
    monkeypatch.setattr(compilation_module, "COMPILE_TIMEOUT_S", PATIENCE_S)
    assert takes(rig.ask("innocent").result(PATIENCE_S), b"innocent")  # while they run yet
    n_before = rig.gate.n_runs
    with pytest.raises(BadGrammar, match="takes more than"):
        rig.ask("slow0").result(PATIENCE_S)
    assert rig.gate.n_runs == n_before


ENDS_WHILE_COMPILING = """
from llamaserve.engine.fake_text import FakeVocabulary
from llamaserve.errors import BadGrammar
from llamaserve.grammar.compiler import GrammarCompiler
from llamaserve.grammar.spec import GrammarKind, GrammarSpec
compiler = GrammarCompiler(FakeVocabulary())
source = "start: a::0\\na::_: " + " | ".join(['"x" a::incr(_)'] * 3600)
try:
    compiler.compile(GrammarSpec(GrammarKind.LARK, source))
except BadGrammar as error:
    print(error)
compiler.close()
"""


def test_the_process_ends_whatever_is_being_compiled() -> None:
    """The run itself takes minutes."""
    ended = subprocess.run(
        [sys.executable, "-c", ENDS_WHILE_COMPILING], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert "takes more than" in ended.stdout


def test_who_waits_when_the_engine_ends_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation_module, "COMPILE_TIMEOUT_S", PATIENCE_S)
    rig.keep_busy()
    waiting = rig.ask("innocent")
    while spec("innocent") not in rig.compiler._running:
        threading.Event().wait(0.001)
    rig.compiler.close()
    with pytest.raises(EngineDown):
        waiting.result(PATIENCE_S)


def test_a_run_nobody_waits_for_has_no_time_left() -> None:
    left: list[float] = []
    entered, opened = threading.Event(), threading.Event()

    def compiles(time_left: Callable[[], float]) -> int:
        left.append(time_left())
        entered.set()
        assert opened.wait(PATIENCE_S)
        left.append(time_left())
        return 5

    ended: list[int | None] = []
    has_ended = threading.Event()

    def take(result: int | None) -> None:
        ended.append(result)
        has_ended.set()

    threads = CompileThreads()
    one = Compilation(compiles)
    one.join()
    one.begin(threads, take)
    assert entered.wait(PATIENCE_S)
    assert not one.leave()  # it has begun
    opened.set()
    assert has_ended.wait(PATIENCE_S)
    threads.close()
    assert left[0] > 0.0
    assert left[1] == 0.0
    assert ended == [5]


def test_the_place_of_a_fault_is_not_searched_for_any_longer_than_there_is_time() -> None:
    schema = {"properties": {"a": {"items": {"bad": 1}}}}
    tried: list[object] = []

    def failure(part: object) -> str | None:
        tried.append(part)
        return "no" if "bad" in json.dumps(part) else None

    assert place_of_fault(schema, "no", failure, lambda: True) == ("properties", "a", "items")
    n_tried = len(tried)
    assert place_of_fault(schema, "no", failure, lambda: len(tried) < n_tried + 1) == ("properties", "a")
    assert place_of_fault(schema, "no", failure, lambda: False) == ()
