"""Drives the order of prompts by hand: slots whose prompts are computed step by step, as the scheduler would."""

from __future__ import annotations

from dataclasses import dataclass, field

from llamaserve.scheduler.prefill_order import PromptState, waits_after
from llamaserve.scheduler.prefill_plan import PieceSize
from llamaserve.scheduler.prompt_pieces import PrefillLimits, choose_pieces
from llamaserve.scheduler.tick_policy import StepKind


@dataclass
class PromptLine:
    """Prompts in line; finished ones become streams, for as long as ``keeps_streams`` says they do."""

    limits: PrefillLimits = field(default_factory=lambda: PrefillLimits(n_batch=2048))
    kind: StepKind = StepKind.MIXED
    keeps_streams: bool = True
    n_decoding: int = 0
    left: dict[int, int] = field(default_factory=dict)
    waited: dict[int, int] = field(default_factory=dict)
    n_tokens: int = 0
    """Prompt tokens computed by all steps."""
    done_at: dict[int, int] = field(default_factory=dict)
    """Of each finished prompt, ``n_tokens`` at its end."""

    def add(self, seq_id: int, n_tokens: int) -> None:
        self.left[seq_id] = n_tokens
        self.waited[seq_id] = 0

    def states(self) -> list[PromptState]:
        order = {seq_id: place for place, seq_id in enumerate(self.left)}
        return [PromptState(key, left, self.waited[key], order[key], left) for key, left in self.left.items()]

    def step(self, budget: int = 512) -> list[PieceSize]:
        """Compute one step's pieces."""
        states = self.states()
        pieces = choose_pieces(states, self.limits, kind=self.kind, n_decoding=self.n_decoding, budget=budget)
        self.waited = waits_after(states, pieces)
        self.n_tokens += sum(piece.n_tokens for piece in pieces)
        for seq_id, n_tokens in pieces:
            self.left[seq_id] -= n_tokens
            if self.left[seq_id] == 0:
                del self.left[seq_id], self.waited[seq_id]
                self.done_at[seq_id] = self.n_tokens
                self.n_decoding += self.keeps_streams
        return pieces
