"""Who waits for whom: requests that come at once compute what their prompts have in common once.

A request follows the one that is about to compute most of what comes next in its own prompt. Both have the same cells
up to where the follower is, so what the leader computes can be adopted. Waiting costs nothing while the leader is at
work: the steps have the same tokens in another order. Pure but for the links between requests.
"""

from __future__ import annotations

from collections.abc import Iterable

from llamaserve._hot import common_prefix
from llamaserve.cache.prompt import Prompt

WORTH_WAITING = 32
"""Tokens in common for which a leader is waited for although it does not get on: it waits for a turn itself."""


class RunningPrompt:
    """A slot's sequence, as far as prefixes go."""

    __slots__ = ("adopted_from", "is_counted", "leader", "n_computed", "n_led", "n_seen", "prompt", "seq_id")

    def __init__(self, seq_id: int, prompt: Prompt) -> None:
        self.seq_id = seq_id
        self.prompt = prompt
        self.n_computed = 0
        """Tokens of the prompt it holds."""
        self.adopted_from: int | None = None
        self.leader: RunningPrompt | None = None
        """Who computes what comes next of this prompt."""
        self.n_led = 0
        """Tokens it has in common with the leader."""
        self.n_seen = 0
        """Tokens the leader had when that was looked at last; -1 = never."""
        self.is_counted = False
        """Whether it has been counted as a hit or a miss."""

    @property
    def is_at_it(self) -> bool:
        """Whether its prompt is still being computed."""
        return self.n_computed < len(self.prompt.tokens)


def choose_leader(running: RunningPrompt, others: Iterable[RunningPrompt]) -> None:
    """Link it to whom it shall wait for, among those at their prompts whose cells can be adopted; to nobody if none is
    ahead of it."""
    running.leader = None
    running.n_led = 0
    running.n_seen = -1
    prompt, n_reusable = running.prompt, running.prompt.n_reusable
    for other in others:
        if other is running or other.n_computed < running.n_computed or other.prompt.scope != prompt.scope:
            continue
        if _waits_for(other, running):
            continue
        n_common = min(common_prefix(prompt.tokens, other.prompt.tokens), n_reusable)
        if n_common > max(other.n_computed, running.n_led):
            running.leader, running.n_led = other, n_common


def waits(running: RunningPrompt, leader: RunningPrompt) -> bool:
    """Whether its leader, which still runs, is on its way to the end of what they have in common. One that has not
    moved since the last look is not waited for when little is in common."""
    if leader.n_computed >= running.n_led:
        return False
    has_moved = leader.n_computed > running.n_seen
    running.n_seen = leader.n_computed
    return has_moved or leader.leader is not None or running.n_led - running.n_computed >= WORTH_WAITING


def _waits_for(other: RunningPrompt, running: RunningPrompt) -> bool:
    """Whether the other waits, directly or not, for this one."""
    leader = other.leader
    while leader is not None:
        if leader is running:
            return True
        leader = leader.leader
    return False
