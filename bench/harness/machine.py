"""The machine and the build a result belongs to, without names of hosts or folders."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

from bench.harness.peers import ROOT
from llamaserve import __version__
from llamaserve.config import usable_cores

SOURCES = ("llamaserve", "_native", "cmake", "vendor", "CMakeLists.txt", "setup.py")  # what a server is made of
BUILD_OPTIONS = ("CMAKE_BUILD_TYPE", "CMAKE_CXX_FLAGS", "GGML_NATIVE", "GGML_OPENMP", "GGML_CUDA", "GGML_BLAS")


def result_key() -> str:
    """Version, commit and machine: the name of a folder of results."""
    return f"{__version__}-{commit()}-{platform.machine()}-{usable_cores()}-cores"


def commit() -> str:
    """The commit the sources are of, marked when they differ from it; "unknown" outside a repository."""
    found = _git("rev-parse", "--short=7", "HEAD")
    if not found:
        return "unknown"
    return f"{found}-dirty" if _git("status", "--porcelain", "--", *SOURCES) else found


def description() -> dict[str, str]:
    """Facts that explain a figure, by name."""
    facts = {
        "processor": f"{_processor()}, {usable_cores()} usable cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "compiler": _compiler(ROOT / "build" / "native"),
    }
    ours, peers = _build_options(ROOT / "build" / "native"), _build_options(ROOT / "build" / "peers")
    facts["build"] = _shown(ours)
    if peers:
        facts["build of the peers"] = "the same options" if peers == ours else _shown(peers)
    return facts


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.exists() else ""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    words = set(flags[1].split()) if flags else set()
    kinds = [kind for kind in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if kind in words]
    shown = name[1].strip() if name else platform.processor() or "unknown"
    hypervisor = ", a virtual machine" if "hypervisor" in words else ""
    return f"{shown} ({' '.join(kinds)}){hypervisor}" if kinds else shown + hypervisor


def _compiler(build: Path) -> str:
    for found in build.glob("CMakeFiles/*/CMakeCXXCompiler.cmake"):
        text = found.read_text(encoding="utf-8")
        facts = [
            re.search(rf'^set\(CMAKE_CXX_COMPILER_{name} "(.*)"\)$', text, re.MULTILINE) for name in ("ID", "VERSION")
        ]
        return " ".join(fact[1] for fact in facts if fact)
    return "unknown"


def _build_options(build: Path) -> dict[str, str]:
    cache = build / "CMakeCache.txt"
    if not cache.exists():
        return {}
    lines = re.findall(r"^([A-Za-z0-9_]+):[A-Z]+=(.*)$", cache.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: value for name, value in lines if name in BUILD_OPTIONS and value}


def _shown(options: dict[str, str]) -> str:
    return ", ".join(f"{name}={options[name]}" for name in BUILD_OPTIONS if name in options) or "unknown"


def _git(*arguments: str) -> str:
    try:
        run = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return run.stdout.strip()
