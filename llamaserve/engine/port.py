"""The engine seam: what the scheduler may ask of a model, and nothing else.

Two engines speak it: ``engine.native`` (llama.cpp) and ``engine.fake`` (scripted, for tests). The scheduler thread
calls; the real engine runs the work on its one native worker. Laws, tested on both engines:

- ``step(p)`` is ``collect(submit(p))``; one ticket is outstanding at most.
- Output rows come back in plan order: the decode rows, then the prompt pieces.
- A bad row fails alone: its output carries an error, the other rows are as if it had not been there.
- One sequence is a batch of one; there is no second path.
- A decode row names a sequence, not a token: the engine holds the last token it drew.
- A bad plan is refused whole and changes nothing. A prompt ends with its last piece: a sequence that has drawn takes no
  other.
- A step whose flag was set before it was submitted is stopped, and its sequences are as they were. A flag that is set
  while it runs stops it where memory ``can_rewind``, else between two calls of the model: a sequence of which a part
  was computed is broken then, and every later row of it fails.
- A step submitted with ``ahead`` changes nothing of what comes out. If every row draws a token that does not end it,
  the engine may compute the decode of the same rows, in ascending order, before it is asked for (``ahead_rows``). The
  next ``submit`` of just that plan finds it done; any other plan or call takes it back first, and so does ``unwind``:
  then cells and samplers are as if it had not been. A sequence whose cells cannot be removed is broken.
- ``suspend`` and ``resume`` change nothing of what comes out either.
- After ``shutdown`` there are errors, never a crash: EngineDown from ``open`` and ``submit``, EngineError for the
  ticket of a step that was outstanding.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NewType, Protocol

from llamaserve.request import SamplingParams

Ticket = NewType("Ticket", int)


class MemoryKind(enum.Enum):
    """What the model keeps of a sequence, decided once at load by the model's nature."""

    KV = "kv"
    SLIDING_WINDOW = "sliding_window"
    RECURRENT = "recurrent"
    HYBRID = "hybrid"


class RowError(enum.Enum):
    """Why a row of a step failed."""

    CONTEXT_FULL = "context_full"
    """No KV cell left for it, even alone; the sequence is as before the step, which can be tried again."""
    DECODE = "decode"
    """llama.cpp failed on it; the sequence is cleared and must be closed."""
    ABORTED = "aborted"
    """The step's flag stopped it; the sequence is as before the step, or broken where memory cannot go back."""


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """What ``open`` needs to know about a sequence."""

    seq_id: int
    """0 to n_slots - 1, not open."""
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """Consecutive prompt tokens of one sequence, following those already computed."""

    seq_id: int
    tokens: Sequence[int]
    """At least one token id."""
    is_last: bool
    """Whether the prompt ends here: then the row draws the first token."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One native call: decode rows first, then prompt pieces; at most ``n_batch`` tokens."""

    decode: Sequence[int] = ()
    """Sequence ids that decode the token they drew last."""
    pieces: Sequence[PromptPiece] = ()
    purge: Sequence[int] = ()
    """Ids that are not open but hold cells: forgotten in this order, one at a time, when no cell is free."""


class RowOutput(Protocol):
    """What a step did for one row. Implemented by the native module and by the fake."""

    @property
    def seq_id(self) -> int: ...
    @property
    def token(self) -> int | None:
        """The token drawn; None for a piece that is not the last, and on error."""

    @property
    def is_eog(self) -> bool:
        """Whether that token ends the generation."""

    @property
    def piece(self) -> bytes:
        """The bytes the token stands for; maybe a part of a character, empty for a control token."""

    @property
    def error(self) -> RowError | None: ...
    @property
    def message(self) -> str:
        """What went wrong, for the error."""


class StepTime(NamedTuple):
    """Seconds the parts of a step took inside the engine."""

    build: float = 0.0
    """Laying out rows and filling the batch."""
    decode: float = 0.0
    """The model's computation."""
    sample: float = 0.0
    """Drawing tokens and turning them into bytes."""


class StepReport(NamedTuple):
    """About a step as a whole."""

    time: StepTime = StepTime()
    purged: tuple[int, ...] = ()
    """Of the plan's purge list, the ids that were forgotten."""
    n_splits: int = 0
    """Times a batch was halved because it did not fit."""
    ran_ahead: bool = False
    """Whether it was computed before it was submitted."""


class SuspendedSequence(Protocol):
    """A sequence that gave its place up, and what it needs to go on; can be resumed once."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the copy of its cells; 0 = there is none, its tokens must be computed again."""


class StepFlag(Protocol):
    """Stops a running step from another thread; the native one is ``CancelFlag``."""

    def set(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the model file says, and the sizes the context really has."""

    architecture: str
    description: str
    """llama.cpp's one-line description: family, size, quantisation."""
    size_bytes: int
    n_params: int
    n_ctx_train: int
    n_embd: int
    n_vocab: int
    memory: MemoryKind
    n_ctx: int
    """KV cells of the context, over all sequences."""
    n_ctx_seq: int
    """Most tokens one sequence may hold."""
    n_batch: int
    """Most tokens in a step; at least ``n_slots``, so that all sequences decode in one."""
    n_ubatch: int
    n_slots: int
    metadata: dict[str, str] = field(default_factory=dict)
    """Scalar key-value pairs of the GGUF."""


class Vocabulary(Protocol):
    """Text to tokens and back. Any thread; the native one releases the GIL."""

    @property
    def n_tokens(self) -> int: ...
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text; ``parse_special`` reads control tokens such as ``<|im_end|>`` written in it."""

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> bytes:
        """Bytes of the tokens; ``special`` writes control tokens out. Raises BadToken."""

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation. Raises BadToken."""


class Engine(Protocol):
    """A loaded model with its context. Scheduler thread only, but for ``vocab`` and a step's flag."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def vocab(self) -> Vocabulary: ...

    def open(self, spec: SequenceSpec) -> None:
        """Start an empty sequence with a sampler of its own. Raises EngineError if the id is open or out of range,
        BadToken if a logit bias names a token outside the vocabulary, EngineDown."""

    @property
    def can_rewind(self) -> bool:
        """Whether memory can take the last step of a sequence back; without that no step runs ahead."""

    def submit(self, plan: StepPlan, flag: StepFlag | None = None, *, ahead: bool = False) -> Ticket:
        """Hand a step to the worker and return at once; ``ahead`` allows the next one of the same rows to begin early.

        Raises EngineError, and submits nothing, when a ticket is outstanding, the plan is empty, holds more than
        ``n_batch`` tokens, names a sequence twice or one that is not open, a piece is empty or its sequence has drawn
        a token, a decode row has drawn none yet, or the purge list names an open sequence; BadToken when a piece has a
        token outside the vocabulary; EngineDown when there is no context any more.
        """

    def collect(self, ticket: Ticket) -> Sequence[RowOutput]:
        """Wait for the step; one output for each row, in plan order. Raises EngineError for a ticket that is not
        outstanding."""

    def step(self, plan: StepPlan, flag: StepFlag | None = None) -> Sequence[RowOutput]:
        """``collect(submit(plan))``."""

    @property
    def report(self) -> StepReport:
        """Of the step collected last; zeros before the first."""

    @property
    def ahead_rows(self) -> Sequence[int]:
        """Sequence ids of the decode that runs ahead, ascending; empty when none does."""

    def unwind(self) -> Sequence[int]:
        """Take back the decode that runs ahead, if any; the ids of sequences that are broken now."""

    def suspend(self, seq_id: int, max_bytes: int) -> SuspendedSequence:
        """Close a sequence that has drawn a token and keep what it needs to go on, with a copy of its cells if that
        takes at most ``max_bytes``. Raises EngineError if it is not open, has drawn none or is broken; EngineDown."""

    def resume(self, seq_id: int, suspended: SuspendedSequence) -> bool:
        """Open it again under an id that is not open.

        False, and nothing changed, when its cells have no room. One without a copy of its cells then takes the tokens
        it had as prompt pieces, none of them the last, and draws nothing before it decodes. Raises EngineError,
        EngineDown.
        """

    def new_flag(self) -> StepFlag:
        """A flag for one step."""

    def close(self, seq_id: int) -> bool:
        """Forget the sequence and free its cells; whether it was open. Never fails."""

    @property
    def failure(self) -> str | None:
        """Why the engine computes nothing any more (its context was lost, it was shut down); None while it works."""

    def used_cells(self) -> int:
        """KV cells held by open sequences (tokens computed, for memories without cells), as of the step collected
        last: one that runs ahead is not counted."""

    def shutdown(self) -> None:
        """Free the model; the engine is unusable afterwards. Never fails, may be called twice."""
