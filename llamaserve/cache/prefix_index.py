"""Who holds which tokens: a radix tree over the cells that sequences share.

A node is a run of tokens whose cells one or more holders hold together, so the lengths of all runs add up to the cells
in use, and a cell that many hold is counted once. There is one tree for each scope. Holders are sequence ids. Knows no
engine and no clock: "when" is a count of the uses of the index.

Scheduler thread only.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from llamaserve.cache.prefix_node import PrefixNode
from llamaserve.cache.prefix_tree import PrefixTree, Walk
from llamaserve.cache.prompt import TOKEN_TYPE


class Match(NamedTuple):
    """The longest prefix somebody holds."""

    n_tokens: int
    holder: int | None
    """One that holds all of it; None where nobody holds anything."""


class Victim(NamedTuple):
    """A run to free: cutting each of ``holders`` to ``n_tokens`` frees ``n_cells``."""

    holders: tuple[int, ...]
    n_tokens: int
    n_cells: int


@dataclass(slots=True)
class _Holder:
    scope: str
    node: PrefixNode
    """The run it ends with."""
    is_busy: bool = False
    is_pinned: bool = False
    is_stopped: bool = False
    """It has computed tokens that were there already; what it has from there on is not indexed."""


class PrefixIndex:
    """The trees, their holders, and which run goes first when cells are wanted.

    Token arrays are int32, and the tokens in them never change. Raises KeyError for a holder that is not there,
    ValueError for a length or limit that cannot be; nothing has changed then.
    """

    def __init__(self) -> None:
        self._tree = PrefixTree()
        self._holders: dict[int, _Holder] = {}

    # --- who holds what ---

    def __contains__(self, holder: int) -> bool:
        return holder in self._holders

    def holders(self) -> tuple[int, ...]:
        """All of them, in the order they were added."""
        return tuple(self._holders)

    def length(self, holder: int) -> int:
        """Tokens that are indexed of a holder."""
        return self._holders[holder].node.end

    def tokens(self, holder: int) -> array[int]:
        """A copy of those tokens."""
        return self._holders[holder].node.tokens()

    def scope(self, holder: int) -> str:
        """The scope it was added with."""
        return self._holders[holder].scope

    def shared_length(self, holder: int) -> int:
        """Of its tokens, those whose cells others hold too."""
        path = self._holders[holder].node.path()
        return next(node.end for node in path if node.n_holders > 1 or node.parent is None)

    def covered_by_others(self, holder: int) -> bool:
        """Whether others hold each indexed cell of it too; if it is idle, it is of no use then."""
        return self.shared_length(holder) == self.length(holder)

    @property
    def n_cells(self) -> int:
        """Cells that are indexed, each counted once."""
        return self._tree.n_cells

    @property
    def n_cells_idle(self) -> int:
        """Of these, cells that only idle holders hold."""
        return self._tree.n_cells_idle

    # --- what is there already ---

    def match(self, scope: str, tokens: array[int], limit: int) -> Match:
        """The longest prefix, ``limit`` tokens at most, that somebody holds; it counts as used now.

        Compares tokens where they lie (K44). If the next change of the index is an ``add`` or ``rebase`` with the same
        array, that does not compare them again (K45).
        """
        walk = self._tree.walk(scope, tokens, limit)
        if walk.n_tokens:
            self._tree.use(walk.node, walk.n_tokens)
        return self._match(walk)

    def peek(self, scope: str, tokens: array[int], limit: int) -> Match:
        """The same, but it does not count as a use."""
        return self._match(self._tree.walk(scope, tokens, limit))

    @staticmethod
    def _match(walk: Walk) -> Match:
        return Match(walk.n_tokens, walk.node.any_holder()) if walk.n_tokens else Match(0, None)

    # --- what a holder gets and gives up ---

    def add(self, holder: int, scope: str, tokens: array[int], n_shared: int, *, n_tokens: int | None = None) -> None:
        """A new holder, idle and not pinned, of the first ``n_tokens`` tokens (all, if not given): the first
        ``n_shared`` in cells that others hold, the rest in cells of its own.

        Raises ValueError if it is there already, or if ``n_shared`` is not how many of these tokens somebody holds,
        which ``match`` tells.
        """
        if holder in self._holders:
            raise ValueError(f"sequence {holder} is in the index already, with {self.length(holder)} tokens")
        node = self._tree.grow(self._admit(scope, tokens, n_shared, n_tokens))
        self._holders[holder] = _Holder(scope, node)
        self._end(holder, node)
        self._tree.use(node, node.end)

    def rebase(self, holder: int, tokens: array[int], n_shared: int, *, n_tokens: int | None = None) -> int:
        """The holder holds the first ``n_tokens`` tokens (all, if not given) from now on: the first ``n_shared`` in
        cells that are indexed, its own or those of others, the rest in cells of its own. Returns how many indexed cells
        become free.

        Raises ValueError if ``n_shared`` is not how many of these tokens somebody holds, the holder included.
        """
        walk = self._admit(self._holders[holder].scope, tokens, n_shared, n_tokens)
        node = self._tree.grow(walk)
        n_freed = self._move(holder, node)
        self._tree.use(node, node.end)
        return n_freed

    def extend(self, holder: int, tokens: array[int]) -> int:
        """The holder has computed these tokens after its indexed ones; how many were added, which is all or none.

        None where somebody else holds the same prefix and the first of these tokens after it: they were computed twice,
        and what this holder computes from there on is not indexed, until ``trim`` or ``rebase``. Where the first is
        new, all after it are.
        """
        state = self._holders[holder]
        if not tokens or state.is_stopped:
            return 0
        if tokens[0] in state.node.children:
            state.is_stopped = True
            return 0
        if state.node.parent is not None and state.node.n_holders == 1:
            self._tree.append(state.node, tokens)
        else:
            self._move(holder, self._tree.attach(state.node, array(TOKEN_TYPE, tokens)))
        self._tree.use(state.node, state.node.end)
        return len(tokens)

    def trim(self, holder: int, n_tokens: int) -> int:
        """Cut a holder to its first ``n_tokens``; how many cells become free, those that nobody else holds (K4)."""
        node = self._holders[holder].node
        if not 0 <= n_tokens <= node.end:
            raise ValueError(f"n_tokens is {n_tokens}: sequence {holder} can be cut to 0 to {node.end}")
        node = next(held for held in node.path() if held.begin < n_tokens or held.parent is None)
        return self._move(holder, node if node.end == n_tokens else self._tree.split(node, n_tokens))

    def remove(self, holder: int) -> int:
        """Forget a holder; how many cells become free, those that nobody else holds (K4)."""
        state = self._holders.pop(holder)
        state.node.ends.discard(holder)
        self._tree.hold(state.node, -1, -state.is_busy)
        return self._tree.tidy(state.scope, state.node)

    def _admit(self, scope: str, tokens: array[int], n_shared: int, n_tokens: int | None) -> Walk:
        """The walk along what a holder is to hold; its limit is how much that is."""
        n_tokens = len(tokens) if n_tokens is None else n_tokens
        if not 0 <= n_tokens <= len(tokens):
            raise ValueError(f"n_tokens is {n_tokens}: it must be 0 to {len(tokens)}, as many as are given")
        walk = self._tree.walk(scope, tokens, n_tokens)
        if walk.n_tokens != n_shared:
            raise ValueError(f"n_shared is {n_shared}: of these {n_tokens} tokens, {walk.n_tokens} are held")
        return walk._replace(limit=n_tokens)

    def _end(self, holder: int, node: PrefixNode) -> None:
        state = self._holders[holder]
        state.node = node
        node.ends.add(holder)
        self._tree.hold(node, 1, state.is_busy)

    def _move(self, holder: int, node: PrefixNode) -> int:
        """Have a holder end at another node, or at the same; cells freed. It is counted at both for a moment, so that
        nothing is dropped that it holds before and after."""
        state = self._holders[holder]
        before = state.node
        before.ends.discard(holder)
        self._end(holder, node)
        self._tree.hold(before, -1, -state.is_busy)
        state.is_stopped = False
        return self._tree.tidy(state.scope, before)

    # --- what goes first ---

    def set_busy(self, holder: int, is_busy: bool) -> None:
        """Whether it is in use: nothing that a busy holder holds is a victim (S24)."""
        state = self._holders[holder]
        if state.is_busy != is_busy:
            state.is_busy = is_busy
            self._tree.hold(state.node, 0, 1 if is_busy else -1)

    def pin(self, holder: int, is_pinned: bool) -> None:
        """Whether the run it ends with is a victim only when there is no other."""
        self._holders[holder].is_pinned = is_pinned

    def victim(self) -> Victim | None:
        """The run used longest ago of those that only idle holders hold and nothing comes after; pinned ones last."""
        leaves: dict[PrefixNode, bool] = {}
        for state in self._holders.values():
            node = state.node
            if node.parent is not None and not node.children and not node.n_busy:
                leaves[node] = state.is_pinned or leaves.get(node, False)
        if not leaves:
            return None
        node = min(leaves, key=lambda leaf: (leaves[leaf], leaf.used))
        return Victim(tuple(sorted(node.ends)), node.begin, node.length)

    def oldest_idle(self) -> int | None:
        """The first of ``purge_order``; None where nobody is idle."""
        states = self._holders.items()
        idle = [(state.is_pinned, state.node.used, holder) for holder, state in states if not state.is_busy]
        return min(idle)[2] if idle else None

    def purge_order(self) -> tuple[int, ...]:
        """Idle holders, used longest ago first, pinned ones last."""
        states = self._holders.items()
        idle = [(state.is_pinned, state.node.used, holder) for holder, state in states if not state.is_busy]
        return tuple(holder for _, _, holder in sorted(idle))
