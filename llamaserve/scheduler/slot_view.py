"""What a slot does, for those who look from outside. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from llamaserve.scheduler.slot import Slot


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot at one moment."""

    seq_id: int
    state: str
    """"idle", "prefilling" or "generating"."""
    request_id: str | None = None
    session: str | None = None
    n_prompt: int = 0
    """Tokens of its request's prompt."""
    n_computed: int = 0
    """Of these, tokens whose cells it holds, reused ones too."""
    n_cached: int = 0
    """Of these, tokens that were not computed for this request."""
    n_generated: int = 0
    owner: str = ""
    """Whose request it is."""

    @classmethod
    def of(cls, slot: Slot) -> SlotView:
        """Any thread; a slot that changes meanwhile is seen before or after."""
        state, work = slot.state, slot.work
        if work is None:
            return cls(slot.seq_id, "idle")
        return cls(
            slot.seq_id,
            state.value,
            work.request.request_id,
            work.request.session,
            work.n_prompt,
            min(work.n_fed, work.n_prompt),
            work.n_cached,
            work.n_generated,
            work.request.owner,
        )
