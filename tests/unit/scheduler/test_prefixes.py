"""Prefixes in the scheduler: computed once, adopted, parked, evicted, and never a different text."""

from __future__ import annotations

import pytest

from llamaserve.config import CacheConfig, SchedulerConfig
from llamaserve.engine.fake import EOS, FakeEngine, letters, scripted
from llamaserve.engine.port import RowError
from llamaserve.errors import Cancelled, EngineError
from llamaserve.request import Failed, Finished, FinishReason, SamplingParams
from tests.unit.scheduler.harness import Harness, alone

PREFIX = bytes(range(1, 201))


def prompt(number: int, prefix: bytes = PREFIX) -> bytes:
    """A prompt with the shared prefix and an end of its own."""
    return prefix + bytes([201 + number]) + b"own"


OWN = prompt(0)[len(PREFIX) :]


def ask(harness: Harness, text: bytes, *, max_tokens: int | None = 8, **options: object) -> str:
    """Submit a request that uses the cache."""
    return harness.submit(text, max_tokens=max_tokens, cache_prompt=True, **options)  # type: ignore[arg-type]


def cached(harness: Harness, request_id: str) -> int:
    """Prompt tokens it did not compute."""
    return harness.finished(request_id).cached_tokens


def computed(harness: Harness) -> int:
    """Prompt tokens computed so far."""
    return harness.scheduler.stats().prompt_tokens


def test_s18_the_second_time_a_prompt_is_known() -> None:
    harness = Harness()
    first = ask(harness, prompt(1))
    harness.run()
    second = ask(harness, prompt(1))
    harness.run()
    assert cached(harness, first) == 0
    assert cached(harness, second) == len(prompt(1)) - 1
    assert harness.text(first) == harness.text(second) == alone(prompt(1))[0]


def test_s19_another_slot_has_the_system_prompt_too() -> None:
    harness = Harness()
    ask(harness, prompt(1))
    harness.run()
    others = [ask(harness, prompt(number)) for number in (2, 3, 4)]
    harness.run()
    assert [cached(harness, other) for other in others] == [len(PREFIX)] * 3
    assert [harness.text(other) for other in others] == [alone(prompt(number))[0] for number in (2, 3, 4)]


def test_k1_s22_s72_simultaneous_cold_starts_compute_a_prefix_once() -> None:
    harness = Harness(config=SchedulerConfig(prefill_chunk=64))
    ids = [ask(harness, prompt(number)) for number in range(16)]  # four times as many as there are slots
    harness.run()
    assert computed(harness) == len(PREFIX) + 16 * len(OWN)
    assert [harness.text(request_id) for request_id in ids] == [alone(prompt(number))[0] for number in range(16)]


def test_k1_equal_prompts_at_once_compute_all_but_the_last_token_once() -> None:
    harness = Harness(config=SchedulerConfig(prefill_chunk=64))
    ids = [ask(harness, PREFIX) for _ in range(4)]
    harness.run()
    assert computed(harness) == len(PREFIX) + 3
    assert {harness.text(request_id) for request_id in ids} == {alone(PREFIX)[0]}


def test_a_follower_takes_over_when_its_leader_is_cancelled() -> None:
    harness = Harness(config=SchedulerConfig(prefill_chunk=64))
    leader = ask(harness, prompt(1))
    followers = [ask(harness, prompt(number)) for number in (2, 3)]
    harness.tick()
    assert len(harness.engine.plans[-1].pieces) == 1, "those that wait compute nothing"
    harness.scheduler.cancel(leader)
    harness.run()
    assert isinstance(harness.error(leader), Cancelled)
    assert [harness.text(name) for name in followers] == [alone(prompt(number))[0] for number in (2, 3)]
    assert computed(harness) == len(PREFIX) + 2 * len(OWN), "what the leader had computed is not lost"


def test_a_follower_takes_over_when_its_leader_fails() -> None:
    harness = Harness(config=SchedulerConfig(prefill_chunk=64))
    leader = ask(harness, prompt(1))
    followers = [ask(harness, prompt(number)) for number in (2, 3)]
    harness.tick()
    harness.engine.fail_row(0, RowError.DECODE)
    harness.run()
    assert isinstance(harness.events[leader][-1], Failed)
    assert [harness.text(name) for name in followers] == [alone(prompt(number))[0] for number in (2, 3)]
    assert computed(harness) == 64 + len(PREFIX) + 2 * len(OWN), "the followers share what one of them computes"


def test_one_that_follows_is_cancelled_alone() -> None:
    harness = Harness(config=SchedulerConfig(prefill_chunk=64))
    leader, follower = ask(harness, prompt(1)), ask(harness, prompt(2))
    harness.tick()
    harness.scheduler.cancel(follower)
    harness.run()
    assert isinstance(harness.error(follower), Cancelled)
    assert harness.text(leader) == alone(prompt(1))[0]


def test_s24_the_donor_may_still_be_generating() -> None:
    harness = Harness()
    donor = ask(harness, PREFIX, max_tokens=100)
    harness.tick(20)
    said = harness.text(donor).encode()
    taker = ask(harness, PREFIX + said[:10] + b"!")
    while not harness.terminals(taker):
        harness.tick()
    assert not harness.terminals(donor)
    assert cached(harness, taker) == len(PREFIX) + 10
    harness.run()
    assert harness.text(donor) == alone(PREFIX, max_tokens=100)[0]
    assert harness.text(taker) == alone(PREFIX + said[:10] + b"!")[0]


def test_s17_without_cache_prompt_nothing_is_reused_and_nothing_left() -> None:
    harness = Harness()
    ask(harness, prompt(1))
    harness.run()
    n_before = harness.engine.used_cells()
    off = harness.submit(prompt(1))
    harness.run()
    assert cached(harness, off) == 0
    assert harness.engine.used_cells() == n_before
    assert harness.text(off) == alone(prompt(1))[0]


def test_s17_one_that_leaves_nothing_is_no_donor_while_it_runs() -> None:
    harness = Harness()
    harness.submit(prompt(1), max_tokens=50)
    harness.tick(5)
    other = ask(harness, prompt(2))
    harness.run()
    assert cached(harness, other) == 0


def test_k40_salts_share_nothing() -> None:
    harness = Harness(config=SchedulerConfig(prefill_chunk=64))
    ids = [ask(harness, prompt(1), cache_salt=salt) for salt in ("a", "b", "")]
    harness.run()
    assert [cached(harness, name) for name in ids] == [0, 0, 0]
    again = ask(harness, prompt(1), cache_salt="a")
    harness.run()
    assert cached(harness, again) == len(prompt(1)) - 1
    assert computed(harness) == 3 * len(prompt(1)) + 1


REPLY = b"a reply of some length"


@pytest.mark.parametrize("kind", ["eos", "length", "stop", "cancel_decode", "cancel_prefill"])
def test_k108_k109_k147_what_every_end_leaves_goes_on_as_if_computed(kind: str) -> None:
    """S-retention: the cells left are those of the tokens they are found by, for every finish."""
    script = {PREFIX.decode("latin-1"): REPLY}
    continuation = letters if kind == "length" else scripted(script)
    if kind != "length":
        continuation = _reply_after(PREFIX, REPLY)
    harness = Harness(FakeEngine(continuation=continuation), SchedulerConfig(prefill_chunk=64))
    stop = ("length",) if kind == "stop" else ()
    first = ask(harness, PREFIX, max_tokens=None if kind == "eos" else 12 if kind == "length" else 100, stop=stop)
    if kind == "cancel_prefill":
        harness.tick(2)
        harness.scheduler.cancel(first)
    elif kind == "cancel_decode":
        harness.tick(8)
        harness.scheduler.cancel(first)
    harness.run()
    _check_parked(harness)
    said = bytes(token for token in harness.tokens(first) if token < EOS)
    turn = PREFIX + said + b" and on"
    second = ask(harness, turn)
    harness.run()
    n_left = {"cancel_prefill": 128, "eos": len(PREFIX + said)}.get(kind, len(PREFIX + said) - 1)
    assert cached(harness, second) == n_left
    cold = Harness(FakeEngine(continuation=continuation))
    alone_id = cold.submit(turn)
    cold.run()
    assert harness.tokens(second) == cold.tokens(alone_id)


def _reply_after(text: bytes, reply: bytes):  # type: ignore[no-untyped-def]
    def continuation(history: tuple[int, ...]) -> int:
        said = bytes(token for token in history if token < EOS)
        if said.startswith(text) and reply.startswith(said[len(text) :]):
            rest = reply[len(said) - len(text) :]
            return rest[0] if rest else EOS
        return letters(history)

    return continuation


def _check_parked(harness: Harness) -> None:
    """Every parked id holds just the tokens the index says."""
    index = harness.prefixes._index  # type: ignore[attr-defined]
    n_slots = harness.engine.info.n_slots
    for seq_id in range(n_slots, harness.engine.n_ids):
        held = harness.engine.tokens(seq_id)
        assert held == (tuple(index.tokens(seq_id)) if seq_id in index else ())
    assert harness.engine.used_cells() == index.n_cells


def test_k110_a_sequence_that_could_not_go_back_leaves_nothing() -> None:
    harness = Harness()
    name = ask(harness, PREFIX, max_tokens=100, stop=(alone(PREFIX, max_tokens=20)[0][5:9],))
    harness.engine.fail_rewinds(1)
    harness.run()
    assert isinstance(harness.events[name][-1], Failed)
    assert harness.engine.used_cells() == 0
    after = ask(harness, PREFIX)
    harness.run()
    assert cached(harness, after) == 0


def test_a_failed_request_leaves_nothing() -> None:
    harness = Harness()
    ask(harness, PREFIX, max_tokens=50)
    harness.tick(5)
    harness.engine.fail_row(0, RowError.DECODE)
    harness.run()
    assert harness.engine.used_cells() == 0


def test_equal_texts_are_merged_when_they_are_parked() -> None:
    """Two sequences that computed the same tokens: the copy is freed."""
    harness = Harness()
    for _ in range(2):
        ask(harness, PREFIX, max_tokens=20)
    harness.run()
    assert harness.engine.used_cells() == len(PREFIX) + 19
    assert harness.scheduler.stats().prefix.merged_tokens >= 19
    _check_parked(harness)


def test_a_conversation_keeps_one_parked_sequence() -> None:
    harness = Harness()
    text = PREFIX
    for turn in range(5):
        name = ask(harness, text + f"turn {turn}".encode())
        harness.run()
        text = text + f"turn {turn}".encode() + harness.text(name).encode()
    assert harness.scheduler.stats().prefix_gauges.parked_sequences == 1
    assert computed(harness) == len(PREFIX) + 5 * len(b"turn 0") + 4  # each reply's last token was never fed


def test_k4_what_was_used_longest_ago_is_evicted_and_a_shared_prefix_last() -> None:
    harness = Harness(FakeEngine(n_ctx=512, n_slots=2))
    for number in range(20):
        ask(harness, prompt(number) + bytes([201 + number]) * 20)
        harness.run()
        _check_parked(harness)
    stats = harness.scheduler.stats()
    assert stats.prefix.evictions > 0
    assert stats.prefix.misses == 1, "all but the first found the prefix, which its old ends did not take along"
    latest = ask(harness, prompt(19) + bytes([220]) * 20)
    harness.run()
    assert cached(harness, latest) == len(prompt(19)) + 19


def test_s30_a_tiny_request_does_not_evict_a_long_cache() -> None:
    """Where the cache is full, a long text loses its end only."""
    harness = Harness(FakeEngine(n_ctx=512, n_slots=1))
    long = bytes(range(200)) * 2 + bytes(range(50, 105))
    ask(harness, long, max_tokens=2)
    harness.run()
    ask(harness, bytes([250]) * 60)
    harness.run()
    assert harness.scheduler.stats().prefix.evictions == 1
    again = ask(harness, long)
    harness.run()
    assert cached(harness, again) >= len(long) - 140
    assert harness.text(again) == alone(long)[0]


def test_k2_a_new_conversation_does_not_cut_anothers_history() -> None:
    harness = Harness(FakeEngine(n_slots=1))
    first = ask(harness, PREFIX + b"a long history of one conversation")
    harness.run()
    ask(harness, PREFIX + b"another")
    harness.run()
    turn = PREFIX + b"a long history of one conversation" + harness.text(first).encode()[:-1]
    again = ask(harness, turn + b"?")
    harness.run()
    assert cached(harness, again) == len(turn)


def test_s31_k3_a_session_is_kept_longer_than_what_was_used_after_it() -> None:
    harness = Harness(FakeEngine(n_ctx=512, n_slots=1))
    ask(harness, bytes([7]) * 150, session="mine")
    harness.run()
    for number in range(6):
        ask(harness, bytes([20 + number]) * 150)
        harness.run()
    assert harness.scheduler.stats().prefix.evictions > 0
    again = ask(harness, bytes([7]) * 150, session="mine")
    harness.run()
    assert cached(harness, again) == 149


def test_sessions_cannot_starve_others() -> None:
    """Pins end at half of the cells: the rest stays with others."""
    harness = Harness(FakeEngine(n_ctx=512, n_slots=1))
    for number in range(6):
        ask(harness, bytes([20 + number]) * 150, session=f"s{number}")
        harness.run()
    pinned = [holder for holder in harness.scheduler.holders() if holder.session is not None]
    assert sum(holder.n_tokens for holder in pinned) <= 256
    assert pinned[-1].session == "s5"
    big = ask(harness, bytes([99]) * 400)
    harness.run()
    assert harness.finished(big).reason is FinishReason.LENGTH


def test_s10_parked_sequences_give_way_to_a_request_that_needs_the_whole_context() -> None:
    harness = Harness(FakeEngine(n_ctx=256))
    for number in range(4):
        ask(harness, bytes([number + 1]) * 60)
        harness.run()
    big = ask(harness, bytes([77]) * 240)
    harness.run()
    assert isinstance(harness.events[big][-1], Finished)
    assert harness.scheduler.stats().preemptions == 0
    _check_parked(harness)


def test_the_engine_is_believed_when_it_has_less_room_than_the_books_say() -> None:
    """A row that finds no cell although there should be some: whatever is parked may be purged, before anybody is
    preempted or fails."""
    harness = Harness()
    ask(harness, PREFIX)
    harness.run()
    name = ask(harness, b"something else", max_tokens=30)
    harness.tick(3)
    harness.engine.fail_row(harness.engine.opened[-1].seq_id, RowError.CONTEXT_FULL)
    harness.tick()
    harness.tick()
    assert list(harness.engine.plans[-1].purge) == [harness.engine.info.n_slots]
    harness.run()
    assert harness.text(name) == alone(b"something else", max_tokens=30)[0]
    assert harness.scheduler.stats().preemptions == 0


def test_a_copy_that_fails_costs_the_hit_and_nothing_else() -> None:
    harness = Harness()
    ask(harness, PREFIX)
    harness.run()
    harness.engine.fail_adopts(1)
    second = ask(harness, PREFIX)
    harness.run()
    assert cached(harness, second) == 0
    assert harness.text(second) == alone(PREFIX)[0]
    _check_parked(harness)


def test_penalties_see_an_adopted_prompt() -> None:
    """The sampler's history is given at open, not with pieces it never sees."""
    harness = Harness()
    ask(harness, PREFIX)
    harness.run()
    sampling = SamplingParams(repeat_penalty=1.5, repeat_last_n=10)
    ask(harness, PREFIX, sampling=sampling)
    harness.run()
    assert tuple(harness.engine.opened[0].history) == ()
    assert tuple(harness.engine.opened[-1].history) == tuple(PREFIX[-10:])


def test_s38_k10_unstable_prefixes() -> None:
    """A session that lost half of its history counts, a new conversation with a known system prompt does not."""
    harness = Harness()
    history = bytes(range(1, 201))
    ask(harness, history, session="s")
    harness.run()
    for n_kept, n_expected in ((10, 0), (60, 1), (120, 1)):
        ask(harness, history[:n_kept] + bytes([250]) * 150, session="s")
        harness.run()
        assert harness.scheduler.stats().prefix.unstable_prefixes == n_expected, n_kept
        ask(harness, history, session="s")
        harness.run()
    ask(harness, history[:60] + b"a new conversation" * 8)
    harness.run()
    assert harness.scheduler.stats().prefix.unstable_prefixes == 1


def test_a_nonce_in_the_first_message_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    for number in range(3):
        ask(harness, f"request {number:08}: ".encode() + PREFIX)
        harness.run()
    assert harness.scheduler.stats().prefix.unstable_prefixes == 2
    assert len([record for record in caplog.records if "near the beginning" in record.message]) == 1


def spilling(most_parked: int = 100, **sizes: int) -> Harness:
    """A harness with a RAM tier that is larger than the KV cache."""
    engine = FakeEngine(n_ctx=512, bytes_per_cell=64, **sizes)  # type: ignore[arg-type]  # every size is an int
    return Harness(engine, cache=CacheConfig(cache_ram=1, cache_cells=most_parked))


def test_k146_parked_cells_move_to_ram_while_somebody_runs() -> None:
    """And come back: nothing is computed again."""
    harness = spilling()
    ask(harness, PREFIX)
    harness.run()
    assert harness.scheduler.stats().prefix_gauges.parked_cells > 100, "nobody runs: nobody is in anybody's way"
    other = ask(harness, bytes([250]) * 20, max_tokens=60)
    harness.tick(10)
    stats = harness.scheduler.stats()
    assert stats.prefix_gauges.parked_cells <= 100
    assert stats.prefix.saves == stats.prefix_gauges.ram_entries == 1
    again = ask(harness, PREFIX)
    harness.run()
    assert cached(harness, again) == len(PREFIX) - 1
    assert harness.scheduler.stats().prefix.tokens_from_ram > 0
    assert harness.text(again) == alone(PREFIX)[0]
    assert harness.text(other) == alone(bytes([250]) * 20, max_tokens=60)[0]


def test_without_room_in_ram_parked_cells_stay() -> None:
    engine = FakeEngine(n_ctx=512, bytes_per_cell=4096)  # two MiB of cells, one of RAM
    harness = Harness(engine, cache=CacheConfig(cache_ram=1, cache_cells=100))
    for number in range(2):
        ask(harness, bytes([number + 1]) * 120)
        harness.run()
    ask(harness, bytes([250]) * 20, max_tokens=60)
    harness.tick(10)
    assert harness.scheduler.stats().prefix.evictions <= 1, "the first copy shows what a token takes"
    assert harness.scheduler.stats().prefix_gauges.parked_cells > 100


def test_without_ram_parked_cells_stay() -> None:
    harness = Harness(cache=CacheConfig(cache_ram=0, cache_cells=0))
    ask(harness, PREFIX)
    harness.run()
    ask(harness, b"other", max_tokens=60)
    harness.tick(10)
    assert harness.scheduler.stats().prefix_gauges.parked_cells >= len(PREFIX)


def test_groups_with_prefixes_of_their_own_share_them_although_all_begin_alike() -> None:
    """K1, S22: every chat template has a head that all prompts have in common."""
    heads = [b"<s>" + bytes([number + 1]) * 200 for number in range(2)]
    harness = Harness(config=SchedulerConfig(prefill_chunk=64))
    ids = [ask(harness, heads[number % 2] + bytes([201 + number]) + b"own") for number in range(16)]
    harness.run()
    assert computed(harness) == 3 + 2 * 200 + 16 * 4
    texts = [alone(heads[number % 2] + bytes([201 + number]) + b"own")[0] for number in range(16)]
    assert [harness.text(name) for name in ids] == texts


def test_a_leader_that_does_not_get_on_is_not_waited_for_when_little_is_in_common() -> None:
    """A short prompt does not wait behind a long one's turn for the sake of its first letters."""
    harness = Harness(FakeEngine(n_batch=16), SchedulerConfig(prefill_chunk=16))
    first = ask(harness, bytes([9]) * 300)
    harness.tick()
    second = ask(harness, b"ab" + bytes([8]) * 300)
    third = ask(harness, b"ac", max_tokens=1)
    for _ in range(60):
        harness.tick()
    assert not harness.terminals(first) or harness.terminals(third)
    harness.run()
    assert harness.text(second) == alone(b"ab" + bytes([8]) * 300)[0]


def test_a_request_that_cannot_be_opened_leaves_the_slot_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had adopted a prefix; the next one in that slot must not go on from it."""
    harness = Harness(FakeEngine(n_slots=1))
    ask(harness, PREFIX)
    harness.run()
    with monkeypatch.context() as patch:
        patch.setattr(harness.engine, "open", _refuse)
        failed = ask(harness, PREFIX + b"!")
        harness.run()
    assert isinstance(harness.events[failed][-1], Failed)
    assert harness.engine.tokens(0) == ()
    after = harness.submit(b"something else")
    harness.run()
    assert harness.text(after) == alone(b"something else")[0]


def _refuse(spec: object) -> None:
    raise EngineError("scripted")


@pytest.mark.parametrize("session", [None, "mine"])
def test_a_request_cancelled_before_it_computed_anything_costs_no_prefix(session: str | None) -> None:
    harness = Harness()
    ask(harness, PREFIX, session=session)
    harness.run()
    said = harness.tokens("r0")
    turn = PREFIX + bytes(said[:-1]) + b"?"
    dropped = ask(harness, turn, session=session)
    harness.scheduler._take_commands()  # it has a slot and no step yet
    harness.scheduler._admit()
    harness.scheduler.cancel(dropped)
    harness.run()
    assert isinstance(harness.error(dropped), Cancelled)
    again = ask(harness, turn, session=session)
    harness.run()
    assert cached(harness, again) == len(turn) - 1


def test_a_sequence_id_that_cannot_be_emptied_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    ask(harness, PREFIX)
    harness.run()
    n_free = len(harness.prefixes._parked.free_ids)  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(harness.engine, "trim", lambda seq_id, n_tokens: False)
        ask(harness, PREFIX + b" and on")
        harness.scheduler.tick()
        while harness.scheduler.tick():
            pass
    assert len(harness.prefixes._parked.free_ids) == n_free - 1  # type: ignore[attr-defined]


def test_more_conversations_than_ids() -> None:
    """The one used longest ago gives its id up, and goes to RAM."""
    harness = Harness(FakeEngine(n_ctx=65_536, n_batch=512), cache=CacheConfig(cache_ram=1, cache_cells=65_536))
    for number in range(300):
        ask(harness, bytes([number % 251, number // 251]) + bytes([number % 200 + 5]) * 60, max_tokens=2)
        harness.run()
    assert harness.scheduler.stats().prefix_gauges.parked_sequences == 252
    first = ask(harness, bytes([0, 0]) + bytes([5]) * 60)
    harness.run()
    assert cached(harness, first) == 61
    assert harness.scheduler.stats().prefix.tokens_from_ram > 0


def test_a_restored_text_takes_one_id_however_many_copies_it_had() -> None:
    harness = Harness(FakeEngine(n_ctx=8192, n_batch=512), cache=CacheConfig(cache_ram=1, cache_cells=100))
    long = bytes(number * 7 % 251 for number in range(5000))
    ask(harness, long, max_tokens=2)
    harness.run()
    ask(harness, bytes([255]) * 10, max_tokens=80)
    harness.tick(20)
    assert harness.scheduler.stats().prefix_gauges.ram_entries >= 4
    again = ask(harness, long, max_tokens=2)
    harness.run()
    assert cached(harness, again) == len(long) - 1
    assert harness.scheduler.stats().prefix_gauges.parked_sequences <= 3


@pytest.mark.parametrize("n_tokens", [1010, 1024, 1030, 1050, 1060, 2060])
def test_a_spilled_text_comes_back_whole_whatever_its_length(n_tokens: int) -> None:
    """No piece stays that is too short for a copy of its own: those behind it would have nothing to go on from."""
    harness = Harness(FakeEngine(n_ctx=4096), cache=CacheConfig(cache_ram=1, cache_cells=0))
    text = bytes(number * 7 % 251 for number in range(n_tokens))
    ask(harness, text, max_tokens=2)
    harness.run()
    ask(harness, bytes([255]) * 10, max_tokens=60)
    harness.tick(20)
    assert harness.scheduler.stats().prefix_gauges.parked_cells <= 256 < n_tokens
    again = ask(harness, text, max_tokens=2)
    harness.run()
    assert cached(harness, again) == n_tokens - 1


def test_a_copy_that_cannot_fit_evicts_nobody() -> None:
    """And what is there of the prompt is used."""
    harness = Harness(FakeEngine(n_ctx=1024, n_slots=2), cache=CacheConfig(cache_ram=1, cache_cells=0))
    long = bytes(number * 7 % 251 for number in range(700))
    ask(harness, long, max_tokens=2)
    harness.run()
    ask(harness, bytes([255]) * 300, max_tokens=400)
    harness.tick(20)  # the long text is in RAM, and something runs that leaves it no room
    start = ask(harness, long[:100] + b"!", max_tokens=2)
    while not harness.terminals(start):
        harness.tick()
    n_evicted = harness.scheduler.stats().prefix.evictions
    harness.prefixes.make_room(0)
    taker = ask(harness, long[:90] + b"?", max_tokens=2)
    while not harness.terminals(taker):
        harness.tick()
    assert cached(harness, taker) >= 90 or harness.scheduler.stats().prefix.restores > 0
    assert harness.scheduler.stats().prefix.evictions <= n_evicted + 2


def test_a_restore_when_ids_run_out_costs_nobody_an_error() -> None:
    """253 sessions hold nearly all ids; the text that is restored goes on from the last one that is not pinned."""
    cache = CacheConfig(cache_ram=1, cache_cells=65_536)
    harness = Harness(FakeEngine(n_ctx=65_536, n_slots=2), cache=cache)
    x = bytes(number * 7 % 251 for number in range(400))
    ask(harness, x, max_tokens=2)
    harness.run()
    harness.prefixes.make_room(65_536)  # x is in RAM
    ask(harness, x[:100] + bytes([250]), max_tokens=1)
    harness.run()
    for number in range(300):
        ask(harness, bytes([number % 251, number // 251, 3, 4]), max_tokens=1, session=f"s{number}")
        harness.run()
    again = ask(harness, x, max_tokens=2)
    harness.run()
    assert harness.text(again) == alone(x, max_tokens=2)[0]
    assert isinstance(harness.events[again][-1], Finished)
