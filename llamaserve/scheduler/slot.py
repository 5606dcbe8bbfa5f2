"""A slot: one sequence of the engine, and the request that has it. Scheduler thread only; knows no engine."""

from __future__ import annotations

import enum
import heapq
from array import array
from collections.abc import Sequence
from dataclasses import replace

from llamaserve.cache.prompt import TOKEN_TYPE, Prompt
from llamaserve.constraint import TokenConstraint
from llamaserve.engine.port import PromptPiece, Score
from llamaserve.request import GenerationRequest
from llamaserve.text.line_limits import LineLimits
from llamaserve.text.token_text import TokenText


class SlotState(enum.Enum):
    """What the request of a slot is doing."""

    IDLE = "idle"
    PREFILLING = "prefilling"
    """Its prompt is being computed."""
    GENERATING = "generating"
    """It has drawn a token and will decode it next."""


LEGAL_MOVES: dict[SlotState, frozenset[SlotState]] = {
    SlotState.IDLE: frozenset({SlotState.PREFILLING, SlotState.GENERATING}),
    SlotState.PREFILLING: frozenset({SlotState.GENERATING, SlotState.IDLE}),
    SlotState.GENERATING: frozenset({SlotState.IDLE}),
}


class Work:
    """What a slot keeps of the request it has: how far prompt and text are, and when that was (clock seconds)."""

    __slots__ = (
        "admitted_at",
        "admitted_order",
        "constraint",
        "first_token_at",
        "generated",
        "is_recomputing",
        "last_token_at",
        "lines",
        "n_cached",
        "n_decoded",
        "n_fed",
        "n_most",
        "n_prompt",
        "n_reached",
        "n_shown",
        "n_to_feed",
        "n_waited",
        "piece_ends",
        "prompt",
        "prompt_scores",
        "request",
        "submitted_at",
        "text",
    )

    def __init__(
        self,
        request: GenerationRequest,
        prompt: Prompt,
        *,
        submitted_at: float,
        admitted_at: float,
        admitted_order: int,
        n_ctx_seq: int,
    ) -> None:
        self.request = request
        self.prompt = prompt
        self.n_prompt = len(request.prompt)
        n_room = n_ctx_seq - self.n_prompt
        self.n_most = n_room if request.max_tokens is None else min(n_room, request.max_tokens)
        """Tokens it draws at most; the last of them ends it whatever it is."""
        self.generated: list[int] = []
        self.text = TokenText(request.stop)
        has_line_limits = request.min_indent > 0 or request.max_decode_s is not None
        self.lines = LineLimits(request.min_indent, request.max_decode_s) if has_line_limits else None
        """What ends its text at a line, if anything may."""
        self.constraint: TokenConstraint | None = None
        """What restricts its answer; begun as it gets a slot."""
        self.prompt_scores: list[Score] = []
        """Of the tokens of the prompt, as far as it is computed, for a request that asked."""
        self.submitted_at = submitted_at
        self.admitted_at = admitted_at
        self.admitted_order = admitted_order
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.n_fed = 0
        """Tokens it holds before the first decode row: of the prompt, or of a text that is computed again."""
        self.n_to_feed = self.n_prompt
        self.n_waited = 0
        """Turns of others since it last had one, while it has tokens to feed."""
        self.piece_ends: Sequence[int] = ()
        """Positions of the prompt where a piece shall end, ascending."""
        self.n_cached = 0
        """Of the prompt, tokens that were not computed for it."""
        self.n_decoded = 0
        """Drawn tokens that were decoded after what was fed."""
        self.n_shown = 0
        """Drawn tokens that the prefix memory knows of."""
        self.n_reached = 0
        """Tokens of the prompt it had computed or reused before it gave its place up."""
        self.is_recomputing = False
        """Whether what is fed was computed before: then no token is drawn at its end."""

    @property
    def n_generated(self) -> int:
        """Tokens drawn, without an end-of-generation token."""
        return len(self.generated)

    @property
    def n_computed(self) -> int:
        """Tokens of the prompt that were computed for it."""
        n_held = self.n_prompt if self.generated else min(self.n_fed, self.n_prompt)
        return max(0, n_held - self.n_cached)

    @property
    def is_begun(self) -> bool:
        """Whether some of what it has to feed was computed."""
        return self.n_fed > (0 if self.is_recomputing else self.n_cached)

    @property
    def n_left_to_feed(self) -> int:
        """Tokens not computed yet before the first decode row."""
        return self.n_to_feed - self.n_fed

    @property
    def n_cells(self) -> int:
        """Cells it needs to go on from where it is: the token drawn last is not fed before the next decode."""
        return self.n_prompt + max(0, self.n_generated - 1)

    @property
    def n_held(self) -> int:
        """Tokens whose cells its sequence holds."""
        return self.n_fed + self.n_decoded

    def tokens_held(self) -> array[int]:
        """Those tokens."""
        if self.n_held <= self.n_prompt:
            return self.prompt.tokens[: self.n_held]
        return self.prompt.tokens + array(TOKEN_TYPE, self.generated[: self.n_held - self.n_prompt])

    def tokens_to_show(self) -> Sequence[int]:
        """Drawn and decoded tokens the prefix memory has not been told of; they count as told afterwards."""
        n_known, self.n_shown = self.n_shown, max(0, self.n_held - self.n_prompt)
        return self.generated[n_known : self.n_shown]

    def reuse(self, n_held: int) -> None:
        """Its sequence holds the first ``n_held`` tokens of the prompt, and some of them were not computed for it."""
        self.n_cached += max(0, n_held - max(self.n_fed, self.n_reached))
        self.n_fed = n_held

    def begin_again(self) -> None:
        """Its place was given up in the middle of the prompt."""
        self.n_reached = max(self.n_reached, self.n_fed)
        self.n_fed = 0
        self.prompt_scores.clear()

    def piece(self, seq_id: int, n_tokens: int) -> PromptPiece:
        """The next tokens to feed, as a step has them."""
        start, end = self.n_fed, self.n_fed + n_tokens
        is_last = end == self.n_to_feed and not self.is_recomputing and self.request.max_tokens != 0
        piece = PromptPiece(seq_id, self.tokens_to_feed(start, end), is_last)
        if self.request.prompt_logprobs is None or self.is_recomputing:
            return piece
        next_token = self.request.prompt[end] if end < self.n_prompt else None
        return replace(piece, n_top=self.request.prompt_logprobs, next_token=next_token)

    def take_prompt_scores(self, scores: Sequence[Score]) -> None:
        """Keep what came with a piece; the token drawn at the prompt's end is not the prompt's."""
        self.prompt_scores.extend(scores[: self.n_prompt - len(self.prompt_scores)])

    def tokens_to_feed(self, start: int, end: int) -> Sequence[int]:
        """A range of what is computed before the first decode row."""
        if self.is_recomputing and end > self.n_prompt:
            return (*self.request.prompt, *self.generated)[start:end]
        return self.request.prompt[start:end]

    def feed_again(self) -> None:
        """Its cells are lost, and it has drawn: prompt and drawn tokens are computed again, the last one excepted."""
        self.n_fed = self.n_decoded = self.n_shown = 0
        self.n_to_feed = self.n_cells
        self.is_recomputing = True


class Slot:
    """One sequence id. ``work`` is there exactly while the slot is not idle."""

    __slots__ = ("last_session", "last_used_tick", "seq_id", "state", "work")

    def __init__(self, seq_id: int) -> None:
        self.seq_id = seq_id
        self.state = SlotState.IDLE
        self.work: Work | None = None
        self.last_used_tick = 0
        self.last_session: str | None = None
        """Of the request that had it last."""

    def begin(self, work: Work) -> None:
        """Take a request: idle to prefilling."""
        self._move(SlotState.PREFILLING)
        work.n_waited = 0
        self.work = work

    def go_on(self, work: Work) -> None:
        """Take back a request whose cells were restored: idle to generating."""
        self._move(SlotState.GENERATING)
        self.work = work

    def generate(self) -> None:
        """The prompt is computed: prefilling to generating."""
        self._move(SlotState.GENERATING)

    def release(self) -> Work:
        """Give the request back and be idle."""
        self._move(SlotState.IDLE)
        work = self.working
        self.last_session = work.request.session
        self.work = None
        return work

    @property
    def working(self) -> Work:
        """The request's work. Raises RuntimeError on an idle slot."""
        if self.work is None:
            raise RuntimeError(f"slot {self.seq_id} is idle: it has no work")
        return self.work

    def _move(self, to: SlotState) -> None:
        if to not in LEGAL_MOVES[self.state]:
            raise RuntimeError(f"slot {self.seq_id} cannot go from {self.state.value} to {to.value}")
        self.state = to


class IdleSlots:
    """The idle slots, that used longest ago first (S29), the lowest id among equals."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._heap = [(slot.last_used_tick, slot.seq_id, slot) for slot in slots]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def ids(self) -> list[int]:
        """Their sequence ids, that used longest ago first."""
        return [seq_id for _, seq_id, _ in sorted(self._heap, key=lambda entry: entry[:2])]

    def sessions(self) -> set[str]:
        """The sessions they had last."""
        return {slot.last_session for _, _, slot in self._heap if slot.last_session is not None}

    def take(self, slot: Slot) -> None:
        """It has a request now. Raises ValueError when it was not idle."""
        if self._heap and self._heap[0][2] is slot:
            heapq.heappop(self._heap)
            return
        self._heap.remove((slot.last_used_tick, slot.seq_id, slot))
        heapq.heapify(self._heap)

    def add(self, slot: Slot) -> None:
        """It is idle again."""
        heapq.heappush(self._heap, (slot.last_used_tick, slot.seq_id, slot))
