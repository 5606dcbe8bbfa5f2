"""From what the user typed after ``-m`` to a model file on this machine. Any thread; may block for a download."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from llamaserve.errors import ModelLoad
from llamaserve.models import hub
from llamaserve.models.cache import models_folder
from llamaserve.models.download import DownloadProgress
from llamaserve.models.pinned import SMOLLM2, fetch

DEFAULT_MODEL = "smollm2"
PINNED_MODELS = {DEFAULT_MODEL: SMOLLM2}
FORMS = f'the path of a .gguf file, "{DEFAULT_MODEL}", or "{hub.PREFIX}owner/repo/file.gguf"'


def resolve(
    source: str | os.PathLike[str], *, progress: DownloadProgress | None = None, cache_dir: Path | None = None
) -> Path:
    """The model file that ``source`` names, downloaded if it is not here yet.

    ``source`` is a path (``~`` is the home folder), a known name (``smollm2``; a file of that name is ``./smollm2``),
    or ``hf:owner/repo/file.gguf``. ``cache_dir`` is where known models are kept; None means the user's cache folder,
    or LLAMASERVE_CACHE. Raises ModelLoad with one line that says what to do.
    """
    text = os.fspath(source)
    if text.startswith(hub.PREFIX):
        return hub.fetch(text)
    if text in PINNED_MODELS:
        return fetch(PINNED_MODELS[text], models_folder(cache_dir), progress)
    return _existing_file(text)


def model_name(source: str | os.PathLike[str]) -> str:
    """The name clients use for what ``source`` names: a known name as it is, else the file's name without ending."""
    text = os.fspath(source)
    return text if text in PINNED_MODELS else Path(text.removeprefix(hub.PREFIX)).stem


def _existing_file(text: str) -> Path:
    if not text:
        raise ModelLoad(f"no model was named: give {FORMS}")
    try:
        path = Path(text).expanduser()
        if path.is_file():
            return path
        if path.is_dir():
            raise ModelLoad(f"{text!r} is a folder: name a .gguf file{_some_models_in(path)}")
        exists = path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, a ~user nobody has, a NUL in it
        raise ModelLoad(f"{text!r} cannot be used as a path: {error}") from error
    if exists:
        raise ModelLoad(f"{text!r} is not a regular file")
    if path.suffix == ".gguf" or text != path.name:
        raise ModelLoad(f"there is no model file {text!r}")
    close = difflib.get_close_matches(text.lower(), PINNED_MODELS, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise ModelLoad(f"no file and no known model has the name {text!r}{hint}: give {FORMS}")


def _some_models_in(folder: Path) -> str:
    names = sorted(path.name for path in folder.glob("*.gguf"))[:3]
    return f", such as {', '.join(names)}" if names else ""
