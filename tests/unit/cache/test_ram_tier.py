"""Copies of cells in RAM: what is kept, found and evicted. S33 to S37."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserve.cache.ram_tier import RamTier
from llamaserve.cache.saved_prefix import MIN_KEEP, SavedPrefix, is_worth_restoring
from tests.unit.cache.saved import BytesState, make_saved, size_of, token_ids

LARGE = 1 << 30
SYSTEM = range(1000, 1100)


def best(
    tier: RamTier, tokens: Iterable[int], n_have: int = 0, limit: int = LARGE, scope: str = ""
) -> tuple[SavedPrefix, int] | None:
    return tier.best(scope, token_ids(tokens), n_have, limit)


def other_tokens(index: int, n_tokens: int = 100) -> range:
    """Tokens that have nothing in common with those of another index."""
    return range(10_000 * (index + 1), 10_000 * (index + 1) + n_tokens)


def test_a_tier_without_budget_takes_nothing_and_has_nothing() -> None:
    """S33"""
    tier = RamTier(0)
    saved = make_saved(SYSTEM)
    assert tier.put(saved) == [saved]
    assert (tier.n_entries, tier.n_bytes) == (0, 0)
    assert best(tier, SYSTEM) is None


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes is -1: it must be at least 0"):
        RamTier(-1)


def test_what_was_put_is_found_again_as_it_was() -> None:
    """S34, S35"""
    tier = RamTier(LARGE)
    saved = make_saved(SYSTEM)
    assert tier.put(saved) == []
    assert best(tier, [*SYSTEM, 5]) == (saved, 100)
    assert (tier.n_entries, tier.n_bytes) == (1, size_of(100))
    assert best(tier, [*SYSTEM, 5]) == (saved, 100), "a restored copy stays"


def test_what_alone_is_over_the_budget_is_handed_back_and_displaces_nothing() -> None:
    """S37"""
    tier = RamTier(size_of(100))
    small, large = make_saved(SYSTEM), make_saved(other_tokens(0, 101))
    tier.put(small)
    assert tier.put(large) == [large]
    assert tier.entries() == (small,)


def test_what_another_copy_has_is_not_wanted() -> None:
    tier = RamTier(LARGE)
    tier.put(make_saved(SYSTEM, 20))
    assert tier.has("", token_ids(SYSTEM), 20)
    assert tier.has("", token_ids(SYSTEM), 40)
    assert tier.has("", token_ids(SYSTEM)[:90], 20)
    assert not tier.has("", token_ids(SYSTEM), 19), "it begins earlier"
    assert not tier.has("", token_ids(SYSTEM, [1]), 20), "it is longer"
    assert not tier.has("", token_ids(SYSTEM[:90], [1]), 20), "its last token differs"
    assert not tier.has("other", token_ids(SYSTEM), 20), "K40"


def test_a_copy_that_could_not_be_restored_in_its_place_stands_in_for_nothing() -> None:
    """Of a long copy a short prefix alone is not worth restoring."""
    tier = RamTier(LARGE)
    long = other_tokens(0, 400)
    tier.put(make_saved(long))
    assert best(tier, long[:99]) is None
    assert not tier.has("", token_ids(long[:99]), 0)
    assert tier.has("", token_ids(long[:100]), 0)
    tier.put(make_saved(long[:99]))
    assert tier.n_entries == 2


def test_a_new_copy_drops_those_it_stands_in_for_and_no_others() -> None:
    tier = RamTier(LARGE)
    long = other_tokens(0, 300)
    stays = [make_saved([*long[:150], 1, 2]), make_saved(long[:35]), make_saved(SYSTEM), make_saved(long, 0, "other")]
    for saved in (*stays, make_saved(long[:200]), make_saved(long, 100), make_saved(long[:250], 60)):
        tier.put(saved)
    assert tier.n_entries == 7
    whole = make_saved(long)
    assert tier.put(whole) == []
    assert tier.entries() == (*stays, whole)


def test_copies_used_longest_ago_are_evicted_first_and_handed_back() -> None:
    """K5: a hit is a use."""
    tier = RamTier(3 * size_of(100))
    first, second, third = (make_saved(other_tokens(index)) for index in range(3))
    for saved in (first, second, third):
        tier.put(saved)
    assert best(tier, first.tokens) == (first, 100)
    assert tier.put(make_saved(other_tokens(3))) == [second]
    assert tier.put(make_saved(other_tokens(4, 200))) == [third, first]


def test_as_many_bytes_are_evicted_as_are_needed() -> None:
    """K4, K5: by bytes, not by number."""
    tier = RamTier(size_of(300) + size_of(100))
    large, small = make_saved(other_tokens(0, 300)), make_saved(other_tokens(1))
    tier.put(large)
    tier.put(small)
    assert tier.put(make_saved(other_tokens(2, 200))) == [large]
    assert tier.entries()[0] is small


def test_a_prompt_gets_the_copy_that_brings_most_and_the_smallest_of_equal_ones() -> None:
    tier = RamTier(LARGE)
    whole = make_saved([*SYSTEM, *range(80)])
    system = make_saved(SYSTEM)
    tier.put(make_saved([*SYSTEM[:60], 7, 8, 9]))
    tier.put(system)
    tier.put(whole)
    assert best(tier, [*SYSTEM, *range(50), 7]) == (whole, 150)
    assert tier.put(make_saved(SYSTEM)) == [], "covered"
    tier.put(make_saved([*SYSTEM, *range(300, 420)]))
    tier.put(make_saved([*SYSTEM, *range(600, 720)]))
    assert tier.n_entries == 4
    assert best(tier, [*SYSTEM, 500]) == (whole, 100)


def test_no_more_than_the_limit_is_promised() -> None:
    """The prompt's last token is always computed."""
    tier = RamTier(LARGE)
    saved = make_saved(SYSTEM)
    tier.put(saved)
    assert best(tier, SYSTEM, limit=99) == (saved, 99)
    assert best(tier, SYSTEM, limit=0) is None


def test_a_quarter_of_a_copy_must_be_of_use() -> None:
    """Requirements 1.4: at least 0.25."""
    tier = RamTier(LARGE)
    saved = make_saved(other_tokens(0, 200))
    tier.put(saved)
    assert best(tier, [*saved.tokens[:50], 1]) == (saved, 50)
    assert best(tier, [*saved.tokens[:49], 1]) is None


def test_a_copy_must_join_on_to_what_is_there_and_bring_32_tokens() -> None:
    tier = RamTier(LARGE)
    saved = make_saved(SYSTEM, 50)
    tier.put(saved)
    assert best(tier, SYSTEM, n_have=49) is None
    assert best(tier, SYSTEM, n_have=50) == (saved, 100)
    assert best(tier, SYSTEM, n_have=68) == (saved, 100)
    assert best(tier, SYSTEM, n_have=69) is None
    assert best(tier, SYSTEM, n_have=100) is None


def test_pieces_of_a_prefix_chain() -> None:
    """A caller asks again with what it has; pieces of another text do not join on."""
    tier = RamTier(LARGE)
    text = other_tokens(0, 300)
    pieces = [make_saved(text[:100]), make_saved(text[:180], 100), make_saved(text, 180)]
    strangers = [make_saved([7, *text[1:180]], 100), make_saved([*text[:150], 7, *text[151:]], 180)]
    for saved in (*pieces, *strangers):
        tier.put(saved)
    n_have, chain = 0, []
    while (hit := best(tier, [*text, 1], n_have)) is not None:
        chain.append(hit[0])
        n_have = hit[1]
    assert chain == pieces
    assert n_have == 300


def test_scopes_share_nothing() -> None:
    """K40: neither hits nor what stands in for what."""
    tier = RamTier(LARGE)
    saved = make_saved(SYSTEM, scope="tenant a")
    tier.put(saved)
    assert best(tier, SYSTEM, scope="tenant b") is None
    assert best(tier, SYSTEM, scope="tenant a") == (saved, 100)


def test_memory_that_cannot_be_trimmed_takes_whole_states_only() -> None:
    tier = RamTier(LARGE, can_trim=False)
    long, short = make_saved(other_tokens(0, 200)), make_saved(other_tokens(0, 120))
    tier.put(long)
    assert best(tier, long.tokens[:150]) is None
    assert not tier.has("", short.tokens, 0)
    tier.put(short)
    assert tier.n_entries == 2, "none stands in for the other"
    assert tier.has("", short.tokens, 0)
    assert best(tier, [*long.tokens[:150], 1]) == (short, 120)
    assert best(tier, [*long.tokens, 1]) == (long, 200)
    assert best(tier, long.tokens, limit=199) == (short, 120)


def test_a_discarded_copy_is_gone_and_may_be_discarded_twice() -> None:
    tier = RamTier(LARGE)
    first, second = make_saved(SYSTEM), make_saved(SYSTEM, 0, "other")
    tier.put(first)
    tier.put(second)
    tier.discard(first)
    tier.discard(first)
    assert tier.entries() == (second,)
    assert tier.n_bytes == size_of(100)


def test_a_state_that_does_not_belong_to_its_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="positions 0 to 99, the tokens say 0 to 100"):
        SavedPrefix("", token_ids(SYSTEM), 0, BytesState(b"x", 0, 99))
    with pytest.raises(ValueError, match="start is 100: it must be 0 to 99"):
        SavedPrefix("", token_ids(SYSTEM), 100, BytesState(b"x", 100, 100))


def test_a_copy_that_goes_on_behind_some_tokens_is_known() -> None:
    """Without them it cannot be reached."""
    tier = RamTier(LARGE)
    text = other_tokens(0, 300)
    tier.put(make_saved(text, 180))
    tier.put(make_saved([*text[:180], 1, 2]))
    assert tier.goes_on("", token_ids(text[:180]), 160)
    assert tier.goes_on("", token_ids(text[:200]), 170), "it begins among them"
    assert not tier.goes_on("", token_ids(text[:200]), 180), "it begins where they begin"
    assert not tier.goes_on("", token_ids(text[:179]), 160), "there is a gap"
    assert not tier.goes_on("", token_ids(text), 290), "it ends with them"
    assert not tier.goes_on("", token_ids(text[:179], [1]), 160), "it is of another text"
    assert not tier.goes_on("other", token_ids(text[:180]), 160), "K40"


def test_a_few_tokens_are_found_when_that_is_asked_for() -> None:
    tier = RamTier(LARGE)
    piece = make_saved(SYSTEM[:70], 50)
    tier.put(piece)
    assert best(tier, SYSTEM, n_have=50) is None
    hit = tier.best("", token_ids(SYSTEM), 50, LARGE, least_gain=1)
    assert hit == (piece, 70)


@st.composite
def copies(draw: st.DrawFn) -> SavedPrefix:
    """Of texts that share beginnings."""
    parts = draw(st.lists(st.integers(0, 1), min_size=1, max_size=5))
    tokens = [token for part in parts for token in [part] * 24]
    start = draw(st.sampled_from([at for at in range(0, len(tokens), 12) if at < len(tokens)]))
    return make_saved(tokens, start, draw(st.sampled_from(["", "b"])))


def n_common(a: array[int], b: array[int]) -> int:
    for at, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return at
    return min(len(a), len(b))


def best_of_all(
    entries: Iterable[SavedPrefix], prompt: SavedPrefix, n_have: int, limit: int, *, can_trim: bool
) -> tuple[int, int] | None:
    """Tokens the best copy brings, and positions it has: by looking at each."""
    found = []
    for saved in entries:
        n_tokens = min(limit, n_common(saved.tokens, prompt.tokens))
        if (
            saved.scope == prompt.scope
            and is_worth_restoring(saved.start, saved.end, n_have, n_tokens)
            and (can_trim or n_tokens == saved.end)
        ):
            found.append((n_tokens, saved.start - saved.end))
    return max(found, default=None)


def stands_in(outer: SavedPrefix, inner: SavedPrefix, *, can_trim: bool) -> bool:
    if outer.scope != inner.scope or outer.start > inner.start or outer.tokens[: inner.end] != inner.tokens:
        return False
    if not can_trim:
        return (outer.start, outer.end) == (inner.start, inner.end)
    return inner.end - outer.start >= MIN_KEEP * (outer.end - outer.start)


@settings(deadline=None)
@given(
    st.lists(st.tuples(copies(), st.integers(0, 100), st.integers(0, 150)), max_size=25),
    st.integers(0, 40_000),
    st.booleans(),
)
def test_the_budget_holds_and_lookups_find_what_looking_at_all_copies_finds(
    orders: list[tuple[SavedPrefix, int, int]], max_bytes: int, can_trim: bool
) -> None:
    """S37, K5, K44"""
    tier = RamTier(max_bytes, can_trim=can_trim)
    entries: list[SavedPrefix] = []  # those used longest ago first
    for saved, n_have, limit in orders:
        is_covered = any(stands_in(entry, saved, can_trim=can_trim) for entry in entries)
        assert tier.has(saved.scope, saved.tokens, saved.start) == is_covered
        is_wanted = saved.n_bytes <= max_bytes and not is_covered
        evicted = tier.put(saved)
        if is_wanted:
            entries = [entry for entry in entries if not stands_in(saved, entry, can_trim=can_trim)]
            expected = []
            while sum(entry.n_bytes for entry in entries) + saved.n_bytes > max_bytes:
                expected.append(entries.pop(0))
            assert evicted == expected
            entries.append(saved)
        assert tier.entries() == tuple(entries)
        assert tier.n_bytes == sum(entry.n_bytes for entry in entries) <= max_bytes
        hit = tier.best(saved.scope, saved.tokens, n_have, limit)
        assert (hit and (hit.n_tokens, hit.saved.start - hit.saved.end)) == best_of_all(
            entries, saved, n_have, limit, can_trim=can_trim
        )
        if hit:
            entries.remove(hit.saved)
            entries.append(hit.saved)
