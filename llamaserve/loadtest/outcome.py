"""What became of one request. Pure data; all times are seconds of ``time.perf_counter()``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from llamaserve.loadtest.call import Call

Kind = Literal["unreachable", "status", "closed", "malformed", "stalled", "length", "error_event"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MAX_DETAIL = 200


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed."""

    kind: Kind
    detail: str
    """One line, at most 200 characters."""

    @classmethod
    def because(cls, kind: Kind, detail: str) -> Failure:
        """A failure whose detail is put on one line and shortened; what a server sent must not steer a terminal."""
        printable = "".join(letter if letter.isprintable() or letter.isspace() else "\ufffd" for letter in detail)
        line = " ".join(printable.split())
        return cls(kind, line if len(line) <= MAX_DETAIL else line[: MAX_DETAIL - 1] + "…")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request from its submission to its end."""

    call: Call
    submitted: float
    """When the request was due: its time in an open loop, when a worker took it in a closed one."""
    sent: float
    """When the client began to send it; ``sent - submitted`` is the generator's own lag, the server's queue is not in
    it."""
    token_times: tuple[float, ...]
    """Arrival of every event that carried text; events that came in one piece share a time."""
    finished: float
    """When the last byte came, or the failure was noticed, or the connection was dropped."""
    text: str
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    """These three are the server's usage figures; None if it gave none."""
    failure: Failure | None

    @property
    def is_abandoned(self) -> bool:
        """Whether the client dropped the connection on purpose."""
        stop_after = self.call.stop_after
        return self.failure is None and stop_after is not None and len(self.token_times) >= stop_after

    @property
    def ttft(self) -> float | None:
        """Submission to first text; None without text."""
        return self.token_times[0] - self.submitted if self.token_times else None

    @property
    def itl(self) -> tuple[float, ...]:
        """Gaps between successive events with text."""
        return tuple(later - earlier for earlier, later in pairwise(self.token_times))

    @property
    def tpot(self) -> float | None:
        """First to last text over the tokens after the first; None for one token, and without a token count."""
        if not self.token_times or self.completion_tokens is None or self.completion_tokens < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.completion_tokens - 1)

    @property
    def e2e(self) -> float | None:
        """Submission to last text; None without text."""
        return self.token_times[-1] - self.submitted if self.token_times else None

    @property
    def queue(self) -> float:
        """The generator's own lag: due time to send."""
        return self.sent - self.submitted
