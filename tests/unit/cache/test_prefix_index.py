"""Who holds which tokens, what is free when somebody lets go, and what goes first."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from llamaserve._hot import common_prefix
from llamaserve.cache import prefix_node
from llamaserve.cache.prefix_index import Match, PrefixIndex, Victim

SCOPE = "scope"


def tokens(text: str) -> array[int]:
    return array("i", list(text.encode()))


def text_of(index: PrefixIndex, holder: int) -> str:
    return index.tokens(holder).tobytes()[::4].decode()


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex()


def held(index: PrefixIndex, **texts: str) -> PrefixIndex:
    """Holders _0, _1, ... added in this order, each sharing what is there."""
    for name, text in texts.items():
        n_shared = index.peek(SCOPE, tokens(text), len(text)).n_tokens
        index.add(int(name[1:]), SCOPE, tokens(text), n_shared)
    return index


def matched(index: PrefixIndex, text: str, limit: int = 1000) -> int:
    return index.peek(SCOPE, tokens(text), limit).n_tokens


# --- who holds what ---


def test_an_index_begins_with_nothing(index: PrefixIndex) -> None:
    assert (index.n_cells, index.n_cells_idle, index.holders()) == (0, 0, ())
    assert 0 not in index
    assert index.match(SCOPE, tokens("abc"), 3) == Match(0, None)
    assert index.victim() is None
    assert index.purge_order() == ()


def test_a_holder_has_the_tokens_and_the_scope_it_was_added_with(index: PrefixIndex) -> None:
    held(index, _7="hello")
    assert 7 in index
    assert index.holders() == (7,)
    assert index.tokens(7) == tokens("hello")
    assert index.length(7) == index.n_cells == 5
    assert index.scope(7) == SCOPE


def test_cells_that_two_hold_are_counted_once(index: PrefixIndex) -> None:
    """S19"""
    held(index, _0="system: one", _1="system: two")
    assert index.n_cells == len("system: ") + len("one") + len("two")
    assert [text_of(index, holder) for holder in (0, 1)] == ["system: one", "system: two"]
    assert [index.shared_length(holder) for holder in (0, 1)] == [8, 8]


def test_a_system_prompt_of_many_is_held_once(index: PrefixIndex) -> None:
    """S22"""
    for holder in range(50):
        text = tokens(f"system prompt {holder:02}")
        n_shared = index.match(SCOPE, text, len(text)).n_tokens
        assert n_shared == (0 if holder == 0 else 14 if holder % 10 == 0 else 15)
        index.add(holder, SCOPE, text, n_shared)
    assert index.n_cells == 14 + 5 + 50


def test_a_holder_may_hold_nothing_yet(index: PrefixIndex) -> None:
    index.add(3, SCOPE, tokens(""), 0)
    assert (index.length(3), index.n_cells, index.covered_by_others(3)) == (0, 0, True)
    assert index.victim() is None
    assert index.remove(3) == 0


def test_only_the_first_tokens_are_added_where_a_number_is_given(index: PrefixIndex) -> None:
    held(index, _0="abcdef")
    index.add(1, SCOPE, tokens("abcxyz"), 3, n_tokens=3)
    index.add(2, SCOPE, tokens("abcxyz"), 3, n_tokens=5)
    assert [text_of(index, holder) for holder in (1, 2)] == ["abc", "abcxy"]


def test_a_holder_is_covered_when_others_hold_each_of_its_cells(index: PrefixIndex) -> None:
    held(index, _0="abc", _1="abcd")
    assert index.covered_by_others(0)
    assert not index.covered_by_others(1)
    index.remove(0)
    assert index.shared_length(1) == 0
    held(index, _2="abcd")
    assert index.covered_by_others(1)
    assert index.covered_by_others(2)


def test_a_holder_is_added_once(index: PrefixIndex) -> None:
    held(index, _0="abc")
    with pytest.raises(ValueError, match="sequence 0 is in the index already, with 3 tokens"):
        index.add(0, "other", tokens("x"), 0)


@pytest.mark.parametrize(("n_shared", "text"), [(2, "abc"), (0, "abx"), (4, "abcde"), (-1, "x")])
def test_what_is_shared_must_be_what_is_there(index: PrefixIndex, n_shared: int, text: str) -> None:
    held(index, _0="abc")
    with pytest.raises(ValueError, match=f"n_shared is {n_shared}: of these"):
        index.add(1, SCOPE, tokens(text), n_shared)
    assert (index.holders(), index.n_cells) == ((0,), 3)


@pytest.mark.parametrize("n_tokens", [-1, 4])
def test_no_more_tokens_are_added_than_are_given(index: PrefixIndex, n_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"n_tokens is {n_tokens}: it must be 0 to 3"):
        index.add(1, SCOPE, tokens("abc"), 0, n_tokens=n_tokens)


@pytest.mark.parametrize(
    "ask",
    [
        lambda index: index.length(9),
        lambda index: index.tokens(9),
        lambda index: index.scope(9),
        lambda index: index.shared_length(9),
        lambda index: index.covered_by_others(9),
        lambda index: index.extend(9, tokens("x")),
        lambda index: index.rebase(9, tokens("x"), 0),
        lambda index: index.trim(9, 0),
        lambda index: index.remove(9),
        lambda index: index.set_busy(9, True),
        lambda index: index.pin(9, True),
    ],
)
def test_a_holder_that_is_not_there_is_an_error(index: PrefixIndex, ask: Callable[[PrefixIndex], object]) -> None:
    held(index, _0="abc")
    with pytest.raises(KeyError, match="9"):
        ask(index)


def test_later_changes_of_a_given_array_change_nothing(index: PrefixIndex) -> None:
    given, more = tokens("abc"), tokens("de")
    index.add(0, SCOPE, given, 0)
    index.extend(0, more)
    given[0] = more[0] = 0
    assert text_of(index, 0) == "abcde"


# --- what is there already ---


def test_the_longest_prefix_is_found_wherever_it_ends(index: PrefixIndex) -> None:
    held(index, _0="abcd", _1="abxy", _2="abxyz")
    assert index.match(SCOPE, tokens("abcz"), 4) == Match(3, 0)
    assert index.match(SCOPE, tokens("abxyzz"), 6) == Match(5, 2)
    assert index.match(SCOPE, tokens("abx"), 3).holder in (1, 2)
    assert index.match(SCOPE, tokens("ab"), 2).n_tokens == 2
    assert index.match(SCOPE, tokens("b"), 1) == Match(0, None)
    assert index.match(SCOPE, tokens(""), 0) == Match(0, None)


def test_no_more_than_the_limit_is_matched(index: PrefixIndex) -> None:
    held(index, _0="abcdef")
    assert [matched(index, "abcdef", limit) for limit in (0, 1, 5, 6, 99)] == [0, 1, 5, 6, 6]
    assert index.match(SCOPE, tokens("abc"), 0) == Match(0, None)
    with pytest.raises(ValueError, match="limit is -1: it must be 0 or more"):
        index.match(SCOPE, tokens("abc"), -1)


def test_scopes_share_nothing(index: PrefixIndex) -> None:
    """K40"""
    index.add(0, "tenant a", tokens("secret"), 0)
    assert index.match("tenant b", tokens("secret"), 6) == Match(0, None)
    assert index.match("", tokens("secret"), 6) == Match(0, None)
    index.add(1, "tenant b", tokens("secret"), 0)
    assert index.n_cells == 12
    assert not index.covered_by_others(0)
    assert index.match("tenant b", tokens("secret"), 6) == Match(6, 1)
    index.remove(1)
    assert index.match("tenant b", tokens("secret"), 6) == Match(0, None)
    assert index.match("tenant a", tokens("secret"), 6) == Match(6, 0)


def test_the_prefix_of_a_holder_that_is_still_computing_is_found(index: PrefixIndex) -> None:
    """S24"""
    held(index, _0="ab")
    index.set_busy(0, True)
    index.extend(0, tokens("cd"))
    assert index.match(SCOPE, tokens("abcz"), 4) == Match(3, 0)


class Comparisons:
    """The arrays that were compared with runs, in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[array[int]] = []
        monkeypatch.setattr(prefix_node, "common_prefix", self.count)

    def count(self, run: array[int], given: array[int], run_start: int, start: int, limit: int) -> int:
        self.given.append(given)
        return common_prefix(run, given, run_start, start, limit)


def test_a_prompt_is_compared_where_it_lies_and_not_at_all_when_its_first_token_differs(
    index: PrefixIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K44"""
    for holder in range(100):
        index.add(holder, SCOPE, array("i", [holder, *range(1000)]), 0)
    comparisons = Comparisons(monkeypatch)
    assert index.match(SCOPE, array("i", [100, *range(1000)]), 1001) == Match(0, None)
    assert comparisons.given == []
    prompt = array("i", [5, *range(1000)])
    assert index.match(SCOPE, prompt, 1000) == Match(1000, 5)
    assert [given is prompt for given in comparisons.given] == [True]


@pytest.mark.parametrize("n_tokens", [None, 6, 4])
def test_an_admission_compares_the_prompt_once(
    index: PrefixIndex, monkeypatch: pytest.MonkeyPatch, n_tokens: int | None
) -> None:
    """K45"""
    held(index, _0="abcd", _1="abcx")
    comparisons = Comparisons(monkeypatch)
    prompt = tokens("abcdef")
    found = index.match(SCOPE, prompt, len(prompt) - 1)
    n_compared = len(comparisons.given)
    assert n_compared == 2
    index.add(2, SCOPE, prompt, found.n_tokens, n_tokens=n_tokens)
    assert len(comparisons.given) == n_compared
    assert text_of(index, 2) == "abcdef"[:n_tokens]


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.add(5, SCOPE, tokens("abcdef"), 4),
        lambda index: index.extend(0, tokens("ef")),
        lambda index: index.trim(0, 2),
        lambda index: index.remove(0),
        lambda index: index.rebase(0, tokens("abcdefg"), 4),
    ],
)
def test_a_prompt_is_compared_again_after_a_change(index: PrefixIndex, change: Callable[[PrefixIndex], object]) -> None:
    held(index, _0="abcd", _1="abcx", _2="abx")
    prompt = tokens("abcdef")
    index.match(SCOPE, prompt, 6)
    change(index)
    found = index.peek(SCOPE, prompt, 6)
    assert found == index.peek(SCOPE, tokens("abcdef"), 6)
    index.add(9, SCOPE, prompt, found.n_tokens)
    assert text_of(index, 9) == "abcdef"


def test_one_prompt_may_be_admitted_again_and_again(index: PrefixIndex) -> None:
    """K45: what was found before a change is not taken for what is there after it."""
    held(index, _0="abcx")
    prompt = tokens("abcdef")
    for holder, n_shared, n_tokens in ((1, 3, 3), (2, 3, 3), (3, 3, 5), (4, 5, 6), (5, 6, 6)):
        assert index.match(SCOPE, prompt, 6).n_tokens == n_shared
        index.add(holder, SCOPE, prompt, n_shared, n_tokens=n_tokens)
        assert text_of(index, holder) == "abcdef"[:n_tokens]
    assert index.n_cells == 7


def test_a_prompt_that_grew_or_has_another_limit_is_compared_again(index: PrefixIndex) -> None:
    held(index, _0="abcdef")
    prompt = tokens("abc")
    assert index.peek(SCOPE, prompt, 9).n_tokens == 3
    prompt.extend(tokens("de"))
    assert index.peek(SCOPE, prompt, 9).n_tokens == 5
    assert index.peek(SCOPE, prompt, 2).n_tokens == 2
    assert index.peek(SCOPE, prompt, 4).n_tokens == 4
    assert index.peek("other", prompt, 4).n_tokens == 0


# --- computing more ---


def test_what_a_holder_computes_is_found_by_others(index: PrefixIndex) -> None:
    """S24, K1"""
    held(index, _0="a")
    assert [index.extend(0, tokens(piece)) for piece in ("bc", "", "def")] == [2, 0, 3]
    assert (text_of(index, 0), index.n_cells) == ("abcdef", 6)
    assert matched(index, "abcdex") == 5


def test_what_comes_after_a_shared_prefix_belongs_to_who_computed_it(index: PrefixIndex) -> None:
    held(index, _0="ab", _1="ab", _2="abx")
    assert index.extend(0, tokens("c")) == 1
    assert index.extend(0, tokens("d")) == 1
    assert [text_of(index, holder) for holder in (0, 1, 2)] == ["abcd", "ab", "abx"]
    assert index.n_cells == 5


def test_what_was_computed_twice_is_not_indexed_twice(index: PrefixIndex) -> None:
    """K1"""
    held(index, _0="system", _1="system")
    assert index.extend(0, tokens(" one")) == 4
    assert index.extend(1, tokens(" two")) == 0
    assert index.extend(1, tokens("!")) == 0
    assert (index.length(1), index.n_cells) == (6, 10)


def test_two_cold_starts_of_one_prompt_are_one_holder_and_one_that_is_not_indexed(index: PrefixIndex) -> None:
    """K1"""
    held(index, _0="", _1="")
    assert [index.extend(holder, tokens("abc")) for holder in (0, 1)] == [3, 0]
    assert [index.extend(holder, tokens("def")) for holder in (1, 0)] == [0, 3]
    assert (index.length(0), index.length(1), index.n_cells) == (6, 0, 6)


def test_a_holder_that_computed_something_twice_goes_on_after_it_was_rebased(index: PrefixIndex) -> None:
    """K1"""
    held(index, _0="abcdef", _1="ab")
    assert index.extend(1, tokens("cd")) == 0
    assert index.rebase(1, tokens("abcdx"), 4) == 0
    assert index.extend(1, tokens("y")) == 1
    assert (text_of(index, 1), index.n_cells) == ("abcdxy", 8)


def test_a_holder_that_computed_something_twice_goes_on_after_it_was_cut(index: PrefixIndex) -> None:
    held(index, _0="abc", _1="ab")
    assert index.extend(1, tokens("c")) == 0
    assert index.trim(1, 1) == 0
    assert index.extend(1, tokens("x")) == 1
    assert text_of(index, 1) == "ax"


def test_tokens_after_a_part_that_was_cut_off_replace_it(index: PrefixIndex) -> None:
    held(index, _0="abcdef")
    index.trim(0, 3)
    index.extend(0, tokens("xyz"))
    assert (text_of(index, 0), index.n_cells) == ("abcxyz", 6)
    assert matched(index, "abcdef") == 3


def test_a_holder_that_adopts_what_another_computed_frees_its_own(index: PrefixIndex) -> None:
    held(index, _0="abcdef", _1="abxy")
    assert index.rebase(1, tokens("abcdefgh"), 6, n_tokens=6) == 2
    assert (text_of(index, 1), index.n_cells) == ("abcdef", 6)
    assert index.covered_by_others(1)


def test_a_holder_that_is_rebased_keeps_what_it_has_of_the_new_tokens(index: PrefixIndex) -> None:
    held(index, _0="abcd", _1="x")
    assert index.rebase(0, tokens("abz"), 2) == 2
    assert index.rebase(0, tokens("abz"), 3) == 0
    assert index.rebase(0, tokens("abzz"), 3) == 0
    assert (text_of(index, 0), index.n_cells) == ("abzz", 5)


def test_a_rebase_with_a_wrong_number_changes_nothing(index: PrefixIndex) -> None:
    held(index, _0="abcd", _1="abx")
    with pytest.raises(ValueError, match="n_shared is 2: of these 4 tokens, 3 are held"):
        index.rebase(1, tokens("abcz"), 2)
    assert text_of(index, 1) == "abx"


# --- letting go ---


def test_cells_that_somebody_else_holds_do_not_become_free(index: PrefixIndex) -> None:
    """K4"""
    held(index, _0="system: one", _1="system: two")
    assert index.remove(0) == 3
    assert index.n_cells == 11
    assert index.remove(1) == 11
    assert index.n_cells == 0


def test_a_donor_whose_cells_are_all_shared_frees_nothing(index: PrefixIndex) -> None:
    """K4"""
    held(index, _0="system", _1="system: two")
    assert index.remove(0) == 0
    assert text_of(index, 1) == "system: two"


@pytest.mark.parametrize(("n_tokens", "n_freed"), [(9, 0), (7, 2), (5, 4), (4, 4), (2, 4), (0, 4)])
def test_cutting_a_holder_frees_what_it_alone_held(index: PrefixIndex, n_tokens: int, n_freed: int) -> None:
    """K4"""
    held(index, _0="commonown", _1="commoother")
    assert (index.trim(0, n_tokens), index.length(0)) == (n_freed, n_tokens)
    assert text_of(index, 0) == "commonown"[:n_tokens]
    assert text_of(index, 1) == "commoother"
    assert index.n_cells == 14 - n_freed


@pytest.mark.parametrize("n_tokens", [-1, 4])
def test_a_holder_cannot_be_cut_to_more_than_it_has(index: PrefixIndex, n_tokens: int) -> None:
    held(index, _0="abc")
    with pytest.raises(ValueError, match=f"n_tokens is {n_tokens}: sequence 0 can be cut to 0 to 3"):
        index.trim(0, n_tokens)
    assert text_of(index, 0) == "abc"


def test_nothing_can_be_matched_that_nobody_holds_any_more(index: PrefixIndex) -> None:
    held(index, _0="abcdef", _1="abx")
    index.trim(0, 4)
    assert matched(index, "abcdef") == 4
    index.remove(0)
    assert matched(index, "abcdef") == 2
    index.remove(1)
    assert matched(index, "abcdef") == 0


# --- what goes first ---


def victims(index: PrefixIndex) -> list[Victim]:
    """All of them, each cut when it is named; it frees what it says."""
    cut = []
    while (victim := index.victim()) is not None:
        assert sum(index.trim(holder, victim.n_tokens) for holder in victim.holders) == victim.n_cells
        cut.append(victim)
    return cut


def test_the_run_used_longest_ago_goes_first(index: PrefixIndex) -> None:
    """K4"""
    held(index, _5="first", _3="second", _4="third")
    index.match(SCOPE, tokens("first"), 5)
    assert victims(index) == [Victim((3,), 0, 6), Victim((4,), 0, 5), Victim((5,), 0, 5)]


def test_a_look_is_no_use(index: PrefixIndex) -> None:
    held(index, _0="first", _1="second")
    index.peek(SCOPE, tokens("first"), 5)
    assert index.victim() == Victim((0,), 0, 5)


def test_what_a_holder_computes_is_used(index: PrefixIndex) -> None:
    held(index, _0="first", _1="second")
    index.extend(0, tokens("!"))
    assert index.victim() == Victim((1,), 0, 6)


def test_a_prefix_of_many_survives_their_tails(index: PrefixIndex) -> None:
    """S22, K4"""
    held(index, _0="system: one", _1="system: two", _2="other")
    assert victims(index) == [Victim((0,), 8, 3), Victim((1,), 8, 3), Victim((0, 1), 0, 8), Victim((2,), 0, 5)]


def test_a_prefix_used_again_survives_its_old_tail(index: PrefixIndex) -> None:
    """K4: also while a single holder has both, in one run."""
    held(index, _0="system: one", _1="other")
    index.match(SCOPE, tokens("system: two"), 11)
    assert index.victim() == Victim((1,), 0, 5)
    index.add(2, SCOPE, tokens("system: two"), 8)
    assert victims(index)[:2] == [Victim((0,), 8, 3), Victim((1,), 0, 5)]


def test_a_prefix_used_again_is_still_young_when_who_used_it_is_gone(index: PrefixIndex) -> None:
    held(index, _0="system: one", _1="other", _2="system: two")
    index.remove(2)
    assert victims(index) == [Victim((1,), 0, 5), Victim((0,), 0, 11)]


def test_a_use_counts_for_all_runs_it_goes_through(index: PrefixIndex) -> None:
    held(index, _0="ab1", _1="abcd1", _2="abcdef1", _3="other")
    index.match(SCOPE, tokens("abcdef1"), 7)
    for holder in (0, 1, 2):
        index.trim(holder, 2)
    assert victims(index) == [Victim((3,), 0, 5), Victim((0, 1, 2), 0, 2)]


def test_a_use_that_ended_inside_a_run_is_remembered_when_it_is_cut_there(index: PrefixIndex) -> None:
    held(index, _0="abcdef", _1="abcdef", _2="other")
    for text in ("abcdx", "abx"):
        index.match(SCOPE, tokens(text), 5)
    index.trim(0, 3)
    assert index.victim() == Victim((2,), 0, 5), "the run from the fourth token on was used after it"
    held(index, _3="young")
    index.trim(1, 5)
    assert victims(index) == [
        Victim((2,), 0, 5),
        Victim((1,), 3, 2),
        Victim((0, 1), 0, 3),
        Victim((3,), 0, 5),
    ]


def test_a_run_that_several_hold_to_its_end_is_cut_for_all_of_them(index: PrefixIndex) -> None:
    """K4"""
    held(index, _0="abc", _1="abc", _2="z")
    assert index.victim() == Victim((0, 1), 0, 3)


def test_nothing_a_busy_holder_holds_goes(index: PrefixIndex) -> None:
    """S24"""
    held(index, _0="abcd", _1="abcd", _2="abxy")
    index.set_busy(1, True)
    assert victims(index) == [Victim((2,), 2, 2)]
    index.set_busy(1, True)
    index.set_busy(1, False)
    assert index.victim() == Victim((0, 1), 2, 2)


def test_the_runs_after_those_of_a_busy_holder_go(index: PrefixIndex) -> None:
    held(index, _0="ab", _1="abcd")
    index.set_busy(0, True)
    assert index.n_cells_idle == 2
    assert victims(index) == [Victim((1,), 2, 2)]
    assert index.n_cells_idle == 0


def test_a_pinned_holder_goes_only_when_nothing_else_is_left(index: PrefixIndex) -> None:
    held(index, _0="pinned", _1="other", _2="young")
    index.pin(0, True)
    assert victims(index) == [Victim((1,), 0, 5), Victim((2,), 0, 5), Victim((0,), 0, 6)]
    held(index, _3="other", _4="other", _5="young")
    index.pin(3, True)
    assert index.victim() == Victim((5,), 0, 5)
    index.pin(3, False)
    assert index.victim() == Victim((3, 4), 0, 5)


def test_a_holder_that_was_added_again_is_neither_busy_nor_pinned(index: PrefixIndex) -> None:
    held(index, _0="abc", _1="xyz")
    index.set_busy(0, True)
    index.pin(0, True)
    index.remove(0)
    held(index, _0="abc")
    assert index.n_cells_idle == 6
    assert victims(index) == [Victim((1,), 0, 3), Victim((0,), 0, 3)]


def test_a_busy_or_pinned_holder_that_is_rebased_or_cut_stays_so(index: PrefixIndex) -> None:
    held(index, _0="abcd", _1="z")
    index.set_busy(0, True)
    index.rebase(0, tokens("xyz"), 0)
    index.extend(0, tokens("!"))
    index.trim(0, 2)
    assert (text_of(index, 0), index.n_cells_idle) == ("xy", 1)
    index.set_busy(0, False)
    index.pin(0, True)
    index.rebase(0, tokens("xyz"), 2)
    assert index.victim() == Victim((1,), 0, 1)


def test_idle_holders_are_purged_in_the_order_of_their_last_use_and_pinned_ones_last(index: PrefixIndex) -> None:
    """K4: not in the order of their ids."""
    held(index, _9="nine", _1="one", _5="five", _4="four", _7="seven")
    index.match(SCOPE, tokens("nine"), 4)
    index.pin(1, True)
    index.set_busy(5, True)
    assert index.purge_order() == (4, 7, 9, 1)
