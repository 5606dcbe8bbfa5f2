"""Who is next, by what each has had: weighted fair queueing over accounts. Belongs to one thread.

Start-time fair queueing (Goyal, Vin, Cheng 1996) with costs known only afterwards. An account has spent so many tokens
per unit of weight, those of its running requests by an estimate; of the accounts that wait the one that has spent least
is next. Whoever begins to wait has spent at least as much, without estimates, as the least of those that wait: so
nobody saves up credit while away, and no estimate that turns out too high brings others before a newcomer again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from llamaserve.scheduler.ranking import Ranking

KeyT = TypeVar("KeyT", bound=Hashable)


class _Account:
    """Tokens are per unit of weight."""

    __slots__ = ("n_admitted", "n_waiting", "pending", "settled", "weight")

    def __init__(self, settled: float, weight: float) -> None:
        self.settled = settled
        """What its requests that ended have cost."""
        self.pending = 0.0
        """What those that run are charged by estimate."""
        self.weight = weight
        self.n_waiting = 0
        self.n_admitted = 0


class FairShare(Generic[KeyT]):
    """Accounts by key. What two of them get while both wait, per unit of weight, differs by no more than a few requests
    of each: those that run at a time, and one.

    An account is forgotten when none of its requests waits or runs and those who wait have caught up with it; at most
    ``max_idle`` others are kept, and those with the least debt go first. So memory is bounded by the requests.
    """

    def __init__(self, *, max_idle: int) -> None:
        self._accounts: dict[KeyT, _Account] = {}
        self._waiting: Ranking[KeyT] = Ranking()
        """Accounts that wait, by all they have spent."""
        self._settled: Ranking[KeyT] = Ranking()
        """The same accounts, without estimates."""
        self._idle: Ranking[KeyT] = Ranking()
        self._max_idle = max_idle
        self._level = 0.0
        """Where a newcomer starts while nobody waits."""

    def __len__(self) -> int:
        """Accounts remembered."""
        return len(self._accounts)

    def __contains__(self, key: KeyT) -> bool:
        """Whether the account is remembered."""
        return key in self._accounts

    def is_idle(self, key: KeyT) -> bool:
        """Whether none of its requests waits or runs."""
        account = self._accounts.get(key)
        return account is None or not (account.n_waiting or account.n_admitted)

    def in_order(self) -> Iterator[KeyT]:
        """Accounts that wait, the next one first. Not to be continued after a change."""
        return self._waiting.in_order()

    def join(self, key: KeyT, weight: float = 1.0) -> None:
        """One more request of the account waits. ``weight`` is above 0, and the same each time: twice the weight, twice
        the tokens."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account(self._start, weight)
        account.n_waiting += 1
        if account.n_waiting == 1:
            account.settled = max(account.settled, self._start)
            self._idle.discard(key)
            self._place(key, account)

    def quit(self, key: KeyT) -> None:
        """One of its requests does not wait any more and is not admitted."""
        account = self._accounts[key]
        account.n_waiting -= 1
        self._place(key, account)

    def admit(self, key: KeyT, n_tokens: float) -> None:
        """One of its waiting requests runs now; charge an estimate."""
        account = self._accounts[key]
        self._level = max(self._level, self._start)
        account.n_waiting -= 1
        account.n_admitted += 1
        account.pending += n_tokens / account.weight
        self._place(key, account)

    def correct(self, key: KeyT, n_tokens: float) -> None:
        """The estimate for a request that runs was so much too low, or too high if negative."""
        account = self._accounts[key]
        account.pending += n_tokens / account.weight
        self._place(key, account)

    def settle(self, key: KeyT, n_tokens: float, *, estimate: float) -> None:
        """One of its requests ended and cost so many tokens; ``estimate`` is what was charged for it till now."""
        account = self._accounts[key]
        account.n_admitted -= 1
        account.pending -= estimate / account.weight
        account.settled += n_tokens / account.weight
        self._place(key, account)

    @property
    def _start(self) -> float:
        """What whoever begins to wait has spent, at least."""
        first = self._settled.first()
        return self._level if first is None else first[0]

    def _place(self, key: KeyT, account: _Account) -> None:
        """Put an account where it belongs after a change."""
        if account.n_waiting:
            self._waiting.set(key, account.settled + account.pending)
            self._settled.set(key, account.settled)
        else:
            self._waiting.discard(key)
            self._settled.discard(key)
            if account.n_admitted == 0:
                self._idle.set(key, account.settled)
        if self._idle:
            self._forget_idle()

    def _forget_idle(self) -> None:
        start = self._start
        while (least := self._idle.first()) is not None and (least[0] <= start or len(self._idle) > self._max_idle):
            self._idle.discard(least[1])
            del self._accounts[least[1]]
