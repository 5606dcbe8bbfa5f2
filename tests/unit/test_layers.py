"""Imports go one way: from a layer to those below it, never up (docs/architecture.md, Layers)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "llamaserve"

# Highest first; a module may import from its own entry and from lower ones.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("server",),
    ("api",),
    ("__init__",),
    ("server_api",),
    ("text_stream", "request_options", "load_service"),
    ("completion",),
    ("service",),
    ("scheduler",),
    ("cache",),
    ("engine.native", "engine.fake", "engine.native_sampling", "engine.memory_check", "models"),
    ("chat",),
    ("grammar",),
    ("text", "engine.port", "engine"),
    ("_engine", "_hot"),
    ("config", "request", "api_key"),
    ("constraint", "sampling"),
    ("loadtest",),
    ("telemetry",),
    ("errors",),
)
FORBIDDEN_IN_SCHEDULER = (
    "starlette",
    "uvicorn",
    "json",
    "msgspec",
    "prometheus_client",
    "llamaserve._engine",
    "llamaserve.engine.native",
)


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"), path


def imports(path: Path) -> Iterator[str]:
    """Absolute names of what a file imports, in functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(module: str) -> int:
    """Index of the most specific entry a module belongs to."""
    best = max(
        (name for names in LAYERS for name in names if module == name or module.startswith(f"{name}.")),
        key=len,
        default=None,
    )
    assert best is not None, f"llamaserve/{module} has no place in LAYERS"
    return next(index for index, names in enumerate(LAYERS) if best in names)


def test_no_module_imports_from_a_higher_layer() -> None:
    broken = []
    for module, path in modules():
        for name in imports(path):
            if not name.startswith("llamaserve."):
                continue
            target = name.removeprefix("llamaserve.")
            is_module = (PACKAGE / Path(*target.split("."))).with_suffix(".py").exists()
            is_package = (PACKAGE / Path(*target.split("."))).is_dir()
            is_native = target in ("_engine", "_hot")
            if (is_module or is_package or is_native) and layer(target) < layer(module):
                broken.append(f"{module} imports {target}")
    assert broken == []


def test_the_load_generator_knows_nothing_of_what_it_measures_and_only_the_command_line_knows_it() -> None:
    """Not even configurations: another server is measured with the same code."""
    for module, path in modules():
        packages = {name.split(".")[1] for name in imports(path) if name.startswith("llamaserve.")}
        if layer(module) == layer("loadtest"):
            assert packages <= {"loadtest", "errors"}, module
        elif layer(module) != layer("cli"):
            assert "loadtest" not in packages, module


def test_the_scheduler_knows_no_http_no_json_and_no_binding() -> None:
    """E16: nor does it decode or sample; it asks an engine."""
    for path in (PACKAGE / "scheduler").glob("*.py"):
        for name in imports(path):
            assert not name.startswith(FORBIDDEN_IN_SCHEDULER), f"{path.name} imports {name}"
        source = path.read_text(encoding="utf-8")
        for call in ("llama_", ".decode(", ".sample("):
            assert call not in source, f"{path.name} has {call}"
