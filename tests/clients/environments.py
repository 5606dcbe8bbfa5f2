"""A client's virtual environment: made once, made again when its requirements or the Python change."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path


class CannotInstall(Exception):
    """pip failed; it has said why."""


def environment_python(folder: Path, requirements: Path) -> Path:
    """The Python of an environment that has the requirements. Raises CannotInstall."""
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    wanted = f"# Python {sys.version}\n{requirements.read_text(encoding='utf-8')}"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
    if subprocess.run(install, check=False).returncode != 0:
        raise CannotInstall(f"pip could not install {requirements}")
    stamp.write_text(wanted, encoding="utf-8")
    return python
