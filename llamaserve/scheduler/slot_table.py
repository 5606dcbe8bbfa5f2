"""Which slot has which request. Scheduler thread only, but for ``all``; knows no engine.

What a step is made of, the slots that generate and those at their prompts, is kept between two changes: in steady
decoding nothing changes for many ticks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llamaserve.scheduler.slot import IdleSlots, Slot, SlotState, Work


class SlotTable:
    """All slots, by what they do and by request."""

    def __init__(self, n_slots: int) -> None:
        self.all: Sequence[Slot] = [Slot(seq_id) for seq_id in range(n_slots)]
        """By sequence id. Any thread may look."""
        self.idle = IdleSlots(self.all)
        self._busy: dict[str, Slot] = {}
        self._generating: Sequence[Slot] | None = None
        self._prefilling: Sequence[Slot] | None = None

    def __len__(self) -> int:
        """Slots that have a request."""
        return len(self._busy)

    def __iter__(self) -> Iterator[Slot]:
        """Slots that have a request, in the order they took it."""
        return iter(self._busy.values())

    def __contains__(self, request_id: str) -> bool:
        """Whether a request has a slot."""
        return request_id in self._busy

    def __getitem__(self, seq_id: int) -> Slot:
        """The slot of a sequence."""
        return self.all[seq_id]

    def of(self, request_id: str) -> Slot | None:
        """The slot of a request; None if it has none."""
        return self._busy.get(request_id)

    @property
    def generating(self) -> Sequence[Slot]:
        """Slots that decode, by sequence id."""
        if self._generating is None:
            self._generating = [slot for slot in self.all if slot.state is SlotState.GENERATING]
        return self._generating

    @property
    def prefilling(self) -> Sequence[Slot]:
        """Slots at their prompts, by sequence id."""
        if self._prefilling is None:
            self._prefilling = [slot for slot in self.all if slot.state is SlotState.PREFILLING]
        return self._prefilling

    def begin(self, slot: Slot, work: Work) -> None:
        """An idle slot takes a request that has tokens to feed."""
        slot.begin(work)
        self._occupy(slot, work)

    def go_on(self, slot: Slot, work: Work) -> None:
        """An idle slot takes back a request whose cells were restored."""
        slot.go_on(work)
        self._occupy(slot, work)

    def generate(self, slot: Slot) -> None:
        """Its prompt is computed."""
        slot.generate()
        self._generating = self._prefilling = None

    def vacate(self, slot: Slot, tick: int) -> Work:
        """Take the request out of a slot that was used last in this tick."""
        work = slot.release()
        slot.last_used_tick = tick
        self.idle.add(slot)
        del self._busy[work.request.request_id]
        self._generating = self._prefilling = None
        return work

    def _occupy(self, slot: Slot, work: Work) -> None:
        self._busy[work.request.request_id] = slot
        self.idle.take(slot)
        self._generating = self._prefilling = None
