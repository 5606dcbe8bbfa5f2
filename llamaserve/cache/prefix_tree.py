"""The runs of all scopes, how far they go along with given tokens, and how many cells they are.

Every run has a holder that ends with it, or several runs after it: there are never more than twice as many runs as
holders. Knows holders by number only, but for the ids in ``PrefixNode.ends``.

Scheduler thread only.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from llamaserve.cache.prefix_node import PrefixNode


class Walk(NamedTuple):
    """How far a tree goes along with the first ``limit`` of some tokens."""

    scope: str
    tokens: array[int]
    n_given: int
    limit: int
    node: PrefixNode
    """Where it ends: behind this run or inside it."""
    n_tokens: int

    def answers(self, scope: str, tokens: array[int], limit: int) -> bool:
        """Whether another walk would end at the same place."""
        is_same = self.tokens is tokens and self.n_given == len(tokens) and self.scope == scope
        return is_same and (limit == self.n_tokens or self.n_tokens < min(limit, self.limit))


class PrefixTree:
    """One tree a scope; empty ones are dropped. Every change keeps the counts."""

    def __init__(self) -> None:
        self.n_cells = 0
        """Tokens of all runs."""
        self.n_cells_idle = 0
        """Of these, tokens of runs that no busy holder holds."""
        self._roots: dict[str, PrefixNode] = {}
        self._n_uses = 0
        self._last_walk: Walk | None = None

    def walk(self, scope: str, tokens: array[int], limit: int) -> Walk:
        """Follow the tokens, ``limit`` at most. Remembers the last answer until something changes (K45). Raises
        ValueError for a negative limit."""
        if limit < 0:
            raise ValueError(f"limit is {limit}: it must be 0 or more")
        if self._last_walk is not None and self._last_walk.answers(scope, tokens, limit):
            return self._last_walk
        n_tokens, end = 0, min(limit, len(tokens))
        node = self._roots.get(scope) or PrefixNode()
        while n_tokens < end and n_tokens == node.end and (child := node.children.get(tokens[n_tokens])) is not None:
            n_tokens += child.n_common(tokens, n_tokens, end)
            node = child
        self._last_walk = Walk(scope, tokens, len(tokens), limit, node, n_tokens)
        return self._last_walk

    def grow(self, walk: Walk) -> PrefixNode:
        """The node behind all tokens of a walk; those beyond it become a run of their own."""
        node = walk.node
        if node.parent is None:
            self._roots.setdefault(walk.scope, node)
        if walk.n_tokens < node.end:
            node = self.split(node, walk.n_tokens)
        if walk.n_tokens < walk.limit:
            node = self.attach(node, walk.tokens[walk.n_tokens : walk.limit])
        return node

    def attach(self, node: PrefixNode, tokens: array[int]) -> PrefixNode:
        """A new run after a node, of tokens that no other run there begins with; it keeps the array."""
        self._last_walk = None
        child = node.attach(tokens)
        self._count_cells(child, child.length)
        return child

    def append(self, node: PrefixNode, tokens: array[int]) -> None:
        """Lengthen a run that nothing comes after."""
        self._last_walk = None
        node.grow(tokens)
        self._count_cells(node, len(tokens))

    def split(self, node: PrefixNode, position: int) -> PrefixNode:
        """Cut a run in two; the first part, as the node stands for the second from now on."""
        self._last_walk = None
        return node.split(position)

    def hold(self, node: PrefixNode, n_holders: int, n_busy: int) -> None:
        """So many holders, and busy ones of them, more or fewer end at a node."""
        for held in node.path():
            was_idle = not held.n_busy
            held.n_holders += n_holders
            held.n_busy += n_busy
            if was_idle != (not held.n_busy):
                self.n_cells_idle += -held.length if was_idle else held.length

    def tidy(self, scope: str, node: PrefixNode) -> int:
        """Drop the runs up from a node that nobody holds, then join what need not be two runs; tokens dropped."""
        self._last_walk = None
        n_dropped = 0
        while node.n_holders == 0 and node.parent is not None:
            n_dropped += node.length
            self._count_cells(node, -node.length)
            node.detach()
            node = node.parent
        if node.parent is None and node.n_holders == 0:
            del self._roots[scope]
        elif node.parent is not None and not node.ends and len(node.children) == 1:
            next(iter(node.children.values())).join_with_parent()
        return n_dropped

    def use(self, node: PrefixNode, n_tokens: int) -> None:
        """So many tokens, the last of them in this run, are used now."""
        self._n_uses += 1
        node.use(n_tokens, self._n_uses)
        before = node.parent
        while before is not None:
            before.uses = [(before.end, self._n_uses)]
            before = before.parent

    def _count_cells(self, node: PrefixNode, n_cells: int) -> None:
        self.n_cells += n_cells
        if not node.n_busy:
            self.n_cells_idle += n_cells
