"""Which slot a request begins in, where slots cannot share what they hold. Pure.

In this order:

1. The slot of the request's session, if it is idle (S31).
2. The slot with the longest prefix of the prompt, if that is more than ``similarity`` of the prompt (S28) and worth
   what is lost there. Nothing is lost where the prompt goes on from all the slot holds. Else the slot belongs to
   another conversation, which shall not pay for a new one that begins alike (K2, K3): a session's slot is taken only
   when all idle slots hold sessions'; any other if the prompt gains at least as much as is lost, or no slot is empty or
   unused for longer, sessions' not counted.
3. The slot that costs least: an empty one; then one no session has, those used longest ago first (S29), but for those
   that hold many times what the prompt has, which come last of these: a tiny request ends no long conversation (S30);
   then a session's, in the same order. So sessions are kept while others can give way (K3), and starve nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LONG_CACHE = 4
"""A slot that holds more than so many times the prompt's tokens is spared while another can be taken; chosen so that
requests of about the same length keep taking the slot used longest ago."""


class SlotView(NamedTuple):
    """An idle slot as the choice sees it."""

    seq_id: int
    n_tokens: int
    """Tokens it holds; 0 = it is empty."""
    n_usable: int = 0
    """Of these, tokens the prompt can go on from; 0 in another scope."""
    has_session: bool = False
    """Whether a session other than the request's would come back to it."""


def choose_slot(idle: Sequence[SlotView], n_prompt: int, *, similarity: float, session_slot: int | None) -> int | None:
    """The slot for a prompt of ``n_prompt`` tokens, out of idle ones in the order of their use, that used longest ago
    first; None when there is none.

    ``similarity`` 0 ignores what they have in common. ``session_slot`` is the one the session was in last.
    """
    if any(view.seq_id == session_slot for view in idle):
        return session_slot
    if similarity > 0 and n_prompt > 0:
        similar = [view for view in idle if view.n_usable / n_prompt > similarity]
        for view in sorted(similar, key=lambda view: (-view.n_usable, view.n_tokens)):
            if _is_worth_it(view, idle):
                return view.seq_id
    cheapest = min(idle, key=lambda view: _price(view, n_prompt), default=None)  # the first of equals
    return None if cheapest is None else cheapest.seq_id


def _is_worth_it(view: SlotView, idle: Sequence[SlotView]) -> bool:
    n_lost = view.n_tokens - view.n_usable
    if n_lost == 0:
        return True
    others = [other for other in idle if other is not view and not (other.has_session and other.n_tokens)]
    if view.has_session:
        return not others
    if view.n_usable >= n_lost:
        return True
    return not any(other.n_tokens == 0 or idle.index(other) < idle.index(view) for other in others)


def _price(view: SlotView, n_prompt: int) -> tuple[bool, bool, bool]:
    return view.n_tokens > 0, view.has_session, view.n_tokens > LONG_CACHE * n_prompt
