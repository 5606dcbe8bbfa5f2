"""Options of the engine, the scheduler and the HTTP server: one frozen dataclass each, checked once. Any thread."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llamaserve.api_key import ApiKey, check_keys
from llamaserve.errors import ConfigError, UnknownOption, shown

FORCE_SYNC_VARIABLE = "LLAMASERVE_FORCE_SYNC"
DEFAULT_CACHE_RAM_MIB = 1024
DEFAULT_CACHE_DISK_GIB = 10.0
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ of llama.cpp
_INT32_MAX = 2**31 - 1  # sizes are int32 in llama.cpp
_MAX_GIB = 2**20  # a PiB
_DAY_S = 24 * 3600
_MAX_TARGET_ITL = 60_000
_MAX_BODY_BYTES = 2**30
_ORIGIN = re.compile(r"[a-z][a-z0-9+.\-]*://[^\s/?#@]+")
_MAX_CTX = 2**31 - 256  # rounded up to a multiple of 256 it is still an int32


class Profile(enum.Enum):
    """What the context is tuned for."""

    SHARED = "shared"
    """One KV pool for all sequences, flash attention where it helps: fastest."""
    PARITY = "parity"
    """Split KV, no flash attention, prompt pieces computed alone: a sequence's tokens do not depend on who runs
    beside it, where the model's kernels allow it. For identity tests."""

    @property
    def mixes_steps(self) -> bool:
        """What ``SchedulerConfig.mixed_step`` is unless somebody says otherwise."""
        return self is not Profile.PARITY


class FlashAttention(enum.Enum):
    """Flash attention: llama.cpp decides, always, never."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the native engine needs to load a model. Raises ConfigError when a value cannot work."""

    model_path: Path
    n_ctx: int = 8192
    """Tokens over all slots; llama.cpp rounds it up to a multiple of 256."""
    n_slots: int = 4
    """Sequences that run at the same time."""
    n_batch: int = 2048
    """Most tokens in one native call; at least n_slots."""
    n_ubatch: int = 512
    """Most tokens in one computed graph; never more than n_batch."""
    n_threads: int = 0
    """Threads that decode single tokens; 0 = one for each usable core."""
    n_threads_batch: int = 0
    """Threads for more than one row; 0 = as n_threads."""
    n_gpu_layers: int = 99
    """Layers put on a GPU, if the build has a GPU backend."""
    flash_attention: FlashAttention = FlashAttention.AUTO
    use_mmap: bool = True
    use_mlock: bool = False
    check_tensors: bool = False
    """Check the weights for invalid values while loading."""
    swa_full: bool = False
    """Keep every token of a sliding-window model, not only its window."""
    gather_cells: bool = True
    """Put the KV cells of texts that run together side by side every few tokens, each text's on its own: attention of a
    CPU reads them faster then. Where cells are on a GPU, or cannot be shared, they stay where they are."""
    profile: Profile = Profile.SHARED

    def __post_init__(self) -> None:
        _check_type("model_path", self.model_path, Path)
        _check_between("n_ctx", self.n_ctx, 1, _MAX_CTX)
        _check_between("n_slots", self.n_slots, 1, MAX_SEQUENCES)
        _check_between("n_batch", self.n_batch, 1, _INT32_MAX)
        _check_between("n_ubatch", self.n_ubatch, 1, _INT32_MAX)
        _check_between("n_threads", self.n_threads, 0, 1024)
        _check_between("n_threads_batch", self.n_threads_batch, 0, 1024)
        _check_between("n_gpu_layers", self.n_gpu_layers, 0, _INT32_MAX)
        _check_type("flash_attention", self.flash_attention, FlashAttention)
        for name in ("use_mmap", "use_mlock", "check_tensors", "swa_full", "gather_cells"):
            _check_type(name, getattr(self, name), bool)
        _check_type("profile", self.profile, Profile)
        if self.profile is Profile.PARITY and self.flash_attention is FlashAttention.ON:
            raise ConfigError("flash_attention is 'on': the parity profile goes without; leave one of them out")
        if self.n_batch < self.n_slots:
            raise ConfigError(f"n_batch is {self.n_batch}: it must be at least n_slots, {self.n_slots}")

    @property
    def threads(self) -> int:
        """n_threads with 0 resolved."""
        return self.n_threads or usable_cores()

    @property
    def threads_batch(self) -> int:
        """n_threads_batch with 0 resolved."""
        return self.n_threads_batch or self.threads

    @property
    def flash_attention_mode(self) -> FlashAttention:
        """The mode the context gets: the parity profile has none."""
        return FlashAttention.OFF if self.profile is Profile.PARITY else self.flash_attention


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How requests wait and how a step is filled. Raises ConfigError when a value cannot work."""

    max_queue: int = 64
    """Requests that may wait for a slot; 0 = no limit."""
    max_queue_tokens: int = 0
    """Prompt tokens of all that wait for a slot; 0 = no limit. A longer prompt may wait alone."""
    queue_aging: bool = True
    """Whether less urgent requests get a part of the slots whatever comes; else urgent ones can starve them."""
    prefill_chunk: int = 512
    """Most prompt tokens of one sequence in a step; 0 = up to n_batch."""
    mixed_step: bool = True
    """Whether prompt pieces share a step with decode rows and with each other; see ``Profile.mixes_steps``."""
    target_itl: float | None = None
    """Milliseconds that steps with prompts beside streams shall stay within; 0 = no target, None = 4 times what such
    steps take without prompts. Small pieces cost more for each token: where pieces within the target would go on at
    less than about half of the best pace, or a quarter where it was set, larger ones are computed
    (``scheduler.piece_budget``)."""
    max_batch_prefill: int = 4
    """Short prompts that are computed together while nothing decodes; 1 = none are."""
    max_batch_prefill_tokens: int | None = None
    """Their number times the longest stays within this; 0 = no limit, None = by the environment, else twice
    max_batch_prefill times prefill_chunk."""
    prefill_grant_interval: int | None = None
    """Without mixed steps: decode steps before a prompt in pieces has one; 0 = it waits until nothing decodes, None =
    by the environment, else 16."""

    lookahead: bool = True
    """Whether the engine may compute the next step of steady streams before this one is acted on."""
    preempt_ram: int = 1024
    """MiB of RAM for copies of the KV cells of requests that gave their place up; beyond it they are computed again."""

    def __post_init__(self) -> None:
        _check_at_least("max_queue", self.max_queue, 0)
        _check_at_least("max_queue_tokens", self.max_queue_tokens, 0)
        _check_type("queue_aging", self.queue_aging, bool)
        _check_at_least("prefill_chunk", self.prefill_chunk, 0)
        _check_type("mixed_step", self.mixed_step, bool)
        if self.target_itl is not None:
            _check_number("target_itl", self.target_itl)
            if not 0 <= self.target_itl <= _MAX_TARGET_ITL:
                raise ConfigError(f"target_itl is {shown(self.target_itl)}: it must be from 0 to {_MAX_TARGET_ITL} ms")
        _check_between("max_batch_prefill", self.max_batch_prefill, 1, MAX_SEQUENCES)
        for name in ("max_batch_prefill_tokens", "prefill_grant_interval"):
            if getattr(self, name) is not None:
                _check_between(name, getattr(self, name), 0, _INT32_MAX)
        _check_type("lookahead", self.lookahead, bool)
        _check_between("preempt_ram", self.preempt_ram, 0, _INT32_MAX)

    @property
    def looks_ahead(self) -> bool:
        """``lookahead``, unless the environment has LLAMASERVE_FORCE_SYNC, with whatever value (L15)."""
        return self.lookahead and FORCE_SYNC_VARIABLE not in os.environ


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What is kept of computed prompts, and where. Raises ConfigError when a value cannot work."""

    cache_prompt: bool = True
    """Whether a request that says nothing of it reuses computed prefixes and leaves its own."""
    cache_ram: int = DEFAULT_CACHE_RAM_MIB
    """MiB of RAM for copies of prefixes whose cells were freed; 0 = none."""
    cache_cells: int = 512
    """KV cells that prefixes nobody uses keep while requests run; more are moved to RAM, since attention looks at every
    cell. Without ``cache_ram``, or where it is smaller than the KV cache, they stay."""
    cache_disk: Path | None = None
    """Folder for such copies, which survive a restart; None = none. It is made if it is not there."""
    cache_disk_gib: float = DEFAULT_CACHE_DISK_GIB
    """GiB they may take in the folder; above 0."""
    slot_prompt_similarity: float = 0.1
    """Where slots cannot share cells: a request takes the idle slot with the longest prefix of its prompt if that is
    more than this part of the prompt, 0 to 1; 0 = it takes the one used longest ago."""

    def __post_init__(self) -> None:
        _check_type("cache_prompt", self.cache_prompt, bool)
        _check_between("cache_ram", self.cache_ram, 0, _INT32_MAX)
        _check_between("cache_cells", self.cache_cells, 0, _INT32_MAX)
        if self.cache_disk is not None:
            _check_type("cache_disk", self.cache_disk, Path)
        _check_number("cache_disk_gib", self.cache_disk_gib)
        if not 0 < self.cache_disk_gib <= _MAX_GIB:
            raise ConfigError(f"cache_disk_gib is {shown(self.cache_disk_gib)}: it must be above 0, at most {_MAX_GIB}")
        _check_number("slot_prompt_similarity", self.slot_prompt_similarity)
        if not 0 <= self.slot_prompt_similarity <= 1:
            raise ConfigError(f"slot_prompt_similarity is {self.slot_prompt_similarity}: it must be from 0 to 1")

    @property
    def cache_ram_bytes(self) -> int:
        """``cache_ram`` in bytes."""
        return self.cache_ram * 2**20

    @property
    def cache_disk_bytes(self) -> int:
        """``cache_disk_gib`` in bytes, at least 1."""
        return max(1, int(self.cache_disk_gib * 2**30))


class PriorityHeader(enum.Enum):
    """What of the priorities that clients ask for is honoured, unless their API key says it (G19)."""

    OFF = "off"
    """Nothing: all are equal."""
    CAP = "cap"
    """A client may lower itself, never raise."""
    ON = "on"
    """Everything."""


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Where and how the HTTP server listens. Raises ConfigError when a value cannot work."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0 lets the system choose a free port."""
    max_body_bytes: int = 8 * 1024 * 1024
    """Largest request body, 1 KiB to 1 GiB."""
    body_timeout_s: float = 60.0
    """Seconds a request's body may take, above 0 and at most a day."""
    shows_slots: bool = True
    """Whether ``GET /slots`` tells what each slot does."""
    drain_timeout_s: float = 30.0
    """Seconds that requests have to finish in after the first signal, 0 to a day."""
    sse_ping_interval_s: float = 15.0
    """Seconds of silence after which a stream sends a comment, 0 to a day; 0 = never."""
    priority_header: PriorityHeader = PriorityHeader.OFF
    """What of the priorities that clients ask for is honoured, in the header and in the body."""
    api_keys: tuple[ApiKey, ...] = ()
    """Who may ask for anything but health; none = everybody."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of these origins may use the server from a browser; "*" = all of them."""
    ssl_certfile: Path | None = None
    """A certificate in PEM, with those that lead to its root; None = plain HTTP."""
    ssl_keyfile: Path | None = None
    """Its private key; both or none."""

    def __post_init__(self) -> None:
        _check_type("host", self.host, str)
        _check_between("port", self.port, 0, 65535)
        _check_between("max_body_bytes", self.max_body_bytes, 1024, _MAX_BODY_BYTES)
        _check_seconds("body_timeout_s", self.body_timeout_s)
        if self.body_timeout_s == 0:
            raise ConfigError("body_timeout_s is 0: it must be above 0 s")
        _check_type("shows_slots", self.shows_slots, bool)
        _check_seconds("drain_timeout_s", self.drain_timeout_s)
        _check_seconds("sse_ping_interval_s", self.sse_ping_interval_s)
        _check_type("priority_header", self.priority_header, PriorityHeader)
        for name, kind in (("api_keys", ApiKey), ("cors_origins", str)):
            _check_type(name, getattr(self, name), tuple)
            for item in getattr(self, name):
                _check_type(name, item, kind)
        check_keys(self.api_keys)
        for origin in self.cors_origins:
            _check_origin(origin)
        for name in ("ssl_certfile", "ssl_keyfile"):
            if getattr(self, name) is not None:
                _check_type(name, getattr(self, name), Path)
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            given, missing = ("ssl_certfile", "ssl_keyfile") if self.ssl_certfile else ("ssl_keyfile", "ssl_certfile")
            raise ConfigError(f"{given} is given without {missing}: TLS needs both")

    @property
    def scheme(self) -> str:
        """What the server's URL begins with."""
        return "http" if self.ssl_certfile is None else "https"


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


ConfigT = TypeVar("ConfigT")


def split_options(options: Mapping[str, Any], *configs: type) -> list[dict[str, Any]]:
    """Sort options by the config that has a field of that name, one dict per config.

    Raises UnknownOption, with the closest name, for an option no config has.
    """
    fields = [{f.name for f in dataclasses.fields(config)} for config in configs]
    known = sorted(set().union(*fields))
    parts: list[dict[str, Any]] = [{} for _ in configs]
    for name, value in options.items():
        for part, names in zip(parts, fields, strict=True):
            if name in names:
                part[name] = value
                break
        else:
            close = difflib.get_close_matches(name, known, n=1)
            raise UnknownOption(name, close[0] if close else None)
    return parts


_TYPE_NAMES = {bool: "True or False", str: "a string"}


def _check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {shown(value)}: it must be {_TYPE_NAMES.get(kind, f'a {kind.__name__}')}")


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(f"{name} is {shown(value)}: it must be a number")


def _check_seconds(name: str, value: float) -> None:
    _check_number(name, value)
    if not 0 <= value <= _DAY_S:
        raise ConfigError(f"{name} is {shown(value)}: it must be from 0 to {_DAY_S} (a day)")


def _check_origin(origin: str) -> None:
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise ConfigError(f"a CORS origin is {shown(origin)}: it must be '*' or like https://example.com:8443, no path")


def _check_at_least(name: str, value: int, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ConfigError(f"{name} is {shown(value)}: it must be a whole number of at least {low}")


def _check_between(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} is {shown(value)}: it must be a whole number from {low} to {high}")
