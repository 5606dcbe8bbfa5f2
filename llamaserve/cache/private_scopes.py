"""Scopes whose prefixes are kept only while a request that may use them is there. Scheduler thread only."""

from __future__ import annotations

from collections import Counter

from llamaserve.cache.prompt import Prompt


class PrivateScopes:
    """Counts who waits or runs in each private scope; prompts that are not private do not count."""

    def __init__(self) -> None:
        self._n_live: Counter[str] = Counter()
        self._waiting: dict[str, str] = {}
        """Request id to scope."""

    def __contains__(self, scope: str) -> bool:
        """Whether this is a private scope somebody is in."""
        return scope in self._n_live

    def wait(self, request_id: str, prompt: Prompt) -> None:
        """A request waits for a slot."""
        if prompt.is_private:
            self._waiting[request_id] = prompt.scope
            self._n_live[prompt.scope] += 1

    def end_wait(self, request_id: str) -> str | None:
        """It waits no more; the scope, if nobody is in it now."""
        scope = self._waiting.pop(request_id, None)
        return None if scope is None else self._leave(scope)

    def enter(self, prompt: Prompt) -> None:
        """A request has a slot."""
        if prompt.is_private:
            self._n_live[prompt.scope] += 1

    def leave(self, prompt: Prompt) -> str | None:
        """It has it no more; the scope, if nobody is in it now."""
        return self._leave(prompt.scope) if prompt.is_private else None

    def clear(self) -> None:
        """All have left."""
        self._n_live.clear()
        self._waiting.clear()

    def _leave(self, scope: str) -> str | None:
        self._n_live[scope] -= 1
        if self._n_live[scope] > 0:
            return None
        del self._n_live[scope]
        return scope
