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
- A row draws a token its mask allows, as if the others did not exist; without a mask it draws as ever.
- A step submitted with ``ahead`` changes nothing of what comes out. If every row draws a token that does not end it,
  the engine may compute the decode of the same rows, in ascending order, before it is asked for (``ahead_rows``). The
  next ``submit`` of just that plan finds it done; any other plan or call takes it back first, and so does ``unwind``:
  then cells and samplers are as if it had not been. A sequence whose cells cannot be removed is broken.
- ``suspend`` and ``resume`` change nothing of what comes out either.
- Scores change nothing of what comes out, and are the same in whatever pieces a prompt is computed.
- ``adopt``, ``trim``, ``save`` and ``restore`` move cells between ids; tokens drawn after an adopted prefix are those
  drawn after a computed one, as far as the model's kernels allow.
- After ``shutdown`` there are errors, never a crash: EngineDown from ``open`` and ``submit``, EngineError for the
  ticket of a step that was outstanding.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NewType, Protocol

from llamaserve.sampling import SamplingParams

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
    NO_TOKEN = "no_token"
    """Its mask and its sampling parameters together leave no token to draw; the sequence is cleared and must be
    closed."""
    ABORTED = "aborted"
    """The step's flag stopped it; the sequence is as before the step, or broken where memory cannot go back."""


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """What ``open`` needs to know about a sequence."""

    seq_id: int
    """0 to n_slots - 1, not open."""
    sampling: SamplingParams
    history: Sequence[int] = ()
    """Tokens the samplers look back on before the first is drawn: the end of the prompt, or nothing if none does."""
    stop_tokens: Sequence[int] = ()
    """Tokens that end its text as the model's own do."""
    n_top: int | None = None
    """How many of the likeliest tokens come with the score of each token drawn; None = no scores."""


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """Consecutive prompt tokens of one sequence, following those already computed."""

    seq_id: int
    tokens: Sequence[int]
    """At least one token id."""
    is_last: bool
    """Whether the prompt ends here: then the row draws the first token."""
    n_top: int | None = None
    """How many of the likeliest tokens come with the score of each token that follows one of these; None = none."""
    next_token: int | None = None
    """The token that follows the last of these, for its score; not with ``is_last``, where it is drawn."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One native call: decode rows first, then prompt pieces; at most ``n_batch`` tokens."""

    decode: Sequence[int] = ()
    """Sequence ids that decode the token they drew last."""
    pieces: Sequence[PromptPiece] = ()
    purge: Sequence[int] = ()
    """Ids that are not open but hold cells: forgotten in this order, one at a time, when no cell is free."""
    masks: Mapping[int, bytes] = field(default_factory=dict)
    """Of rows that draw, which tokens they may draw in this step, as ``TokenConstraint.mask`` has it; others may draw
    any. A step that ran ahead is drawn under the masks of the plan that asks for it."""


LikelyToken = tuple[int, bytes, float]
"""A token, its bytes with control tokens written out, and the natural logarithm of its probability."""
Score = tuple[int, bytes, float | None, tuple[LikelyToken, ...]]
"""The same of a token, and of the likeliest beside it in falling order, of equal ones the lowest id first. By the model
alone: the softmax over the whole vocabulary before any bias or sampler. Never below -9999; None for the first token of
a text, which nothing comes before."""


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
    def scores(self) -> Sequence[Score]:
        """Where scores are asked for: of the tokens that follow those of a piece, before them of the first of the text
        if the piece begins with it, and then of the token drawn."""

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
    gather: float = 0.0
    """Putting cells of running sequences side by side, before the step; 0 in most steps."""

    @property
    def of_rows(self) -> float:
        """What the step's rows took."""
        return self.build + self.decode + self.sample


class StepReport(NamedTuple):
    """About a step as a whole."""

    time: StepTime = StepTime()
    purged: tuple[int, ...] = ()
    """Of the plan's purge list, the ids that were forgotten."""
    n_splits: int = 0
    """Times a batch was halved because it did not fit."""
    ran_ahead: bool = False
    """Whether it was computed before it was submitted."""


class SavedState(Protocol):
    """A copy of cells, or of a recurrent state, outside the context."""

    @property
    def n_bytes(self) -> int: ...
    @property
    def start(self) -> int:
        """First position it has; the tokens before are not in it."""

    @property
    def end(self) -> int:
        """One behind its last position."""

    def view(self) -> memoryview:
        """Its bytes, not copied."""


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


class FimTokens(NamedTuple):
    """The tokens of a model that was trained to fill in the middle: what comes before a gap, what comes after it, and
    the place where the text of the gap begins."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    """What comes before a repository's name, for a model that was trained on several files at once."""
    file: int | None = None
    """What comes before a file's name."""


class Vocabulary(Protocol):
    """Text to tokens and back. Any thread; the native one releases the GIL."""

    @property
    def n_tokens(self) -> int: ...
    @property
    def fim_tokens(self) -> FimTokens | None:
        """None for a model that has not all of them."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text; ``parse_special`` reads control tokens such as ``<|im_end|>`` written in it."""

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> bytes:
        """Bytes of the tokens; ``special`` writes control tokens out. Raises BadToken."""

    def find_breakers(self, texts: Sequence[str]) -> None:
        """Look up which tokens have these texts inside, as ``dry_sequence_breakers``: milliseconds that ``open`` then
        does not take. Raises BadSampler where too many have."""

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation. Raises BadToken."""


class Engine(Protocol):
    """A loaded model with its context. Scheduler thread only, but for ``vocab`` and a step's flag."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def vocab(self) -> Vocabulary: ...

    @property
    def can_share(self) -> bool:
        """Whether any part of a sequence can be held by others too, by metadata alone, and trimmed anywhere; then ids
        from ``n_slots`` to ``n_ids - 1`` can hold what no slot has."""

    @property
    def n_ids(self) -> int:
        """Sequence ids the memory keeps books for; ``n_slots`` unless it ``can_share``."""

    @property
    def state_layout(self) -> str:
        """What a ``SavedState`` depends on beside the model: two engines with the same model and layout can exchange
        theirs."""

    def open(self, spec: SequenceSpec) -> None:
        """Start a sequence with a sampler of its own; it goes on from what the memory holds under its id. Raises
        EngineError if the id is open or out of range, BadToken if the sampling parameters, the stop tokens or the
        history name a token outside the vocabulary, BadSampler if they leave none to draw, EngineDown."""

    def length(self, seq_id: int) -> int:
        """Tokens the memory holds under an id, open or not. Raises EngineError for an id out of range, EngineDown."""

    def adopt(self, seq_id: int, source: int, n_tokens: int) -> None:
        """Have ``seq_id``, which holds fewer, hold the first ``n_tokens`` of ``source``: those it has and then the
        source's cells, now held by both. Metadata only. An open ``seq_id`` must be in the middle of its prompt, or
        of the tokens that it had when it was suspended.

        Raises EngineError, and changes nothing, when memory cannot share, an id is out of range, both are the same, the
        source holds fewer tokens, ``seq_id`` holds as many, has drawn one or is broken; EngineDown.
        """

    def trim(self, seq_id: int, n_tokens: int) -> bool:
        """Have an id that is not open hold its first ``n_tokens`` only, 0 = nothing. False, and nothing changed, where
        memory cannot forget just the rest (a recurrent state, a sliding window that is gone). Raises EngineError for an
        open id, one out of range or one that holds fewer, EngineDown."""

    def save(self, seq_id: int, start: int, max_bytes: int) -> SavedState | None:
        """A copy of what memory holds of an id from position ``start`` on; the sequence goes on as before. None when it
        takes more than ``max_bytes``, asked before anything is copied (S36), or there is no memory for it. ``start``
        above 0 needs ``can_share``. Raises EngineError for an id out of range or that holds no token from there on;
        EngineDown."""

    def load_state(self, data: bytes | memoryview, start: int, end: int) -> SavedState:
        """A state from the bytes of one that an engine with the same model and ``state_layout`` saved. The bytes are
        trusted: check them before."""

    def restore(self, seq_id: int, state: SavedState) -> bool:
        """Put a copy under an id that is not open and holds exactly ``state.start`` tokens. False where it has no room
        or does not fit this context; the id holds ``state.start`` tokens then. Raises EngineError for an id that is
        open, out of range or holds another number of tokens, EngineDown."""

    def checkpoint(self, seq_id: int, max_bytes: int) -> SavedState | None:
        """A copy of what ``trim`` cannot bring back of a sequence, open or not, at its present length: a recurrent
        state, the cells of a sliding window. None when it takes more than ``max_bytes``, or for memory that can be
        trimmed anywhere. Raises EngineError for an id out of range or that holds nothing, EngineDown."""

    def go_back(self, seq_id: int, checkpoint: SavedState) -> bool:
        """Have an id that is not open hold its first ``checkpoint.end`` tokens, which it held when that was made and
        has kept since. False where that fails; it holds nothing then. Raises EngineError for an id that is open, out of
        range or holds fewer, EngineDown."""

    @property
    def can_rewind(self) -> bool:
        """Whether memory can take the last step of a sequence back; without that no step runs ahead."""

    def submit(self, plan: StepPlan, flag: StepFlag | None = None, *, ahead: bool = False) -> Ticket:
        """Hand a step to the worker and return at once; ``ahead`` allows the next one of the same rows to begin early.

        Raises EngineError, and submits nothing, when a ticket is outstanding, the plan is empty, holds more than
        ``n_batch`` tokens, names a sequence twice or one that is not open, a piece is empty or its sequence has drawn
        a token, a last piece has a next token, a decode row has drawn none yet, the purge list names an open sequence,
        or a mask has the wrong size, no bit or no row that draws; BadToken when a piece has a token outside the
        vocabulary; EngineDown when there is no context any more.
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
        """Take back the decode that runs ahead, if any; the ids of open sequences that could not go back, then or in a
        call that took it back itself. They are broken, and told once."""

    def suspend(self, seq_id: int, max_bytes: int) -> SuspendedSequence:
        """Close a sequence that has drawn a token and keep what it needs to go on, with a copy of its cells if that
        takes at most ``max_bytes``. Raises EngineError if it is not open, has drawn none or is broken; EngineDown."""

    def resume(self, seq_id: int, suspended: SuspendedSequence) -> bool:
        """Open it again under an id that is not open and holds nothing.

        False, and nothing changed, when its cells have no room. One without a copy of its cells goes on from what the
        memory holds under its id, which may be the first of the tokens it had; it takes the others as prompt pieces,
        none of them the last, and draws nothing before it decodes. Raises EngineError, EngineDown.
        """

    def new_flag(self) -> StepFlag:
        """A flag for one step."""

    def close(self, seq_id: int, *, keep: bool = False) -> bool:
        """End the sequence; whether it was open. Its cells are freed, but for those another id holds too; with ``keep``
        they stay under its id, unless it is broken. Never fails."""

    @property
    def failure(self) -> str | None:
        """Why the engine computes nothing any more (its context was lost, it was shut down); None while it works."""

    def used_cells(self) -> int:
        """KV cells in use, each counted once however many ids hold it (tokens held, for memories without cells); a
        step that runs ahead is not counted."""

    def shutdown(self) -> None:
        """Free the model; the engine is unusable afterwards. Never fails, may be called twice."""
