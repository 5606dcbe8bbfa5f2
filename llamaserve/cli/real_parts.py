"""The real models, engine and server. Imported when a command runs, so that ``--help`` needs no native module."""

from __future__ import annotations

from functools import partial

from llamaserve.cli.parts import Parts
from llamaserve.engine.native import read_gguf
from llamaserve.load_service import load_service
from llamaserve.models import resolve
from llamaserve.server.run import run_server

PARTS = Parts(
    resolve=resolve, load_service=load_service, read_gguf=read_gguf, run_server=partial(run_server, ends_process=True)
)
