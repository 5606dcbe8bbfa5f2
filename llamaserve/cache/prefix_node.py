"""A node of the prefix index: a run of tokens whose cells all its holders hold.

A run is a part of an array. Splitting a run leaves both parts in the same array, so no token is copied. What comes
behind a run in its array is always a run after it, so one that nothing comes after can grow in place. Knows no holder
by more than its id.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from llamaserve._hot import common_prefix
from llamaserve.cache.prompt import TOKEN_TYPE


class PrefixNode:
    """A run and what comes after it. The root of a scope is an empty run without parent. Scheduler thread only."""

    __slots__ = ("_offset", "_tokens", "children", "end", "ends", "n_busy", "n_holders", "parent", "uses")

    def __init__(self, parent: PrefixNode | None = None, tokens: array[int] | None = None) -> None:
        """A run after ``parent``, which owns ``tokens`` from now on; ``parent`` learns of it by ``attach``."""
        self._tokens = array(TOKEN_TYPE) if tokens is None else tokens
        self._offset = 0
        self.parent = parent
        self.end: int = (parent.end if parent else 0) + len(self._tokens)
        """Tokens from the root to the end of the run."""
        self.children: dict[int, PrefixNode] = {}
        """By first token."""
        self.ends: set[int] = set()
        """Holders that hold the run and nothing after it."""
        self.n_holders = 0
        """Those and all that end in runs after it."""
        self.n_busy = 0
        """Busy ones of them."""
        self.uses: list[tuple[int, int]] = []
        """How far from the root a use came in this run, and when: the latest first, each farther than those before it.
        Nearly always one, which came to the end."""

    @property
    def begin(self) -> int:
        """Tokens from the root to the run."""
        return self.parent.end if self.parent else 0

    @property
    def length(self) -> int:
        """Tokens of the run, and cells: each is held once."""
        return self.end - self.begin

    @property
    def first(self) -> int:
        """First token of the run."""
        return self._tokens[self._offset]

    @property
    def used(self) -> int:
        """When any part of the run was used last, which is when its first token was."""
        return self.uses[0][1] if self.uses else 0

    @property
    def run(self) -> array[int]:
        """A copy of its tokens."""
        return self._tokens[self._offset : self._offset + self.length]

    def path(self) -> Iterator[PrefixNode]:
        """This node and those before it, the root last."""
        node: PrefixNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def tokens(self) -> array[int]:
        """All tokens from the root to the end of the run."""
        tokens = array(TOKEN_TYPE)
        for node in reversed(list(self.path())):
            tokens.extend(node.run)
        return tokens

    def n_common(self, tokens: array[int], begin: int, limit: int) -> int:
        """How many of the tokens from ``begin``, where the run begins, to ``limit`` are those of the run."""
        end = self.end if self.end < limit else limit
        return common_prefix(self._tokens, tokens, self._offset, begin, end - begin)

    def any_holder(self) -> int:
        """One of those that hold the run."""
        node = self
        while not node.ends:
            node = next(iter(node.children.values()))
        return next(iter(node.ends))

    def use(self, position: int, time: int) -> None:
        """It is used now, up to so many tokens from the root."""
        self.uses = [(position, time), *(use for use in self.uses if use[0] > position)]

    def attach(self, tokens: array[int]) -> PrefixNode:
        """A new run after this one, of tokens that no other child begins with."""
        child = PrefixNode(self, tokens)
        self.children[child.first] = child
        return child

    def detach(self) -> None:
        """Take a run that nobody holds, and that nothing comes after, off its parent."""
        assert self.parent is not None
        del self.parent.children[self.first]
        for node in self.parent.path():
            # The runs before it may lie in the same array, which is longer now than what is left of it.
            if node._tokens is not self._tokens:
                break
            node._tokens, node._offset = node.run, 0

    def split(self, position: int) -> PrefixNode:
        """Cut the run in two, so many tokens from the root; this node is the second part. Returns the first."""
        assert self.parent is not None
        before = PrefixNode(self.parent)
        before._tokens, before._offset, before.end = self._tokens, self._offset, position
        before.n_holders, before.n_busy = self.n_holders, self.n_busy
        n_inside = sum(end < position for end, _ in self.uses)
        before.uses = [(min(end, position), time) for end, time in self.uses[: n_inside + 1]]
        self.uses = [use for use in self.uses if use[0] > position]
        self.parent.children[self.first] = before
        self._offset += position - self.parent.end
        self.parent = before
        before.children[self.first] = self
        return before

    def grow(self, tokens: array[int]) -> None:
        """Add tokens at the end of the run, which its array ends with."""
        self._tokens.extend(tokens)
        self.end += len(tokens)

    def join_with_parent(self) -> None:
        """Take over the run before, which has no other child and where no holder ends."""
        before = self.parent
        assert before is not None
        assert before.parent is not None
        before.parent.children[before.first] = self
        if before._tokens is not self._tokens:
            before.grow(self.run)
        self._tokens, self._offset = before._tokens, before._offset
        self.uses = [use for use in before.uses if use[1] > self.used] + self.uses
        self.parent = before.parent
