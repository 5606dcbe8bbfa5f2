"""Prefixes that stay in their slots: what is reused, what is lost, and what happens when the engine says no."""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from llamaserve._hot import common_prefix
from llamaserve.cache import slot_cells, slot_prefixes
from llamaserve.cache.disk_tier import DiskTier
from llamaserve.cache.prompt import Prompt
from llamaserve.engine.fake import FakeEngine
from llamaserve.engine.port import MemoryKind, PromptPiece, RowError, StepPlan
from llamaserve.errors import EngineError
from tests.unit.cache.slot_rig import ENGINES, Rig, WindowEngine, hashed, recurrent_engine, split_engine, text

SYSTEM = text(100, 3)


@pytest.fixture(params=ENGINES, ids=["split", "recurrent", "window"])
def rig(request: pytest.FixtureRequest) -> Rig:
    """One of each kind of memory."""
    return Rig(request.param())


# What the next request finds.


def test_the_next_turn_of_a_conversation_goes_on_from_all_of_the_last_one(rig: Rig) -> None:
    """S27; the tokens are known exactly, or the text would not be that of an empty engine (K108)."""
    first = rig.ask(text(60))
    second = rig.ask(first.tokens + text(10, 1))
    assert (first.n_held, second.n_held) == (0, len(first.tokens))
    assert second.seq_id == first.seq_id
    counters = rig.memory.counters
    assert (counters.hits, counters.misses, counters.tokens_from_cells) == (1, 1, 65)
    assert counters.tokens_queried == 60 + 75
    assert counters.parked == 2


def test_slots_do_not_share(rig: Rig) -> None:
    """S25, S26: a prefix is of use in its slot only; nothing is ever adopted."""
    seq_id = rig.begin(Prompt(text(60)))
    rig.feed(seq_id)
    assert rig.ask(text(60)).n_held == 0
    assert not rig.memory.gauges().shares
    assert all(holder.n_shared == 0 for holder in rig.memory.holders())


def test_a_turn_that_diverges_goes_on_from_the_place_where_memory_can_be_cut() -> None:
    rig = Rig(split_engine())
    rig.ask(SYSTEM + text(50), session="s")
    assert rig.ask(SYSTEM + text(50, 1), session="s").n_held == 100


@pytest.mark.parametrize("make_engine", [recurrent_engine, WindowEngine])
def test_a_turn_that_diverges_goes_back_to_the_end_of_a_message(make_engine: Callable[[], FakeEngine]) -> None:
    """K41: where memory cannot be cut there, a checkpoint before that place is what is left."""
    rig = Rig(make_engine())
    rig.ask(SYSTEM + text(50), session="s", boundaries=(60, 100))
    assert rig.ask(SYSTEM + text(50, 1), session="s", boundaries=(60, 100)).n_held == 100
    assert rig.ask(SYSTEM[:80] + text(70, 2), session="s", boundaries=(60, 100)).n_held == 60
    assert rig.ask(SYSTEM + text(50, 1), session="s").n_held == 60, "the checkpoint at 100 was of other tokens"


@pytest.mark.parametrize("make_engine", [recurrent_engine, WindowEngine])
def test_a_checkpoint_of_tokens_that_have_changed_is_not_gone_back_to(make_engine: Callable[[], FakeEngine]) -> None:
    rig = Rig(make_engine())
    rig.ask(SYSTEM + text(50), session="s", boundaries=(60, 100))
    other = SYSTEM[:80] + text(70, 2)
    assert rig.ask(other, session="s").n_held == 60
    assert rig.ask(other[:110] + text(90, 4), session="s").n_held == 60


def test_a_recurrent_state_without_a_checkpoint_begins_again(rig: Rig) -> None:
    """S27: a diverging turn has 0 and the right text; K30, K41: a refused cut is no crash."""
    rig.ask(SYSTEM + text(50), session="s", boundaries=(100,))
    n_held = rig.ask(text(20, 3) + text(90, 7), session="s").n_held
    assert n_held == (20 if _is_kv(rig) else 0)


def test_a_sliding_window_is_cut_where_it_reaches_back_far_enough() -> None:
    rig = Rig(WindowEngine())
    first = rig.ask(text(200), session="s")
    assert rig.ask(first.tokens[:190] + text(5, 1), session="s").n_held == 190


def test_the_same_prompt_sent_again_computes_a_few_tokens_only(rig: Rig) -> None:
    """K11: of a prompt without messages all but the last token is found again."""
    rig.ask(text(90), session="s")
    assert rig.ask(text(90), session="s").n_held == 89
    rig.ask(text(110, 1), session="t", boundaries=(100,))
    n_held = rig.ask(text(110, 1), session="t", boundaries=(100,)).n_held
    assert n_held == (100 if rig.engine.info.memory is MemoryKind.RECURRENT else 109)


def test_the_last_token_of_a_prompt_is_always_computed(rig: Rig) -> None:
    first = rig.ask(text(60))
    assert rig.ask(first.tokens[:-5], session="s").n_held == 59
    assert rig.ask(text(1), n_drawn=1).n_held == 0
    assert rig.ask(text(1), n_drawn=1).n_held == 0


def test_a_request_that_is_not_cached_finds_nothing_and_leaves_nothing(rig: Rig) -> None:
    """S17."""
    first = rig.ask(text(60), session="s")
    off = rig.ask(first.tokens + text(9), session="s", is_cached=False)
    assert (off.seq_id, off.n_held) == (first.seq_id, 0)
    assert rig.kept(off.seq_id) == ()
    assert rig.ask(first.tokens + text(9), session="s").n_held == 0
    counters = rig.memory.counters
    assert (counters.hits, counters.misses, counters.tokens_queried) == (0, 2, 60 + 74), "it is not counted"


def test_prompts_of_another_scope_find_nothing(rig: Rig) -> None:
    """K40: neither by what they have in common nor by a session of the same name."""
    first = rig.ask(text(60), scope="a", session="s")
    rig.idle = [first.seq_id]
    assert rig.ask(first.tokens + text(9), scope="b", session="s").n_held == 0
    assert rig.ask(first.tokens + text(9), scope="a", session="s").n_held == 0


def test_a_prompt_is_compared_once_with_each_slot_and_never_across_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    """K45, K40; K44: the tokens themselves are compared, no copies."""
    rig = Rig()
    rig.ask(text(60, 1))
    rig.ask(text(60, 2))
    rig.ask(text(60, 5), scope="other")
    compared: list[tuple[array[int], array[int]]] = []

    def watched(a: array[int], b: array[int], **limit: int) -> int:
        compared.append((a, b))
        return common_prefix(a, b, **limit)

    monkeypatch.setattr(slot_prefixes, "common_prefix", watched)
    prompt = Prompt(text(60, 2))
    kept = [rig.memory._cells.tokens(seq_id) for seq_id in (0, 1)]
    rig.begin(prompt)
    assert [(id(a), id(b)) for a, b in compared] == [(id(prompt.tokens), id(tokens)) for tokens in kept]


def test_a_prompt_that_goes_on_from_a_checkpoint_is_cut_where_it_is_without_one() -> None:
    """K133."""
    boundaries = (60, 100, 150, 200)
    prompt = SYSTEM + text(50) + text(50, 1) + text(30, 2)
    cold, warm = Rig(recurrent_engine()), Rig(recurrent_engine())
    warm.ask(SYSTEM + text(30, 7), session="s", boundaries=boundaries[:2])
    n_plans = len(warm.engine.plans)
    assert cold.ask(prompt, boundaries=boundaries).n_held == 0
    assert warm.ask(prompt, session="s", boundaries=boundaries).n_held == 100
    cold_pieces = [len(plan.pieces[0].tokens) for plan in cold.engine.plans if plan.pieces]
    warm_pieces = [len(plan.pieces[0].tokens) for plan in warm.engine.plans[n_plans:] if plan.pieces]
    assert cold_pieces == [60, 40, 50, 50, 30]
    assert warm_pieces == [50, 50, 30]


def test_pieces_end_nowhere_in_particular_where_no_checkpoint_is_made() -> None:
    prompt = Prompt(text(200), boundaries=(100,))
    assert Rig(split_engine()).memory.piece_ends(prompt) == ()
    assert Rig(recurrent_engine()).memory.piece_ends(prompt) == (100, 199)
    assert Rig(recurrent_engine()).memory.piece_ends(replace(prompt, is_cached=False)) == ()


def test_checkpoints_keep_within_their_bytes() -> None:
    """S37."""
    rig = Rig(recurrent_engine(), checkpoint_bytes=99)
    rig.ask(SYSTEM + text(50), session="s", boundaries=(60, 100))
    assert rig.ask(SYSTEM + text(50, 1), session="s").n_held == 60, "that at 100 takes 100 bytes"


# Which slot.


def test_a_conversation_keeps_its_slot_while_others_are_free(rig: Rig) -> None:
    """K2, K3, S31: a new conversation with the same system prompt takes an empty slot."""
    a = rig.ask(SYSTEM + text(200, 1), session="a")
    b = rig.ask(SYSTEM + text(50, 2))
    assert b.seq_id != a.seq_id
    again = rig.ask(a.tokens + text(10), session="a")
    assert (again.seq_id, again.n_held) == (a.seq_id, len(a.tokens))


def test_sessions_that_take_turns_keep_their_slots(rig: Rig) -> None:
    """S31."""
    texts = {name: SYSTEM + text(40, seed) for seed, name in enumerate("ab")}
    slots: dict[str, set[int]] = {"a": set(), "b": set()}
    for turn in range(4):
        for name in "ab":
            answer = rig.ask(texts[name], session=name)
            assert answer.n_held == (len(texts[name]) - 7 if turn else 0)
            texts[name] = answer.tokens + text(7, turn)
            slots[name].add(answer.seq_id)
    assert all(len(seen) == 1 for seen in slots.values())
    assert slots["a"] != slots["b"]


def test_a_session_whose_slot_is_busy_takes_another_and_is_bound_to_that(rig: Rig) -> None:
    first = rig.begin(Prompt(text(60), session="s"))
    second = rig.begin(Prompt(text(60), session="s"))
    rig.feed(first)
    rig.feed(second)
    rig.end(second)
    rig.end(first)
    assert rig.ask(text(60), session="s").seq_id == second
    assert rig.ask(text(60, 2)).seq_id not in (first, second)
    assert rig.ask(text(60, 4)).seq_id == first, "no session comes back to it"
    rig.idle.sort(key=lambda seq_id: seq_id == second)
    assert rig.ask(text(60, 9), session="s").seq_id == second


def test_a_slot_taken_by_another_is_the_session_s_no_more(rig: Rig) -> None:
    rig.idle = [0]
    rig.ask(text(60), session="s")
    rig.ask(text(60, 1), session="t")
    rig.idle = [1, 2, 0]
    assert rig.ask(text(60), session="s").seq_id == 1
    assert rig.ask(text(60, 1), session="t").seq_id == 0


def test_a_tiny_request_evicts_no_long_text(rig: Rig) -> None:
    """S30: also when the long text is that used longest ago."""
    long = rig.ask(text(300))
    for seed in range(1, 8):
        rig.ask(text(4, seed))
    assert rig.ask(long.tokens + text(9)).n_held == len(long.tokens)


def test_the_slot_used_longest_ago_gives_way(rig: Rig) -> None:
    """S29."""
    slots = [rig.ask(text(60, seed)).seq_id for seed in range(3)]
    assert rig.ask(text(60, 5)).seq_id == slots[0]
    assert rig.memory.counters.evictions == 1
    assert rig.memory.counters.evicted_tokens == 65


def test_slots_are_not_compared_when_that_is_turned_off() -> None:
    rig = Rig(similarity=0)
    first = rig.ask(text(60))
    assert rig.ask(first.tokens + text(9)).seq_id != first.seq_id


# What a request leaves.


@pytest.mark.parametrize("n_computed", [0, 1, 37, 60])
def test_a_request_that_is_cancelled_in_its_prompt_leaves_what_it_had(rig: Rig, n_computed: int) -> None:
    """K147."""
    seq_id = rig.begin(Prompt(text(60), session="s"))
    rig.feed(seq_id, n_computed)
    rig.end(seq_id)
    assert rig.kept(seq_id) == tuple(text(60)[:n_computed])
    assert rig.ask(text(60) + text(9), session="s").n_held == n_computed


def test_a_request_that_failed_leaves_nothing(rig: Rig) -> None:
    seq_id = rig.begin(Prompt(text(60), session="s"))
    rig.feed(seq_id)
    rig.end(seq_id, keep=False)
    assert rig.kept(seq_id) == ()
    assert rig.ask(text(60), session="s").n_held == 0


def test_a_sequence_that_broke_leaves_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    seq_id = rig.begin(Prompt(text(60)))
    rig.feed(seq_id)
    rig.engine.fail_row(seq_id, RowError.DECODE)
    rig.engine.step(StepPlan(decode=[seq_id]))
    rig.memory.leave(seq_id, text(60))
    rig.idle.append(rig.prompts.popitem()[0])
    rig.check()
    assert rig.kept(seq_id) == ()
    assert not caplog.records


@pytest.mark.parametrize("n_said", [59, 61])
def test_tokens_that_are_not_those_in_memory_are_not_kept(
    rig: Rig, n_said: int, caplog: pytest.LogCaptureFixture
) -> None:
    """K108, K147: one off is none kept."""
    seq_id = rig.begin(Prompt(text(60)))
    rig.feed(seq_id)
    rig.memory.leave(seq_id, text(n_said))
    rig.idle.append(rig.prompts.popitem()[0])
    rig.check()
    assert rig.kept(seq_id) == ()
    assert "holds 60 tokens, not" in caplog.text
    assert rig.ask(text(60)).n_held == 0


def test_a_slot_that_could_not_be_opened_is_empty_afterwards(rig: Rig) -> None:
    first = rig.ask(text(60))
    rig.memory.enter(first.seq_id, Prompt(first.tokens + text(3)))
    rig.memory.leave(first.seq_id, None)
    rig.check()
    assert rig.kept(first.seq_id) == ()


def test_an_idle_slot_can_be_emptied_for_one_that_comes_back() -> None:
    rig = Rig(ram_bytes=10_000)
    first = rig.ask(text(60))
    rig.memory.leave(first.seq_id, None)
    rig.check()
    assert rig.kept(first.seq_id) == ()
    assert rig.ask(first.tokens + text(3)).n_held == len(first.tokens), "it was saved before"


def test_a_request_that_gave_its_place_up_leaves_its_text_when_it_is_done(rig: Rig) -> None:
    prompt = Prompt(text(60), session="s")
    seq_id = rig.begin(prompt)
    rig.feed(seq_id)
    suspended = rig.engine.suspend(seq_id, 1000)
    rig.memory.suspend(seq_id)
    assert not rig.memory.holders()
    other = 2
    assert rig.engine.resume(other, suspended)
    rig.memory.resume(other, prompt)
    assert [holder.n_tokens for holder in rig.memory.holders()] == [60]
    rig.draw(other, 5)
    rig.idle = [0, 1]
    del rig.prompts[seq_id]
    rig.prompts[other], rig.held[other] = prompt, 0
    answer = rig.end(other)
    assert rig.ask(answer.tokens + text(9), session="s").n_held == len(answer.tokens)


# When the engine says no.


def test_a_checkpoint_that_cannot_be_made_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(recurrent_engine())
    rig.engine.fail_saves(1)
    rig.ask(SYSTEM + text(50), session="s", boundaries=(60, 100))
    assert "no checkpoint of sequence" in caplog.text
    assert rig.ask(SYSTEM + text(50, 1), session="s").n_held == 100


def test_a_checkpoint_that_cannot_be_gone_back_to_is_a_miss(caplog: pytest.LogCaptureFixture) -> None:
    """K41."""
    rig = Rig(recurrent_engine())
    rig.ask(SYSTEM + text(50), session="s", boundaries=(100,))
    rig.engine.fail_restores(1)
    assert rig.ask(SYSTEM + text(50, 1), session="s").n_held == 0
    assert "could not be put back" in caplog.text


def test_what_a_failure_may_have_spoilt_is_not_copied() -> None:
    rig = Rig(recurrent_engine(), ram_bytes=10_000)
    rig.ask(SYSTEM + text(10), session="s", boundaries=(100,))
    rig.engine.fail_restores(1)
    assert rig.ask(SYSTEM + text(5) + text(40, 7), session="s").n_held == 0
    assert rig.memory.counters.saves == 0


def test_a_checkpoint_that_a_copy_was_to_beat_goes_with_the_slot() -> None:
    rig = Rig(recurrent_engine(), ram_bytes=10_000)
    long = rig.ask(SYSTEM + text(150), session="s")
    rig.memory.leave(long.seq_id, None)
    rig.ask(SYSTEM + text(50, 1), session="s", boundaries=(100,))
    rig.engine.fail_restores(1)
    assert rig.ask(long.tokens + text(3), session="s").n_held == 0


def test_a_cut_that_raises_is_a_miss(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.ask(SYSTEM + text(50), session="s")
    trim = rig.engine.trim

    def fails(seq_id: int, n_tokens: int) -> bool:
        if n_tokens:
            raise EngineError("no")
        return trim(seq_id, n_tokens)

    monkeypatch.setattr(rig.engine, "trim", fails)
    assert rig.ask(SYSTEM + text(50, 1), session="s").n_held == 0
    assert "could not be cut" in caplog.text


def test_a_cut_that_only_says_it_worked_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """K30: the length is asked after each cut."""
    rig = Rig()
    rig.ask(SYSTEM + text(50), session="s")
    trim = rig.engine.trim
    monkeypatch.setattr(rig.engine, "trim", lambda seq_id, n_tokens: n_tokens > 0 or trim(seq_id, n_tokens))
    assert rig.memory.enter(0, Prompt(SYSTEM + text(50, 1), session="s")) == 0
    assert rig.engine.length(0) == 0


def test_what_the_engine_lost_unnoticed_is_not_continued(caplog: pytest.LogCaptureFixture) -> None:
    """K30."""
    rig = Rig()
    first = rig.ask(text(60))
    rig.engine.trim(first.seq_id, 40)
    assert rig.ask(first.tokens + text(9)).n_held == 0
    assert "holds 40 tokens, not 65" in caplog.text


def test_an_engine_that_is_down_raises_nothing_from_leave(rig: Rig) -> None:
    seq_id = rig.begin(Prompt(text(60)))
    rig.feed(seq_id)
    rig.engine.shutdown()
    rig.memory.leave(seq_id, text(60))
    rig.memory.clear()
    assert rig.memory.gauges().parked_cells == 0
    assert not rig.memory.holders()


def test_a_sequence_that_is_lost_has_no_checkpoints(rig: Rig) -> None:
    seq_id = rig.begin(Prompt(SYSTEM + text(50), session="s", boundaries=(100,)))
    rig.feed(seq_id)
    rig.engine.fail_row(seq_id, RowError.DECODE)
    rig.engine.step(StepPlan(decode=[seq_id]))
    rig.memory.lose(seq_id)
    rig.check()
    assert not rig.memory.holders()
    rig.end(seq_id, keep=False)
    assert rig.ask(SYSTEM + text(50), session="s").n_held == 0


def test_a_prompt_that_waits_is_compared_again_when_a_slot_has_changed(rig: Rig) -> None:
    waiting = Prompt(text(69))
    busy = rig.begin(Prompt(text(60)))
    rig.feed(busy)
    rig.memory.prefetch("r", waiting, lambda: None)
    rig.end(busy)
    assert rig.begin(waiting) == busy
    assert rig.held[busy] == 60


def test_a_slot_that_has_made_room_is_not_chosen_for_what_it_had() -> None:
    rig = Rig(WindowEngine())
    first = rig.ask(text(60))
    waiting = Prompt(first.tokens + text(9))
    assert rig.memory.choose_slot(waiting, rig.idle) == first.seq_id
    rig.memory.make_room(1000)
    assert rig.memory.choose_slot(waiting, rig.idle) != first.seq_id
    assert rig.memory.enter(first.seq_id, waiting) == 0


# Room.


def test_idle_slots_give_way_where_all_take_from_the_same_cells() -> None:
    """K4: those used longest ago first, sessions last; what is freed is offered to RAM."""
    rig = Rig(WindowEngine(n_ctx=300), ram_bytes=10_000)
    rig.ask(text(60, 1), session="s")
    rig.ask(text(60, 2))
    rig.ask(text(60, 3))
    assert rig.memory.n_evictable == 195
    assert rig.memory.purge_order() == [1, 2, 0]
    assert rig.memory.make_room(105)
    assert rig.engine.used_cells() == 195
    assert rig.memory.make_room(106)
    rig.check()
    assert [len(rig.kept(seq_id)) for seq_id in range(3)] == [65, 0, 65]
    assert not rig.memory.make_room(301)
    rig.check()
    assert rig.engine.used_cells() == 0
    counters = rig.memory.counters
    assert (counters.evictions, counters.evicted_tokens, counters.saves) == (3, 195, 3)


def test_slots_with_cells_of_their_own_make_no_room_for_others() -> None:
    rig = Rig(split_engine(n_ctx_seq=100))
    rig.ask(text(60))
    rig.begin(Prompt(text(50, 1)))
    rig.feed(1)
    assert rig.memory.purge_order() == ()
    assert rig.memory.make_room(250), "an idle slot's cells are for whoever begins there"
    assert not rig.memory.make_room(251)
    assert rig.engine.used_cells() == 115


def test_what_a_step_purged_is_forgotten() -> None:
    rig = Rig(WindowEngine(n_ctx=150))
    rig.ask(text(60, 1))
    rig.ask(text(60, 2))
    seq_id = rig.begin(Prompt(text(70, 3)))
    rig.engine.step(StepPlan(pieces=[PromptPiece(seq_id, text(70, 3), is_last=True)], purge=rig.memory.purge_order()))
    assert rig.engine.report.purged == (0,)
    rig.memory.purged(rig.engine.report.purged)
    rig.check()
    assert rig.memory.counters.evicted_tokens == 65
    assert rig.memory.purge_order() == [1]


# Copies.


def test_what_a_slot_loses_comes_back_from_ram(rig: Rig) -> None:
    """S34, S35."""
    rig = Rig(rig.engine, ram_bytes=10_000)
    first = rig.ask(text(60), session="a")
    for seed in range(1, 4):
        rig.ask(text(60, seed), session=str(seed))
    assert rig.memory.gauges().ram_entries == 1
    again = rig.ask(first.tokens + text(5), session="a")
    assert again.n_held == len(first.tokens)
    counters = rig.memory.counters
    assert (counters.restores, counters.tokens_from_ram, counters.saves) == (1, 65, 2)


def test_a_copy_is_cut_where_memory_can_be_and_used_as_a_whole_where_not(rig: Rig) -> None:
    rig = Rig(rig.engine, ram_bytes=10_000)
    first = rig.ask(text(60))
    rig.memory.leave(first.seq_id, None)
    n_held = rig.ask(first.tokens[:50] + text(9, 4)).n_held
    assert n_held == (50 if _is_kv(rig) else 0)


def test_a_copy_is_used_only_when_it_brings_more_than_the_slot_has() -> None:
    rig = Rig(ram_bytes=10_000)
    first = rig.ask(text(60), session="s")
    rig.memory.leave(first.seq_id, None)
    rig.ask(first.tokens[:50], session="s")
    restores = rig.memory.counters.restores
    assert rig.ask(first.tokens[:50] + text(9, 4), session="s").n_held == 50
    assert rig.memory.counters.restores == restores


def test_a_copy_of_another_scope_is_not_found() -> None:
    """K40."""
    rig = Rig(ram_bytes=10_000)
    first = rig.ask(text(60), scope="a")
    rig.idle = [first.seq_id]
    assert rig.ask(first.tokens + text(3), scope="b").n_held == 0
    assert rig.ask(first.tokens + text(3), scope="a").n_held == len(first.tokens)


def test_a_copy_over_the_budget_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """S36, S37: the size is asked before anything is copied."""
    rig = Rig(FakeEngine(can_share=False, bytes_per_cell=10, continuation=hashed), ram_bytes=2000)
    limits = []
    save = rig.engine.save

    def watched(seq_id: int, start: int, max_bytes: int) -> object:
        limits.append(max_bytes)
        return save(seq_id, start, max_bytes)

    monkeypatch.setattr(rig.engine, "save", watched)
    first = rig.ask(text(400))
    rig.memory.leave(first.seq_id, None)
    assert limits == [2000]
    assert rig.memory.gauges().ram_bytes == 0


def test_a_few_tokens_are_not_worth_a_copy() -> None:
    rig = Rig(ram_bytes=10_000)
    first = rig.ask(text(90), session="s")
    rig.ask(first.tokens[:70] + text(40, 1), session="s")
    assert rig.memory.counters.saves == 0
    rig.ask(text(30, 9), session="s")
    assert rig.memory.counters.saves == 1


@pytest.mark.parametrize("failure", ["save", "restore"])
def test_a_copy_that_fails_is_a_miss(failure: str, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(ram_bytes=10_000)
    first = rig.ask(text(60), session="s")
    if failure == "save":
        rig.engine.fail_saves(1)
    rig.memory.leave(first.seq_id, None)
    if failure == "restore":
        rig.engine.fail_restores(1)
    assert rig.ask(first.tokens + text(3), session="s").n_held == 0
    assert rig.memory.gauges().ram_entries == 0, "it would fail again"
    assert "could not be" in caplog.text


def test_a_copy_makes_room_for_itself_among_idle_slots() -> None:
    rig = Rig(WindowEngine(n_ctx=200), ram_bytes=10_000)
    first = rig.ask(text(90), session="s")
    rig.memory.leave(first.seq_id, None)
    rig.ask(text(70, 1), session="t")
    rig.ask(text(40, 2), session="u")
    assert rig.ask(first.tokens + text(3), session="s").n_held == len(first.tokens)
    assert rig.memory.counters.evictions == 2


def test_without_room_for_a_copy_neither_the_copy_nor_what_the_slot_holds_is_lost() -> None:
    """Others hold the cells now; the copy comes back when they have left."""
    rig = Rig(WindowEngine(n_ctx=200), ram_bytes=10_000)
    first = rig.ask(text(90), session="s")
    rig.memory.leave(first.seq_id, None)
    beginning = rig.ask(first.tokens[:40], session="s", n_drawn=1)
    others = [rig.begin(Prompt(text(60, seed))) for seed in (1, 2)]
    for seq_id in others:
        rig.feed(seq_id)
    assert beginning.seq_id not in others
    seq_id = rig.begin(Prompt(first.tokens + text(3), session="s"))
    assert (seq_id, rig.held[seq_id]) == (beginning.seq_id, 40), "its own"
    assert (rig.memory.counters.restores, rig.memory.gauges().ram_entries) == (0, 1)
    for busy in (seq_id, *others):
        rig.end(busy, keep=False)
    assert rig.ask(first.tokens + text(3), session="s").n_held == len(first.tokens)
    assert rig.memory.counters.restores == 1


def test_a_copy_the_engine_has_no_room_for_after_all_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have less room than the books say."""
    rig = Rig(ram_bytes=10_000)
    first = rig.ask(text(60), session="s")
    rig.memory.leave(first.seq_id, None)
    with monkeypatch.context() as patch:
        patch.setattr(rig.engine, "restore", lambda *_: False)
        assert rig.ask(first.tokens + text(3), session="s").n_held == 0
        assert rig.memory.gauges().ram_entries == 1
    rig.memory.leave(first.seq_id, None)
    assert rig.ask(first.tokens + text(3), session="t").n_held >= len(first.tokens)


def test_a_slot_is_copied_where_enough_of_it_would_be_lost() -> None:
    """The copy is of all it holds: to save a few tokens of a long text it costs more than it is worth."""
    rig = Rig(ram_bytes=100_000)
    first = rig.ask(text(395), session="s")
    rig.ask(first.tokens[:310] + text(5, 1), session="s")
    assert rig.memory.counters.saves == 0, "90 of 400"
    rig.ask(text(200, 2), session="s")
    assert rig.memory.counters.saves == 1


def test_a_large_copy_is_made_only_while_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_cells, "MOST_TO_COPY", 80)
    rig = Rig(ram_bytes=100_000)
    large, small = rig.ask(text(95, 1), session="a"), rig.ask(text(40, 2), session="b")
    busy = rig.begin(Prompt(text(61, 3)))
    assert busy not in (large.seq_id, small.seq_id)
    rig.memory.leave(large.seq_id, None)
    assert rig.memory.counters.saves == 0
    rig.memory.leave(small.seq_id, None)
    assert rig.memory.counters.saves == 1
    rig.feed(busy)
    rig.end(busy, keep=False)
    rig.ask(large.tokens, session="a")
    rig.memory.leave(large.seq_id, None)
    assert rig.memory.counters.saves == 2


def test_without_a_disk_a_prompt_that_waits_is_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.ask(text(60))
    monkeypatch.setattr(slot_prefixes, "common_prefix", lambda *_, **__: pytest.fail("compared"))
    rig.memory.prefetch("r", Prompt(text(69)), lambda: None)


def test_a_prompt_that_comes_to_wait_does_not_have_another_compared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K45."""
    rig = Rig(disk=_disk(tmp_path, can_trim=True))
    rig.ask(text(60))
    prompt = Prompt(text(69))
    seq_id = rig.memory.choose_slot(prompt, rig.idle)
    rig.memory.prefetch("r", Prompt(text(30)), lambda: None)
    monkeypatch.setattr(slot_prefixes, "common_prefix", lambda *_, **__: pytest.fail("compared"))
    assert rig.memory.enter(seq_id, prompt) == 60
    rig.memory.close()


def test_a_restart_brings_back_what_was_on_disk(rig: Rig, tmp_path: Path) -> None:
    """S75."""
    before = Rig(rig.engine, disk=_disk(tmp_path, can_trim=_is_kv(rig)))
    first = before.ask(text(60))
    before.memory.close()
    rig.engine.trim(first.seq_id, 0)
    after = Rig(rig.engine, disk=_disk(tmp_path, can_trim=_is_kv(rig)))
    prompt = Prompt(first.tokens + text(3))
    has_read = threading.Event()
    after.memory.prefetch("r", prompt, has_read.set)
    assert has_read.wait(10)
    assert not after.memory.is_fetching("r")
    assert after.ask(prompt.tokens).n_held == len(first.tokens)
    assert after.memory.counters.tokens_from_disk == len(first.tokens)
    after.memory.close()


def test_an_engine_that_is_down_costs_the_disk_nothing_that_ram_has(tmp_path: Path) -> None:
    others = set(threading.enumerate())
    before = Rig(split_engine(n_slots=1), ram_bytes=1 << 20, disk=_disk(tmp_path, can_trim=True))
    before.ask(text(300))
    before.ask(text(300, seed=1))  # in the slot of the first, which is copied to RAM
    before.engine.shutdown()
    before.memory.clear()
    assert set(threading.enumerate()) <= others
    after = Rig(split_engine(n_slots=1), disk=_disk(tmp_path, can_trim=True))
    assert after.memory.gauges().disk_entries == 1
    after.memory.close()


def test_a_request_that_is_cancelled_while_the_disk_is_read_is_forgotten(tmp_path: Path) -> None:
    before = Rig(disk=_disk(tmp_path, can_trim=True))
    first = before.ask(text(60))
    before.memory.close()
    after = Rig(disk=_disk(tmp_path, can_trim=True))
    after.memory.prefetch("r", Prompt(first.tokens + text(3)), lambda: None)
    after.memory.drop_fetch("r")
    assert not after.memory.is_fetching("r")
    after.memory.close()


# Telling.


@pytest.mark.parametrize(("percent", "n_events"), [(5, 0), (10, 0), (30, 1), (50, 0), (60, 0)])
def test_a_session_whose_next_prompt_has_a_part_of_its_text_is_counted(
    percent: int, n_events: int, caplog: pytest.LogCaptureFixture
) -> None:
    """S38: 10 and 50 % are outside."""
    rig = Rig()
    left = rig.ask(text(195), session="s").tokens
    assert len(left) == 200
    rig.ask(left[: 2 * percent] + text(90, 5), session="s")
    assert rig.memory.counters.unstable_prefixes == n_events
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == n_events


def test_the_log_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    """S38."""
    rig = Rig()
    for seed in range(1, 4):
        rig.ask(SYSTEM + text(150, seed), session="s")
        rig.ask(SYSTEM + text(150, seed + 10), session="s")
    assert rig.memory.counters.unstable_prefixes == 5
    assert len(caplog.records) == 1


def test_a_short_text_and_a_new_conversation_are_not_counted() -> None:
    """S38: at least 64 tokens; K10: neither another conversation with the same system prompt, nor a prompt that a copy
    covers better than its slot."""
    rig = Rig(ram_bytes=10_000)
    rig.ask(text(58), session="s", n_drawn=5)
    rig.ask(text(20) + text(50, 5), session="s")
    rig = Rig(ram_bytes=10_000)
    a = rig.ask(SYSTEM + text(200, 1), session="a")
    rig.idle = [a.seq_id]
    rig.ask(SYSTEM + text(200, 2), session="b")
    assert rig.memory.counters.unstable_prefixes == 0
    rig.idle = [a.seq_id]
    b = rig.ask(SYSTEM + text(200, 2), session="b")
    rig.ask(a.tokens + text(3), session="b")
    assert b.seq_id == a.seq_id
    assert rig.memory.counters.tokens_from_ram >= len(a.tokens)
    assert rig.memory.counters.unstable_prefixes == 0


def test_prompts_with_something_new_near_the_beginning_are_counted() -> None:
    """S38, for clients that name no session."""
    rig = Rig()
    for number in range(3):
        rig.ask(text(30) + text(3, number + 20) + text(300, 5))
    assert rig.memory.counters.unstable_prefixes == 2


def test_slots_in_use_and_idle_ones_are_told_apart() -> None:
    rig = Rig()
    rig.ask(text(60), session="s")
    seq_id = rig.begin(Prompt(text(50, 1)))
    rig.feed(seq_id, 20)
    holders = [(holder.seq_id, holder.n_tokens, holder.session, holder.is_parked) for holder in rig.memory.holders()]
    assert holders == [(0, 65, "s", True), (1, 20, None, False)]
    gauges = rig.memory.gauges()
    assert (gauges.parked_sequences, gauges.parked_cells) == (1, 65)


def test_a_session_that_ends_while_slots_are_looked_at_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any thread may look."""
    rig = Rig()
    rig.ask(text(60), session="s")
    answers = iter([("", "s"), None])

    class Changing(slot_prefixes._Slot):
        __slots__ = ()

        @property
        def session(self) -> tuple[str, str] | None:
            return next(answers)

        @session.setter
        def session(self, _: object) -> None:
            pass

    monkeypatch.setattr(rig.memory, "_slots", [Changing()])
    assert [holder.session for holder in rig.memory.holders()] == ["s"]


def test_it_needs_an_idle_slot() -> None:
    with pytest.raises(ValueError, match="no slot is idle"):
        Rig().memory.choose_slot(Prompt(text(3)), [])


def _is_kv(rig: Rig) -> bool:
    return rig.engine.info.memory is MemoryKind.KV


def _disk(folder: Path, *, can_trim: bool) -> DiskTier:
    return DiskTier(folder, 1 << 20, b"f" * 32, can_trim=can_trim)
