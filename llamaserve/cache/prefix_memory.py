"""What the scheduler asks of the memory of computed prompts; one kind for each kind of engine memory.

``shared_prefixes`` serves an engine that ``can_share`` cells between sequences: what a request leaves is parked under
an id no slot has, and any slot adopts it. ``slot_prefixes`` serves all others: what a request leaves stays in its slot.

Scheduler thread only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from llamaserve.cache.prompt import Prompt
from llamaserve.engine.port import ModelInfo


@dataclass(slots=True)
class PrefixCounters:
    """What a prefix memory has done since the start."""

    hits: int = 0
    """Requests that reused at least one token."""
    misses: int = 0
    """Requests that were allowed to reuse and found nothing."""
    tokens_queried: int = 0
    """Prompt tokens of those requests."""
    tokens_from_cells: int = 0
    """Prompt tokens taken from cells that were there."""
    tokens_from_ram: int = 0
    tokens_from_disk: int = 0
    """Prompt tokens whose cells were restored from a copy."""
    parked: int = 0
    """Times a request left cells behind."""
    merged_tokens: int = 0
    """Cells freed because another sequence had computed the same tokens."""
    evictions: int = 0
    """Runs of cells freed to make room."""
    evicted_tokens: int = 0
    saves: int = 0
    """Copies of cells made before they were freed."""
    restores: int = 0
    unstable_prefixes: int = 0
    """Prompts that matched 10 to 50 % of what their conversation had left, and nothing better (S38)."""


@dataclass(frozen=True, slots=True)
class PrefixGauges:
    """A prefix memory at one moment."""

    parked_sequences: int = 0
    parked_cells: int = 0
    """Cells only parked sequences hold."""
    ram_entries: int = 0
    ram_bytes: int = 0
    disk_entries: int = 0
    disk_bytes: int = 0
    disk_written: int = 0
    disk_fetched: int = 0
    disk_evicted: int = 0
    disk_refused: int = 0
    disk_bad_files: int = 0
    """What the disk tier has done since the start, in files; ``refused``: too much waited to be written; ``bad``:
    corrupt, foreign, unreadable or gone."""
    shares: bool = False
    """Whether any slot can use what another computed (S25)."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A sequence that holds a prefix, for ``/slots``."""

    seq_id: int
    n_tokens: int
    n_shared: int
    """Of these, tokens whose cells another sequence holds too."""
    session: str | None = None
    is_parked: bool = field(default=True)
    session_scope: str = ""
    """Of the prompts of its session."""


def is_one_pool(info: ModelInfo) -> bool:
    """Whether slots take cells from each other: all of them together may want more than there are."""
    return info.n_slots * info.n_ctx_seq > info.n_ctx


class CaughtUp(NamedTuple):
    """How far a sequence is in its prompt."""

    n_held: int
    """Tokens of the prompt it holds."""
    waits: bool
    """Whether another sequence computes what comes next: then it shall not."""


class PrefixMemory(Protocol):
    """Keeps prefixes, gives them out, and makes room when cells are wanted."""

    counters: PrefixCounters

    def choose_slot(self, prompt: Prompt, idle: Sequence[int]) -> int:
        """The slot a request begins in, out of idle ones, that used longest ago first; at least one is given."""

    def enter(self, seq_id: int, prompt: Prompt) -> int:
        """Have a sequence that is about to be opened hold the longest prefix of the prompt that is kept anywhere.

        Returns how many tokens it holds now, 0 to ``prompt.n_reusable``; ``open`` goes on from there. Raises nothing
        but EngineDown: where a copy fails, the tokens are computed.
        """

    def piece_ends(self, prompt: Prompt) -> Sequence[int]:
        """Positions, ascending, where pieces of the prompt shall end so that ``advance`` tells of them (E22)."""

    def advance(self, seq_id: int, n_computed: int) -> None:
        """The sequence has so many tokens of its prompt now; others may find them."""

    def grow(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence has drawn these tokens behind its prompt, and decoded them; others may find them."""

    def catch_up(self, seq_id: int) -> CaughtUp:
        """Adopt what another sequence has computed meanwhile of the same prompt. The sequence is open and in the middle
        of its prompt, and it holds what ``enter``, ``advance`` and this said last. Raises EngineDown."""

    def leave(self, seq_id: int, tokens: array[int] | None) -> None:
        """Close a sequence. ``tokens`` are those its cells hold, exactly; None keeps nothing of it."""

    def prefetch(self, request_id: str, prompt: Prompt, done: Callable[[], None]) -> None:
        """A request has come and waits: begin to read what is kept of its prompt where that takes time. ``done`` is
        called, on any thread, when ``is_fetching`` may have become false."""

    def is_fetching(self, request_id: str) -> bool:
        """Whether that goes on; the request shall not begin before it is done."""

    def drop_fetch(self, request_id: str) -> None:
        """The request will not begin: it was cancelled while it waited."""

    def lose(self, seq_id: int) -> None:
        """The sequence is broken: the engine has nothing of it any more, and it will be left."""

    def suspend(self, seq_id: int) -> None:
        """The engine has closed the sequence itself, nothing of it is left."""

    def resume(self, seq_id: int, prompt: Prompt) -> None:
        """The engine has opened a sequence again that it had suspended, with all its cells."""

    @property
    def n_evictable(self) -> int:
        """Cells that ``make_room`` could free."""

    def make_room(self, n_cells: int) -> bool:
        """Free kept cells, those used longest ago first, until the engine has ``n_cells`` free ones; whether it has."""

    @property
    def n_surplus(self) -> int:
        """Cells that nobody uses and that slow those down that run: those ``spill`` would move."""

    def spill(self) -> None:
        """Move some of what nobody uses out of the way of those that run, where it is kept. Raises EngineDown."""

    def purge_order(self) -> Sequence[int]:
        """Ids of parked sequences, those used longest ago first, for a step that found no room although there should
        be some."""

    def purged(self, seq_ids: Sequence[int]) -> None:
        """The engine has forgotten these."""

    def clear(self) -> None:
        """Forget everything without asking anything of the engine: it is down."""

    def close(self) -> None:
        """Save what shall survive the process, and end. The engine is still up, and no sequence is open."""

    def gauges(self) -> PrefixGauges:
        """Numbers as they are now. Any thread."""

    def holders(self) -> Sequence[Holder]:
        """Who holds what. Any thread; may be one tick old."""
