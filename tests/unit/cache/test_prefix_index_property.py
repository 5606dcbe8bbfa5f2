"""The prefix index beside a model that lists the cells of every holder, in random order.

A cell has a number here. A holder is the list of its tokens and the list of its cells; everything else is counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llamaserve.cache.prefix_index import Match, PrefixIndex, Victim
from llamaserve.cache.prefix_node import PrefixNode

SCOPES = st.sampled_from(["", "", "a"])
# Few tokens and many repetitions, so that prompts have prefixes in common and diverge anywhere.
TOKENS = st.lists(st.sampled_from([1, 2]), max_size=12)
SOME_TOKENS = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=4)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@dataclass
class Held:
    """A holder of the model."""

    scope: str
    tokens: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    is_busy: bool = False
    is_pinned: bool = False
    is_stopped: bool = False


class PrefixIndexMachine(RuleBasedStateMachine):
    """After each change: the same tokens, cells, free cells and victims, and a tree that is as small as it can be."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.held: dict[int, Held] = {}
        self.used: dict[int, int] = {}
        """When each cell was used last."""
        self.n_cells = 0
        self.now = 0

    # --- the model ---

    def new_cells(self, count: int) -> list[int]:
        self.n_cells += count
        return list(range(self.n_cells - count, self.n_cells))

    def longest(self, scope: str, tokens: list[int]) -> tuple[int, list[int]]:
        """How many of these tokens somebody holds, and in which cells."""
        cells: list[int] = []
        for held in self.held.values():
            n_common = common(held.tokens, tokens) if held.scope == scope else 0
            if n_common > len(cells):
                cells = held.cells[:n_common]
        return len(cells), cells

    def use(self, cells: list[int]) -> None:
        self.now += 1
        self.used.update(dict.fromkeys(cells, self.now))

    def owners(self) -> dict[int, set[int]]:
        owners: dict[int, set[int]] = {}
        for holder, held in self.held.items():
            for cell in held.cells:
                owners.setdefault(cell, set()).add(holder)
        return owners

    def holders_of(self, number: int) -> int:
        return sorted(self.held)[number % len(self.held)]

    # --- changes ---

    @rule(scope=SCOPES, tokens=TOKENS, n_new=st.integers(0, 3), is_matched=st.booleans())
    def add(self, scope: str, tokens: list[int], n_new: int, is_matched: bool) -> None:
        """As an admission does it: what is there is matched, and it may be added alone."""
        prompt = array("i", tokens)
        n_shared, cells = self.longest(scope, tokens)
        if is_matched:
            assert self.index.match(scope, prompt, len(prompt)).n_tokens == n_shared
            self.use(cells)
        n_tokens = min(n_shared + n_new, len(tokens))
        holder = next(number for number in range(1000) if number not in self.held)
        self.index.add(holder, scope, prompt, n_shared, n_tokens=n_tokens)
        self.held[holder] = Held(scope, tokens[:n_tokens], cells + self.new_cells(n_tokens - n_shared))
        self.use(self.held[holder].cells)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), tokens=SOME_TOKENS)
    def extend(self, number: int, tokens: list[int]) -> None:
        """Token by token: the first that somebody else has stops it."""
        holder = self.holders_of(number)
        held = self.held[holder]
        n_before = len(held.cells)
        for token in tokens:
            held.is_stopped |= self.longest(held.scope, [*held.tokens, token])[0] > len(held.tokens)
            if not held.is_stopped:
                held.tokens.append(token)
                held.cells += self.new_cells(1)
        n_added = len(held.cells) - n_before
        assert self.index.extend(holder, array("i", tokens)) == n_added
        if n_added:
            self.use(held.cells)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), tokens=TOKENS, keep=st.integers(0, 12), n_new=st.integers(0, 3))
    def rebase(self, number: int, tokens: list[int], keep: int, n_new: int) -> None:
        holder = self.holders_of(number)
        held = self.held[holder]
        tokens = held.tokens[:keep] + tokens
        n_before = len(self.owners())
        n_shared, cells = self.longest(held.scope, tokens)
        n_tokens = min(n_shared + n_new, len(tokens))
        held.tokens, held.cells = tokens[:n_tokens], cells + self.new_cells(n_tokens - n_shared)
        held.is_stopped = False
        n_freed = self.index.rebase(holder, array("i", tokens), n_shared, n_tokens=n_tokens)
        assert n_freed == n_before + n_tokens - n_shared - len(self.owners())
        self.use(held.cells)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), n_tokens=st.integers(0, 12))
    def trim(self, number: int, n_tokens: int) -> None:
        """K4"""
        holder = self.holders_of(number)
        self.cut(holder, min(n_tokens, len(self.held[holder].tokens)))

    def cut(self, holder: int, n_tokens: int) -> int:
        n_before = len(self.owners())
        held = self.held[holder]
        held.is_stopped = False
        del held.tokens[n_tokens:], held.cells[n_tokens:]
        n_freed = self.index.trim(holder, n_tokens)
        assert n_freed == n_before - len(self.owners())
        return n_freed

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0))
    def remove(self, number: int) -> None:
        """K4"""
        n_before = len(self.owners())
        holder = self.holders_of(number)
        del self.held[holder]
        assert self.index.remove(holder) == n_before - len(self.owners())
        assert holder not in self.index

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), is_busy=st.booleans())
    def set_busy(self, number: int, is_busy: bool) -> None:
        holder = self.holders_of(number)
        self.held[holder].is_busy = is_busy
        self.index.set_busy(holder, is_busy)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0), is_pinned=st.booleans())
    def pin(self, number: int, is_pinned: bool) -> None:
        holder = self.holders_of(number)
        self.held[holder].is_pinned = is_pinned
        self.index.pin(holder, is_pinned)

    # --- questions ---

    @rule(scope=SCOPES, tokens=TOKENS, limit=st.integers(0, 13), is_use=st.booleans())
    def match(self, scope: str, tokens: list[int], limit: int, is_use: bool) -> None:
        """S19, K40"""
        n_tokens, cells = self.longest(scope, tokens[:limit])
        ask = self.index.match if is_use else self.index.peek
        found = ask(scope, array("i", tokens), limit)
        assert found.n_tokens == n_tokens
        if found.holder is None:
            assert found == Match(0, None)
        else:
            holder = self.held[found.holder]
            assert (holder.scope, holder.cells[:n_tokens]) == (scope, cells)
        if is_use:
            self.use(cells)

    @rule()
    def cut_a_victim(self) -> None:
        """K4: it frees exactly what it says."""
        victim = self.index.victim()
        if victim is not None:
            assert sum(self.cut(holder, victim.n_tokens) for holder in victim.holders) == victim.n_cells

    # --- what holds after each ---

    def leaves(self) -> dict[Victim, tuple[bool, int]]:
        """All runs that may be a victim, and how late their turn is: pinned or not, and the last use of any of it."""
        owners = self.owners()
        leaves: dict[Victim, tuple[bool, int]] = {}
        for held in self.held.values():
            if not held.cells:
                continue
            together = owners[held.cells[-1]]
            n_before = sum(owners[cell] != together for cell in held.cells)
            if all(self.held[other].cells == held.cells and not self.held[other].is_busy for other in together):
                is_pinned = any(self.held[other].is_pinned for other in together)
                victim = Victim(tuple(sorted(together)), n_before, len(held.cells) - n_before)
                leaves[victim] = (is_pinned, self.used[held.cells[n_before]])
        return leaves

    @invariant()
    def the_victim_is_the_run_used_longest_ago(self) -> None:
        """K4, S24"""
        leaves, victim = self.leaves(), self.index.victim()
        assert (victim is None) == (not leaves)
        if victim is not None:
            assert leaves[victim] == min(leaves.values())

    @invariant()
    def holders_and_cells_agree(self) -> None:
        """S19, S22: a cell that many hold is counted once."""
        owners = self.owners()
        busy_cells = {cell for held in self.held.values() if held.is_busy for cell in held.cells}
        assert (self.index.n_cells, self.index.n_cells_idle) == (len(owners), len(owners) - len(busy_cells))
        assert sorted(self.index.holders()) == sorted(self.held)
        for holder, held in self.held.items():
            n_shared = sum(len(owners[cell]) > 1 for cell in held.cells)
            assert self.index.tokens(holder).tolist() == held.tokens
            assert (self.index.length(holder), self.index.scope(holder)) == (len(held.tokens), held.scope)
            assert self.index.shared_length(holder) == n_shared
            assert self.index.covered_by_others(holder) == (n_shared == len(held.tokens))

    @invariant()
    def idle_holders_are_purged_oldest_first(self) -> None:
        """K4"""
        order = self.index.purge_order()
        assert self.index.oldest_idle() == next(iter(order), None)
        assert sorted(order) == [holder for holder in sorted(self.held) if not self.held[holder].is_busy]
        assert [self.held[holder].is_pinned for holder in order] == sorted(
            self.held[holder].is_pinned for holder in order
        )

    @invariant()
    def there_are_no_more_runs_than_needed(self) -> None:
        roots = self.index._tree._roots
        assert set(roots) == {held.scope for held in self.held.values()}
        runs = [node for root in roots.values() for node in nodes(root) if node is not root]
        assert len(runs) < max(1, 2 * len(self.held))
        assert sum(len(node.run) for node in runs) == self.index.n_cells
        for node in runs:
            assert node.ends or len(node.children) > 1
            assert node.parent is not None
            assert node.parent.children[node.first] is node
            assert node.uses[-1][0] == node.end
            assert all(near < far and late > early for (near, late), (far, early) in pairwise(node.uses))
            self.check_array(node)

    @staticmethod
    def check_array(node: PrefixNode) -> None:
        """No tokens are kept that nobody holds: behind a run in its array there are runs after it."""
        array_end = node._offset + node.length
        after = [child for child in node.children.values() if child._tokens is node._tokens]
        assert [child._offset for child in after] == [array_end] * (array_end < len(node._tokens))


def nodes(node: PrefixNode) -> Iterator[PrefixNode]:
    yield node
    for child in node.children.values():
        yield from nodes(child)


TestPrefixIndexBesideTheModel = PrefixIndexMachine.TestCase
TestPrefixIndexBesideTheModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
