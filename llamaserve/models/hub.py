"""Model files of the Hugging Face hub, by the optional ``huggingface_hub``, which has its own cache. Any thread."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

from llamaserve.errors import ModelLoad

PREFIX = "hf:"
_PART_OF_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.\-]*"
_FORM = re.compile(rf"(?P<repo>{_PART_OF_NAME}/{_PART_OF_NAME})/(?P<file>(?:{_PART_OF_NAME}/)*{_PART_OF_NAME}\.gguf)")
_SPLIT = re.compile(r"(?P<stem>.+)-00001-of-(?P<count>\d{5})\.gguf")


def parse(source: str) -> tuple[str, str]:
    """Repository and file of ``hf:owner/repo/file.gguf``; the file may lie in folders. Raises ModelLoad.

    No part of the name can be ``..`` or empty, so it cannot lead out of the hub's cache.
    """
    match = _FORM.fullmatch(source.removeprefix(PREFIX))
    if match is None:
        raise ModelLoad(f"{source!r} is not of the form {PREFIX}owner/repo/file.gguf")
    return match["repo"], match["file"]


def files_of(file: str) -> list[str]:
    """The file, or all files of a model that is split into several, given the first of them."""
    split = _SPLIT.fullmatch(file)
    if split is None:
        return [file]
    return [f"{split['stem']}-{i:05}-of-{split['count']}.gguf" for i in range(1, int(split["count"]) + 1)]


def fetch(source: str) -> Path:
    """The file on this machine, downloaded if it is not there. Raises ModelLoad with one line that says what to do."""
    repo, file = parse(source)
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ModelLoad(f'{source} needs the huggingface-hub package: pip install "llamaserve[hf]"')
    library: Any = importlib.import_module("huggingface_hub")
    try:
        paths = [Path(library.hf_hub_download(repo_id=repo, filename=name)) for name in files_of(file)]
    except Exception as error:  # of several families: HTTP, file system, validation
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelLoad(f"{source} cannot be downloaded: {reason}") from error
    return paths[0]
