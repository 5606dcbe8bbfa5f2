"""The scheduler decides and the engine computes: its sources ask nothing else to (E16)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import llamaserve.scheduler
from llamaserve.engine.port import Engine

SOURCES = sorted(Path(llamaserve.scheduler.__file__).parent.glob("*.py"))
COMPUTING_CALLS = ("decode", "sample", "forward", "batch_eval_sample", "tokenize", "detokenize")
ENGINE_METHODS = {name for name in vars(Engine) if not name.startswith("_")}


def is_engine(node: ast.expr) -> bool:
    """Whether an expression is an engine by its name: ``engine`` or ``self._engine``."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in ("engine", "_engine")


def breaches(source: str) -> Iterator[str]:
    """What a source does that only an engine may do."""
    if "llama_" in source:
        yield "llama_"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in COMPUTING_CALLS:
            is_text = isinstance(node.func.value, ast.Constant) and isinstance(node.func.value.value, bytes)
            if not is_text:
                yield f".{node.func.attr}("
        elif isinstance(node, ast.Attribute) and is_engine(node.value) and node.attr not in ENGINE_METHODS:
            yield f"engine.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("llamaserve._", "pybind")):
            yield f"from {node.module}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_scheduler_computes_nothing_itself(path: Path) -> None:
    """E16: no forward and no sampler call, and of an engine only what the port names."""
    assert list(breaches(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("llama_decode(context, batch)", "llama_"),
        ("logits = self._model.decode(batch)", ".decode("),
        ("token = sampler.sample(logits)", ".sample("),
        ("text = piece.decode()", ".decode("),
        ("self._engine.memory_seq_cp(0)", "engine.memory_seq_cp"),
        ("from llamaserve._engine import Engine", "from llamaserve._engine"),
    ],
)
def test_a_breach_is_found(source: str, found: str) -> None:
    assert found in list(breaches(source))


def test_what_the_scheduler_does_is_no_breach() -> None:
    """Rows called decode, text from constant bytes, and the methods of the port."""
    assert list(breaches("self._engine.collect(ticket); rows = plan.decode; text = b'a'.decode()")) == []
