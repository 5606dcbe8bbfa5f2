"""How a fake engine is told to fail. One thread at a time, as the engine."""

from __future__ import annotations

from collections import Counter, deque

from llamaserve.engine.port import RowError
from llamaserve.errors import EngineError


class FakeFaults:
    """What an engine that inherits from it is to fail at, and when: scripted by tests, taken by the engine."""

    def __init__(self) -> None:
        self._row_failures: dict[int, deque[RowError]] = {}
        self._step_failures: deque[Exception] = deque()
        self._n_failing_rewinds = 0
        self._n_failing_calls: Counter[str] = Counter()
        self._why_next_is_lost: str | None = None

    def fail_row(self, seq_id: int, error: RowError) -> None:
        """The next row of this sequence id fails; called twice, the next two."""
        self._row_failures.setdefault(seq_id, deque()).append(error)

    def fail_step(self, error: Exception, *, times: int = 1) -> None:
        """The next ``times`` calls of ``submit`` raise this."""
        self._step_failures.extend([error] * times)

    def fail_rewinds(self, count: int) -> None:
        """So many sequences, of the next steps that are taken back, cannot be."""
        self._n_failing_rewinds = count

    def fail_saves(self, count: int) -> None:
        """The next ``count`` calls of ``save`` and ``checkpoint`` raise EngineError and change nothing."""
        self._n_failing_calls["save"] = count

    def fail_restores(self, count: int) -> None:
        """The next ``count`` calls of ``restore`` and ``go_back`` raise EngineError and change nothing."""
        self._n_failing_calls["restore"] = count

    def fail_adopts(self, count: int) -> None:
        """The next ``count`` calls of ``adopt`` raise EngineError and change nothing."""
        self._n_failing_calls["adopt"] = count

    def lose_context(self, message: str) -> None:
        """llama.cpp throws in the next step: its rows fail, and later ``open`` and ``submit`` raise EngineDown."""
        self._why_next_is_lost = message

    def _check_step_failure(self) -> None:
        if self._step_failures:
            raise self._step_failures.popleft()

    def _next_row_failure(self, seq_id: int) -> RowError | None:
        failures = self._row_failures.get(seq_id)
        return failures.popleft() if failures else None

    def _take_failing_rewinds(self, seq_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Of the sequences that are taken back, those that cannot be."""
        failing = seq_ids[: self._n_failing_rewinds]
        self._n_failing_rewinds -= len(failing)
        return failing

    def _check_scripted(self, what: str) -> None:
        if self._n_failing_calls[what] > 0:
            self._n_failing_calls[what] -= 1
            raise EngineError(f"scripted failure of {what}")
