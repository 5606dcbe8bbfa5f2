"""What a scenario compares: a server and how it is started. Knows no process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["llamaserve", "llama-server"]


@dataclass(frozen=True)
class Arm:
    """One server in one configuration; its name is what tables and plots call it."""

    name: str
    kind: Kind
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Set for the server process, over the environment it inherits."""
    body: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields a scenario adds to every request of this arm."""
    slots: int | None = None
    """Slots of this arm; None = as the setting has it."""


LLAMASERVE = Arm("llamaserve", "llamaserve")

LLAMA_SERVER = Arm("llama-server", "llama-server", ("--kv-unified",))
"""As it comes: without ``-np`` llama-server chooses 4 slots on one pool, which is ``-np 4 --kv-unified``. With other
numbers of slots the pool stays, so that it has what llamaserve has."""

LLAMA_SERVER_SPLIT = Arm("llama-server -np", "llama-server", ("--no-kv-unified",))
"""As ``-np N`` alone gives it: every slot has its own part of the context."""
