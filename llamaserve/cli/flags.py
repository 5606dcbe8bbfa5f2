"""The flags, in llama-server's spelling, and what they configure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from llamaserve.cli.cache_folder import CacheFolder
from llamaserve.config import (
    DEFAULT_CACHE_DISK_GIB,
    MAX_SEQUENCES,
    CacheConfig,
    EngineConfig,
    FlashAttention,
    Profile,
    SchedulerConfig,
)
from llamaserve.models import DEFAULT_MODEL
from llamaserve.request_options import SamplingOptions
from llamaserve.sampling import SamplingParams
from llamaserve.scheduler.prefill_settings import MIXED_STEP_VARIABLE, resolve_mixed_step

MODEL_HELP = f'A .gguf file, "{DEFAULT_MODEL}" (fetched on first use), or "hf:owner/repo/file.gguf".'

_ENGINE = EngineConfig(model_path=Path())
_SCHEDULER = SchedulerConfig()
_CACHE = CacheConfig()
_SAMPLING = SamplingParams()

_model = partial(typer.Option, rich_help_panel="Model and context")
_slots = partial(typer.Option, rich_help_panel="Slots and queue")
_cache = partial(typer.Option, rich_help_panel="Prefix cache")
_sampling = partial(typer.Option, rich_help_panel="Sampling")

ALL_LAYERS = ("all", "auto")
"""llama-server's words; auto is all here too, what does not fit is an error at the start."""
MORE_LAYERS_THAN_ANY_MODEL_HAS = 9999


def parse_layers(text: str | int) -> int:
    """A number of layers, or a word for all of them. Raises typer.BadParameter."""
    if text in ALL_LAYERS:
        return MORE_LAYERS_THAN_ANY_MODEL_HAS
    try:
        n_layers = int(text)
    except ValueError:
        n_layers = -1
    if n_layers < 0:
        raise typer.BadParameter(f"{text!r} is neither a number of layers nor all or auto")
    return n_layers


ModelFlag = Annotated[str, _model("--model", "-m", help=MODEL_HELP)]


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """How the model is loaded."""

    ctx_size: Annotated[
        int,
        _model(
            "--ctx-size",
            "-c",
            min=1,
            help="Tokens over all slots; rounded up to a multiple of 256, in the parity profile for each slot.",
        ),
    ] = _ENGINE.n_ctx
    batch_size: Annotated[int, _model("--batch-size", "-b", min=1, help="Most tokens in a step.")] = _ENGINE.n_batch
    ubatch_size: Annotated[
        int, _model("--ubatch-size", "-ub", min=1, help="Most tokens computed at once inside a step.")
    ] = _ENGINE.n_ubatch
    threads: Annotated[
        int, _model("--threads", "-t", min=0, help="Threads for single tokens; 0 = one for each usable core.")
    ] = _ENGINE.n_threads
    threads_batch: Annotated[
        int, _model("--threads-batch", "-tb", min=0, help="Threads for more than one token; 0 = as --threads.")
    ] = _ENGINE.n_threads_batch
    gpu_layers: Annotated[
        int,
        _model(
            "--gpu-layers",
            "--n-gpu-layers",
            "-ngl",
            parser=parse_layers,
            metavar="N|all|auto",
            help="Layers put on a GPU, if this build has one.",
        ),
    ] = _ENGINE.n_gpu_layers
    flash_attn: Annotated[FlashAttention, _model("--flash-attn", "-fa", help="Flash attention.")] = (
        _ENGINE.flash_attention
    )
    mmap: Annotated[bool, _model("--mmap/--no-mmap", help="Map the file into memory.")] = _ENGINE.use_mmap
    mlock: Annotated[bool, _model("--mlock", help="Keep the weights in RAM.")] = _ENGINE.use_mlock
    check_tensors: Annotated[bool, _model("--check-tensors", help="Check the weights for invalid values.")] = (
        _ENGINE.check_tensors
    )
    swa_full: Annotated[
        bool, _model("--swa-full", help="Keep every token of a sliding-window model, not only its window.")
    ] = _ENGINE.swa_full
    gather_cells: Annotated[
        bool,
        _model(
            "--gather-cells/--no-gather-cells",
            help="Put the KV cells of each running text side by side every few tokens; without a GPU.",
        ),
    ] = _ENGINE.gather_cells
    profile: Annotated[
        Profile,
        _model("--profile", help="shared = fastest; parity = a text does not depend on who runs beside it."),
    ] = _ENGINE.profile

    def config(self, model_path: Path, n_slots: int) -> EngineConfig:
        """The engine's configuration. Raises ConfigError."""
        return EngineConfig(
            model_path=model_path,
            n_ctx=self.ctx_size,
            n_slots=n_slots,
            n_batch=self.batch_size,
            n_ubatch=self.ubatch_size,
            n_threads=self.threads,
            n_threads_batch=self.threads_batch,
            n_gpu_layers=self.gpu_layers,
            flash_attention=self.flash_attn,
            use_mmap=self.mmap,
            use_mlock=self.mlock,
            check_tensors=self.check_tensors,
            swa_full=self.swa_full,
            gather_cells=self.gather_cells,
            profile=self.profile,
        )


@dataclass(frozen=True, slots=True)
class SlotFlags:
    """How requests share the model."""

    parallel: Annotated[
        int, _slots("--parallel", "-np", min=1, max=MAX_SEQUENCES, help="Requests that run at the same time.")
    ] = _ENGINE.n_slots
    max_queue_depth: Annotated[
        int, _slots("--max-queue-depth", min=0, help="Requests that may wait; 0 = no limit.")
    ] = _SCHEDULER.max_queue
    max_queue_tokens: Annotated[
        int, _slots("--max-queue-tokens", min=0, help="Prompt tokens that may wait; 0 = no limit.")
    ] = _SCHEDULER.max_queue_tokens
    queue_aging: Annotated[
        bool, _slots("--queue-aging/--no-queue-aging", help="Serve less urgent requests too while urgent ones wait.")
    ] = _SCHEDULER.queue_aging
    prefill_chunk_size: Annotated[
        int,
        _slots("--prefill-chunk-size", min=0, help="Most prompt tokens of one request in a step; 0 = --batch-size."),
    ] = _SCHEDULER.prefill_chunk
    mixed_step: Annotated[
        bool | None,
        _slots(
            "--mixed-step/--no-mixed-step",
            help="Compute prompts in the same step as running texts.",
            show_default="LLAMASERVE_MIXED_STEP, else on, in the parity profile off",
        ),
    ] = None
    target_itl: Annotated[
        float | None,
        _slots(
            "--target-itl",
            min=0,
            help="Milliseconds between two tokens of a stream to hold while prompts are computed, where that does not "
            "make them much slower; 0 = no target.",
            show_default="4 times what a step takes without prompts",
        ),
    ] = None
    max_batch_prefill: Annotated[
        int,
        _slots("--max-batch-prefill", min=1, max=MAX_SEQUENCES, help="Short prompts computed together; 1 = none are."),
    ] = _SCHEDULER.max_batch_prefill
    max_batch_prefill_tokens: Annotated[
        int | None,
        _slots(
            "--max-batch-prefill-tokens",
            min=0,
            help="Most tokens of them, as number times the longest; 0 = no limit.",
            show_default="LLAMASERVE_MAX_BATCH_PREFILL_TOKENS, else 2 x --max-batch-prefill x --prefill-chunk-size",
        ),
    ] = None
    prefill_grant_interval: Annotated[
        int | None,
        _slots(
            "--prefill-grant-interval",
            min=0,
            help="Without mixed steps: decode steps before a piece of a prompt; 0 = none while texts run.",
            show_default="LLAMASERVE_PREFILL_GRANT_INTERVAL, else 16",
        ),
    ] = None
    lookahead: Annotated[
        bool,
        _slots(
            "--lookahead/--no-lookahead",
            envvar="LLAMASERVE_LOOKAHEAD",
            help="Compute the next step of steady streams before this one is acted on.",
        ),
    ] = _SCHEDULER.lookahead
    preempt_ram: Annotated[
        int,
        _slots(
            "--preempt-ram",
            min=0,
            max=2**31 - 1,
            help="MiB for the KV cells of requests that made room; else computed again.",
        ),
    ] = _SCHEDULER.preempt_ram

    def config(self, profile: Profile) -> SchedulerConfig:
        """The scheduler's configuration. Raises ConfigError."""
        return SchedulerConfig(
            max_queue=self.max_queue_depth,
            max_queue_tokens=self.max_queue_tokens,
            queue_aging=self.queue_aging,
            prefill_chunk=self.prefill_chunk_size,
            mixed_step=resolve_mixed_step(
                flag=self.mixed_step, text=os.environ.get(MIXED_STEP_VARIABLE), default=profile.mixes_steps
            ),
            target_itl=self.target_itl,
            max_batch_prefill=self.max_batch_prefill,
            max_batch_prefill_tokens=self.max_batch_prefill_tokens,
            prefill_grant_interval=self.prefill_grant_interval,
            lookahead=self.lookahead,
            preempt_ram=self.preempt_ram,
        )


@dataclass(frozen=True, slots=True)
class CacheFlags:
    """What is kept of computed prompts."""

    cache_prompt: Annotated[
        bool,
        _cache(
            "--cache-prompt/--no-cache-prompt",
            envvar="LLAMASERVE_CACHE_PROMPT",
            help="Reuse computed prefixes; a request may say otherwise.",
        ),
    ] = _CACHE.cache_prompt
    cache_ram: Annotated[
        int,
        _cache(
            "--cache-ram",
            "-cram",
            envvar="LLAMASERVE_CACHE_RAM",
            min=0,
            max=2**31 - 1,
            help="MiB for copies of prefixes that made room; 0 = none.",
        ),
    ] = _CACHE.cache_ram
    cache_cells: Annotated[
        int,
        _cache(
            "--cache-cells",
            min=0,
            max=2**31 - 1,
            help="KV cells that unused prefixes keep while requests run; more move to --cache-ram.",
        ),
    ] = _CACHE.cache_cells
    cache_disk: Annotated[
        CacheFolder | None,
        _cache(
            "--cache-disk",
            envvar="LLAMASERVE_CACHE_DISK",
            parser=CacheFolder.parse,
            metavar="DIR[,GiB]",
            help=f"Folder for such copies, kept over restarts, and its size ({DEFAULT_CACHE_DISK_GIB:g} GiB).",
            show_default="none",
        ),
    ] = None
    slot_prompt_similarity: Annotated[
        float,
        _cache(
            "--slot-prompt-similarity",
            "-sps",
            min=0,
            max=1,
            help="Where slots cannot share: part of a prompt a slot must have to be taken for it; 0 = any slot.",
        ),
    ] = _CACHE.slot_prompt_similarity

    @property
    def config(self) -> CacheConfig:
        """The configuration of the prefix cache. Raises ConfigError."""
        folder = self.cache_disk
        return CacheConfig(
            cache_prompt=self.cache_prompt,
            cache_ram=self.cache_ram,
            cache_cells=self.cache_cells,
            cache_disk=None if folder is None else folder.path,
            cache_disk_gib=DEFAULT_CACHE_DISK_GIB if folder is None else folder.gib,
            slot_prompt_similarity=self.slot_prompt_similarity,
        )


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """How tokens are drawn. Greedy unless told otherwise, so that a command gives the same text each time; the rest is
    as on the server."""

    temp: Annotated[float, _sampling("--temp", "--temperature", help="0 takes the most likely token.")] = 0.0
    top_k: Annotated[int, _sampling("--top-k", help="Keep the k most likely tokens; 0 = all.")] = _SAMPLING.top_k
    top_p: Annotated[float, _sampling("--top-p", help="Keep the likeliest tokens up to this probability.")] = (
        _SAMPLING.top_p
    )
    min_p: Annotated[float, _sampling("--min-p", help="Drop tokens below this fraction of the likeliest.")] = (
        _SAMPLING.min_p
    )
    seed: Annotated[int, _sampling("--seed", "-s", min=-1, help="-1 = a new one each time.")] = -1
    repeat_penalty: Annotated[float, _sampling("--repeat-penalty", help="1 = off.")] = _SAMPLING.repeat_penalty
    repeat_last_n: Annotated[int, _sampling("--repeat-last-n", help="Tokens the penalties look back.")] = (
        _SAMPLING.repeat_last_n
    )
    frequency_penalty: Annotated[float, _sampling("--frequency-penalty", help="0 = off.")] = _SAMPLING.frequency_penalty
    presence_penalty: Annotated[float, _sampling("--presence-penalty", help="0 = off.")] = _SAMPLING.presence_penalty

    @property
    def options(self) -> SamplingOptions:
        """The same for ``Server``, which checks the values."""
        return SamplingOptions(
            temperature=self.temp,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=None if self.seed < 0 else self.seed,
            repeat_penalty=self.repeat_penalty,
            repeat_last_n=self.repeat_last_n,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
        )


StopFlag = Annotated[
    list[str] | None, _sampling("--stop", help="Ends the text where it would begin; may be given several times.")
]
PredictFlag = Annotated[
    int, _sampling("--predict", "--n-predict", "-n", help="Most tokens; -1 = until the model ends.")
]


def max_tokens(predict: int) -> int | None:
    """The limit that ``--predict`` means. Raises typer.BadParameter for 0 and below -1."""
    if predict == 0 or predict < -1:
        raise typer.BadParameter(f"{predict} is not -1 or at least 1", param_hint="'--predict' / '-n'")
    return None if predict == -1 else predict
