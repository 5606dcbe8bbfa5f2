"""llama.cpp behind the engine seam. Scheduler thread, but for ``vocab``, ``chat_template`` and a step's flag.

The work happens in ``llamaserve._engine``: one native worker thread decodes, samples and detokenises without the GIL.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# ggml_abort would fork a debugger for a backtrace; nothing of ours reaches it, and a forked server is worse.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

from llamaserve import _engine
from llamaserve._engine import CancelFlag
from llamaserve.chat.native_template import NativeChatTemplate
from llamaserve.config import EngineConfig, FlashAttention, Profile
from llamaserve.engine.memory_check import available_bytes, check_context_fits
from llamaserve.engine.native_sampling import sampler_spec
from llamaserve.engine.port import (
    FimTokens,
    MemoryKind,
    ModelInfo,
    PromptPiece,
    RowOutput,
    SavedState,
    SequenceSpec,
    StepFlag,
    StepPlan,
    StepReport,
    StepTime,
    SuspendedSequence,
    Ticket,
)
from llamaserve.errors import BadRequest, BadTemplate, EngineError, ModelLoad

_logger = logging.getLogger(__name__)

_GGUF_MAGIC = b"GGUF"
_FLASH_ATTENTION = {FlashAttention.AUTO: -1, FlashAttention.OFF: 0, FlashAttention.ON: 1}


@dataclass(frozen=True, slots=True)
class GgufSummary:
    """What a GGUF file says without its weights being read."""

    architecture: str
    n_tensors: int
    size_bytes: int
    """Size of the file."""
    n_params: int
    n_ctx_train: int
    """Tokens of context the model was trained for."""
    description: str
    """llama.cpp's one line: family, size, quantisation."""
    memory: MemoryKind
    chat_template: str | None
    metadata: Mapping[str, str | int | float | bool]
    """Scalar pairs; an array ``key`` is left out and its length stands under ``key[]``."""


class NativeVocabulary:
    """The model's vocabulary. Any thread; long texts release the GIL."""

    def __init__(self, model: _engine.Model) -> None:
        self._model = model
        self.n_tokens: int = model.n_tokens
        tokens = model.fim_tokens
        self.fim_tokens = None if tokens is None else FimTokens(*tokens)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text.

        Raises BadRequest when the text is not valid Unicode (a lone surrogate), or has more than 262,144 letters,
        digits, spaces or signs in a row, which llama.cpp's recursion cannot take.
        """
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadRequest(
                f"the text is not valid Unicode: a lone surrogate stands at character {error.start}", "prompt"
            ) from error
        return self._model.tokenize(data, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> bytes:
        """Bytes of the tokens. Raises BadToken."""
        return self._model.detokenize(tokens, special=special)

    def find_breakers(self, texts: Sequence[str]) -> None:
        """Look up which tokens have these texts inside; they are remembered. Raises BadSampler."""
        self._model.find_breakers(texts)

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation. Raises BadToken."""
        return self._model.is_eog(token)


class NativeEngine:
    """A GGUF model with one llama.cpp context."""

    def __init__(self, model: _engine.Model, engine: _engine.Engine, template: NativeChatTemplate | None) -> None:
        self._engine = engine
        self.chat_template = template
        self.vocab = NativeVocabulary(model)
        self.info = ModelInfo(
            architecture=model.architecture,
            description=model.description,
            size_bytes=model.size_bytes,
            n_params=model.n_params,
            n_ctx_train=model.n_ctx_train,
            n_embd=model.n_embd,
            n_vocab=model.n_tokens,
            memory=MemoryKind(model.memory),
            n_ctx=engine.n_ctx,
            n_ctx_seq=engine.n_ctx_seq,
            n_batch=engine.n_batch,
            n_ubatch=engine.n_ubatch,
            n_slots=engine.n_slots,
            metadata=model.metadata,
        )

    @classmethod
    def load(cls, config: EngineConfig, progress: Callable[[float], bool] | None = None) -> NativeEngine:
        """Load a model and create its context.

        ``progress`` gets 0.0 to 1.0 while the weights load; returning False stops, an exception ends the load and is
        raised here. A chat template that cannot be used is left out with a warning. Raises ModelLoad, or ConfigError
        when the context does not fit into memory.
        """
        check_gguf_file(config.model_path)
        model = _engine.Model.load(
            os.fsencode(config.model_path),
            n_gpu_layers=config.n_gpu_layers,
            use_mmap=config.use_mmap,
            use_mlock=config.use_mlock,
            check_tensors=config.check_tensors,
            progress=progress,
        )
        options = _engine.ContextOptions(
            n_ctx=config.n_ctx,
            n_slots=config.n_slots,
            n_batch=config.n_batch,
            n_ubatch=config.n_ubatch,
            n_threads=config.threads,
            n_threads_batch=config.threads_batch,
            flash_attention=_FLASH_ATTENTION[config.flash_attention_mode],
            kv_unified=config.profile is not Profile.PARITY,
            swa_full=config.swa_full,
            gathers_cells=config.gather_cells,
        )
        _check_memory(model, options)
        engine = _engine.Engine(model, options)
        for line in _engine.take_llama_log():
            _logger.warning("llama.cpp: %s", line)
        return cls(model, engine, _usable_template(model))

    @property
    def can_share(self) -> bool:
        """True for one pool of cells without a small sliding window, while an id is left beside the slots."""
        return self._engine.can_share

    @property
    def n_ids(self) -> int:
        """255 where ids can share cells, else ``n_slots``."""
        return self._engine.n_ids

    @property
    def state_layout(self) -> str:
        """llama.cpp's commit, and what of the configuration decides how cells are laid out."""
        return self._engine.state_layout

    def open(self, spec: SequenceSpec) -> None:
        """Start a sequence that goes on from what its id holds. Raises EngineError, BadToken, BadSampler,
        EngineDown."""
        self._engine.open(
            spec.seq_id,
            sampler_spec(spec.sampling, spec.stop_tokens),
            history=spec.history,
            n_top=-1 if spec.n_top is None else spec.n_top,
        )

    def length(self, seq_id: int) -> int:
        """Tokens an id holds. Raises EngineError, EngineDown."""
        return self._engine.length(seq_id)

    def adopt(self, seq_id: int, source: int, n_tokens: int) -> None:
        """Share the cells of another id, by metadata. Raises EngineError, also where a sliding window of the source is
        gone (cells that left it may be reused, with ``swa_full`` too); EngineDown."""
        self._engine.memory_seq_cp(source, seq_id, n_tokens)

    def trim(self, seq_id: int, n_tokens: int) -> bool:
        """Forget what an id holds from there on. Raises EngineError, EngineDown."""
        return self._engine.trim(seq_id, n_tokens)

    def save(self, seq_id: int, start: int, max_bytes: int) -> _engine.SavedState | None:
        """A copy of what an id holds from ``start`` on; None also where a part of its sliding window is gone. Raises
        EngineError, EngineDown."""
        return self._engine.save(seq_id, start, max(0, max_bytes))

    def load_state(self, data: bytes | memoryview, start: int, end: int) -> _engine.SavedState:
        """A state from its bytes, which are not copied and must not change. Raises EngineError."""
        return _engine.SavedState(data, start, end)

    def restore(self, seq_id: int, state: SavedState) -> bool:
        """Put a copy behind what an id holds. Raises EngineError, EngineDown."""
        return self._engine.restore(seq_id, _own_state(state))

    def checkpoint(self, seq_id: int, max_bytes: int) -> _engine.SavedState | None:
        """A recurrent state or the cells of a window, as they are now. Raises EngineError, EngineDown."""
        return self._engine.checkpoint(seq_id, max(0, max_bytes))

    def go_back(self, seq_id: int, checkpoint: SavedState) -> bool:
        """Have an id hold what it held at the checkpoint. Raises EngineError, EngineDown."""
        return self._engine.go_back(seq_id, _own_state(checkpoint))

    @property
    def can_rewind(self) -> bool:
        """False for recurrent and hybrid models."""
        return self._engine.can_rewind

    def submit(self, plan: StepPlan, flag: StepFlag | None = None, *, ahead: bool = False) -> Ticket:
        """Hand a step to the worker. Raises EngineError, BadToken."""
        if flag is not None and not isinstance(flag, CancelFlag):
            raise EngineError(f"the flag of a step is a CancelFlag, not {type(flag).__name__}")
        pieces = [_native_piece(piece) for piece in plan.pieces]
        return Ticket(
            self._engine.submit(plan.decode, pieces, flag, purge=plan.purge, ahead=ahead, masks=dict(plan.masks))
        )

    def collect(self, ticket: Ticket) -> Sequence[RowOutput]:
        """Wait for the step; the GIL is free meanwhile."""
        return self._engine.collect(ticket)

    def step(self, plan: StepPlan, flag: StepFlag | None = None) -> Sequence[RowOutput]:
        """``collect(submit(plan))``."""
        return self.collect(self.submit(plan, flag))

    @property
    def report(self) -> StepReport:
        """Of the step collected last."""
        time, purged, n_splits, ran_ahead = self._engine.report
        return StepReport(StepTime(*time), purged, n_splits, ran_ahead)

    @property
    def ahead_rows(self) -> Sequence[int]:
        """Sequence ids of the decode that runs ahead."""
        return self._engine.ahead_rows

    def unwind(self) -> Sequence[int]:
        """Take back the decode that runs ahead; a running one is stopped on a CPU. The ids that are broken by that, now
        or in a call before."""
        return self._engine.unwind()

    def suspend(self, seq_id: int, max_bytes: int) -> _engine.SuspendedSequence:
        """Close a sequence and keep what it needs to go on. Raises EngineError, EngineDown."""
        return self._engine.suspend(seq_id, max_bytes)

    def resume(self, seq_id: int, suspended: SuspendedSequence) -> bool:
        """Open it again; False where its cells have no room. Raises EngineError, EngineDown."""
        if not isinstance(suspended, _engine.SuspendedSequence):
            raise EngineError(f"a {type(suspended).__name__} was not suspended by this engine")
        return self._engine.resume(seq_id, suspended)

    def new_flag(self) -> CancelFlag:
        """A flag for one step."""
        return CancelFlag()

    def close(self, seq_id: int, *, keep: bool = False) -> bool:
        """End the sequence; whether it was open."""
        return self._engine.close(seq_id, keep=keep)

    @property
    def failure(self) -> str | None:
        """Why the engine computes nothing any more; None while it works."""
        return self._engine.failure

    def used_cells(self) -> int:
        """Cells in use, each counted once; tokens held, for recurrent and hybrid models."""
        return self._engine.used_cells()

    def shutdown(self) -> None:
        """Free the context; the weights go with the last user of the vocabulary or the template."""
        self._engine.shutdown()


def _native_piece(piece: PromptPiece) -> tuple[int, Sequence[int], bool] | tuple[int, Sequence[int], bool, int, int]:
    if piece.n_top is None:
        return (piece.seq_id, piece.tokens, piece.is_last)
    next_token = -1 if piece.next_token is None else piece.next_token
    return (piece.seq_id, piece.tokens, piece.is_last, piece.n_top, next_token)


def _own_state(state: SavedState) -> _engine.SavedState:
    if not isinstance(state, _engine.SavedState):
        raise EngineError(f"a {type(state).__name__} was not saved or loaded by this engine")
    return state


def check_gguf_file(path: Path) -> None:
    """Raise ModelLoad, naming the file, when it is missing, unreadable, a folder or no GGUF."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except FileNotFoundError:
        raise ModelLoad(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ModelLoad(f"{path} is a folder: name the .gguf file in it") from None
    except OSError as error:
        raise ModelLoad(f"{path} cannot be read: {error.strerror}") from error
    if start != _GGUF_MAGIC:
        raise ModelLoad(f"{path} is not a GGUF file: it starts with {start!r}, not {_GGUF_MAGIC!r}")


def read_gguf(path: Path) -> GgufSummary:
    """What a GGUF file says, without reading its weights. Raises ModelLoad, also for a model that cannot be served."""
    check_gguf_file(path)
    metadata, n_tensors = _engine.read_gguf(os.fsencode(path))
    model = _engine.Model.inspect(os.fsencode(path))
    return GgufSummary(
        architecture=model.architecture,
        n_tensors=n_tensors,
        size_bytes=path.stat().st_size,
        n_params=model.n_params,
        n_ctx_train=model.n_ctx_train,
        description=model.description,
        memory=MemoryKind(model.memory),
        chat_template=model.chat_template,
        metadata=metadata,
    )


def _usable_template(model: _engine.Model) -> NativeChatTemplate | None:
    if model.chat_template is None:
        return None
    try:
        return NativeChatTemplate(_engine.ChatTemplate(model))
    except BadTemplate as error:
        _logger.warning("%s; the model is served without chat", error)
        return None


def _check_memory(model: _engine.Model, options: _engine.ContextOptions) -> None:
    available = available_bytes()
    n_ctx = options.rounded_n_ctx
    # Nearly every context is far below the limit and needs no measuring: K and V of 2 bytes, as wide as the model, in
    # every layer, is more than nearly any model takes; the half is for those whose heads are wider.
    estimate = n_ctx * model.n_layers * model.n_embd * 4
    if available is not None and estimate > available // 2:
        check_context_fits(n_ctx, _engine.context_bytes_per_token(model, options), available)
