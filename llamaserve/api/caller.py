"""Who a request comes from, as far as the server knows. Pure; any thread."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import cast

from starlette.types import Scope

from llamaserve.errors import BadRequest
from llamaserve.request import MAX_NAME_LENGTH, Lane

_STATE_NAME = "llamaserve.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent a request. Without keys everybody is the same caller."""

    owner: str = ""
    """Requests of different owners share the slots fairly."""
    most_urgent: Lane | None = None
    """Priorities up to this one are honoured, whatever the server says of others'; None = as the server says."""
    is_apart: bool = False
    """Whether other owners have keys too: then nothing computed for one is reused for, or shown to, another."""

    def cache_scope(self, salt: str) -> str:
        """What keeps a request with this ``cache_salt`` in its body apart in the cache. For a caller who is apart it is
        a text of 96 characters that begins with what is the caller's own; no scope of another begins so.

        Raises BadRequest for a salt that is too long.
        """
        if not self.is_apart:
            return salt
        if len(salt) > MAX_NAME_LENGTH:
            raise BadRequest(
                f"cache_salt has {len(salt)} characters: it must have at most {MAX_NAME_LENGTH}", "cache_salt"
            )
        return self._tag + _sha256(salt)

    def may_see(self, owner: str) -> bool:
        """Whether the names a request of this owner bears are shown."""
        return not self.is_apart or owner == self.owner

    def may_see_scope(self, scope: str) -> bool:
        """Whether the names of what was left in this cache scope are shown."""
        return not self.is_apart or scope.startswith(self._tag)

    @property
    def _tag(self) -> str:
        return _sha256(self.owner)[:32]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


ANYBODY = Caller()


def set_caller(scope: Scope, caller: Caller) -> None:
    """Note who sends the request of this ASGI scope."""
    scope.setdefault("state", {})[_STATE_NAME] = caller


def caller_of(scope: Scope) -> Caller:
    """Who sends it; ``ANYBODY`` where no key was asked for."""
    return cast("Caller", scope.get("state", {}).get(_STATE_NAME, ANYBODY))
