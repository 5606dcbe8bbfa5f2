"""The laws of what sequence ids hold (``engine.port``): kept, shared, cut, copied, gone back to.

As those of ``engine_laws``, and for the same engines. A law that needs memory which can share says what the others
answer instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from llamaserve.engine.port import Engine, PromptPiece, SequenceSpec, StepPlan
from llamaserve.errors import BadToken, EngineDown, EngineError
from llamaserve.request import SamplingParams
from tests.engine_laws import GREEDY, N_TOKENS, PENALISED, SEEDED, Law, close_all, prompt_of, token_of

ROOM = 2**30
"""Bytes more than any copy here takes."""
CUT = 9
"""Where the prompts of these laws are cut; shorter than each of them."""


def feed(engine: Engine, seq_id: int, tokens: Sequence[int], *, draw: bool) -> int | None:
    """Compute a piece of a prompt; the token drawn."""
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(seq_id, tokens, is_last=draw)]))
    assert row.error is None, row.message
    return row.token


def decode(engine: Engine, seq_id: int, tokens: list[int], n_tokens: int, *, ahead: bool = False) -> None:
    """Go on with a text until it has so many tokens."""
    while len(tokens) < n_tokens:
        (row,) = engine.collect(engine.submit(StepPlan(decode=[seq_id]), ahead=ahead))
        tokens.append(token_of(row))


def finish(engine: Engine, seq_id: int, rest: Sequence[int], n_tokens: int = N_TOKENS) -> list[int]:
    """Compute what is left of a prompt and draw, alone; the sequence stays open."""
    first = feed(engine, seq_id, rest, draw=True)
    assert first is not None
    tokens = [first]
    decode(engine, seq_id, tokens, n_tokens)
    return tokens


def hold(engine: Engine, seq_id: int, tokens: Sequence[int]) -> None:
    """Have a slot hold just these, without a request."""
    engine.open(SequenceSpec(seq_id, GREEDY))
    feed(engine, seq_id, tokens, draw=False)
    assert engine.close(seq_id, keep=True)
    assert engine.length(seq_id) == len(tokens)


def cold(engine: Engine, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> list[int]:
    """The tokens after a prompt that nothing was reused for, computed in two pieces as below."""
    engine.open(SequenceSpec(0, sampling, prompt))
    feed(engine, 0, prompt[:CUT], draw=False)
    tokens = finish(engine, 0, prompt[CUT:])
    close_all(engine)
    return tokens


def diverging(engine: Engine) -> tuple[int, ...]:
    """A prompt that is the first one up to the cut, and another afterwards."""
    return (*prompt_of(engine, 0)[:CUT], *prompt_of(engine, 1)[CUT:])


def refuses(call: Callable[[], object]) -> bool:
    """Whether a call raises EngineError."""
    try:
        call()
    except EngineError:
        return True
    return False


def last_id(engine: Engine) -> int:
    """An id no slot has, where there are such."""
    return engine.n_ids - 1


def what_is_kept_goes_on(engine: Engine) -> None:
    """S25, K1: under the id of the slot, with another sampler; a kept id has no row in a step."""
    prompt = prompt_of(engine)
    expected = cold(engine, prompt)
    hold(engine, 1, prompt[:CUT])
    assert engine.used_cells() == CUT
    with pytest.raises(EngineError):
        engine.submit(StepPlan(pieces=[PromptPiece(1, prompt[CUT:], is_last=True)]))
    assert not engine.close(1, keep=True)
    assert not engine.close(1)
    assert engine.length(1) == CUT
    engine.open(SequenceSpec(1, GREEDY))
    tokens = finish(engine, 1, prompt[CUT:], 3)

    engine.close(1, keep=True)
    assert engine.length(1) == engine.used_cells() == len(prompt) + 2
    engine.open(SequenceSpec(1, GREEDY))
    tokens += finish(engine, 1, tokens[2:3], N_TOKENS - 3)
    assert tokens == expected
    engine.close(1)
    assert engine.length(1) == engine.used_cells() == 0


def penalties_look_back_on_the_history(engine: Engine) -> None:
    """S46: a sequence that goes on from a kept prefix draws as one that computed it."""
    prompt = prompt_of(engine)
    for sampling in (SEEDED, PENALISED):
        expected = cold(engine, prompt, sampling)
        hold(engine, 1, prompt[:CUT])
        engine.open(SequenceSpec(1, sampling, prompt))
        assert finish(engine, 1, prompt[CUT:]) == expected
        close_all(engine)
    for token in (-1, engine.info.n_vocab):
        with pytest.raises(BadToken):
            engine.open(SequenceSpec(0, GREEDY, (*prompt, token)))
    assert not engine.close(0)


def an_adopted_prefix_counts_as_computed(engine: Engine) -> None:
    """S19, S22, D7: the text is the cold one, and shared cells count once; they live as long as somebody holds them."""
    prompt = prompt_of(engine)
    expected = cold(engine, prompt)
    hold(engine, 0, prompt)
    if not engine.can_share:
        with pytest.raises(EngineError):
            engine.adopt(1, 0, CUT)
        return
    parked = last_id(engine)
    engine.adopt(parked, 0, CUT)
    assert engine.used_cells() == len(prompt)
    assert engine.trim(0, 0)
    assert engine.used_cells() == engine.length(parked) == CUT
    engine.adopt(2, parked, CUT)
    engine.open(SequenceSpec(2, GREEDY))
    assert finish(engine, 2, prompt[CUT:]) == expected
    assert engine.used_cells() == len(prompt) + N_TOKENS - 1
    assert engine.trim(parked, 0)
    assert engine.used_cells() == len(prompt) + N_TOKENS - 1
    engine.close(2)
    assert engine.used_cells() == 0


def a_running_sequence_is_adopted_from(engine: Engine) -> None:
    """S19, L25, K109: also with a step ahead, whose cells are nobody's; the source goes on as if nothing were."""
    if not engine.can_share:
        return
    prompt = prompt_of(engine)
    expected = cold(engine, prompt)
    engine.open(SequenceSpec(0, GREEDY))
    feed(engine, 0, prompt[:CUT], draw=False)
    source = finish(engine, 0, prompt[CUT:], 1)
    decode(engine, 0, source, 3, ahead=True)
    engine.open(SequenceSpec(1, GREEDY))
    engine.adopt(1, 0, len(prompt) + 2)
    assert list(engine.ahead_rows) == []
    assert engine.used_cells() == engine.length(0) == engine.length(1) == len(prompt) + 2
    assert finish(engine, 1, source[2:3], N_TOKENS - 3) == expected[3:]
    decode(engine, 0, source, N_TOKENS)
    assert source == expected


def a_prompt_that_is_computed_may_adopt_the_rest(engine: Engine) -> None:
    """K3, S20: it keeps the cells it has; those of others follow."""
    if not engine.can_share:
        return
    prompt = prompt_of(engine)
    expected = cold(engine, prompt)
    hold(engine, 0, prompt)
    engine.open(SequenceSpec(1, GREEDY))
    feed(engine, 1, prompt[:4], draw=False)
    engine.adopt(1, 0, len(prompt) - 1)
    assert engine.used_cells() == len(prompt) + 4
    assert engine.trim(0, 0)
    assert engine.used_cells() == len(prompt) - 1
    assert finish(engine, 1, prompt[-1:]) == expected


def a_resumed_sequence_goes_on_from_what_its_id_holds(engine: Engine) -> None:
    """S10, S19: the tokens it had may be adopted instead of computed again."""
    if not engine.can_share:
        return
    prompt = prompt_of(engine)
    expected = cold(engine, prompt)
    engine.open(SequenceSpec(0, GREEDY))
    feed(engine, 0, prompt[:CUT], draw=False)
    tokens = finish(engine, 0, prompt[CUT:], 3)
    parked = last_id(engine)
    engine.adopt(parked, 0, len(prompt))
    suspended = engine.suspend(0, 0)
    engine.adopt(1, parked, CUT)
    assert engine.resume(1, suspended)
    engine.adopt(1, parked, len(prompt))
    assert feed(engine, 1, tokens[:2], draw=False) is None
    with pytest.raises(EngineError):
        engine.adopt(1, parked, len(prompt))
    decode(engine, 1, tokens, N_TOKENS)
    assert tokens == expected


def a_suspended_sequence_wants_an_id_that_holds_nothing_else(engine: Engine) -> None:
    """K147: an id that holds more than it had, or anything when it has its own cells, is refused."""
    prompt = prompt_of(engine)
    engine.open(SequenceSpec(0, GREEDY))
    tokens = finish(engine, 0, prompt, 2)
    suspended = engine.suspend(0, ROOM)
    hold(engine, 1, prompt[:CUT])
    with pytest.raises(EngineError):
        engine.resume(1, suspended)
    assert engine.resume(0, suspended)
    suspended = engine.suspend(0, 0)
    hold(engine, 2, (*prompt, *tokens))
    with pytest.raises(EngineError):
        engine.resume(2, suspended)
    assert engine.resume(0, suspended)


def a_bad_adopt_is_refused_and_changes_nothing(engine: Engine) -> None:
    """K26, K126: llama.cpp aborts on some of these."""
    prompt = prompt_of(engine)
    expected = cold(engine, prompt)
    hold(engine, 0, prompt)
    engine.open(SequenceSpec(1, GREEDY))
    feed(engine, 1, prompt[:CUT], draw=False)
    tokens = finish(engine, 1, prompt[CUT:], 2)
    bad: dict[str, tuple[int, int, int]] = {
        "drawn": (1, 0, len(prompt)),
        "itself": (0, 0, len(prompt) + 1),
        "more than it has": (2, 0, len(prompt) + 1),
        "nothing": (2, 0, 0),
        "a negative length": (2, 0, -1),
        "fewer than held": (0, 1, CUT),
        "from nothing": (0, 2, len(prompt) + 1),
        "a negative id": (-1, 0, CUT),
        "an id too large": (engine.n_ids, 0, CUT),
        "the largest id": (2**31 - 1, 0, CUT),
        "a negative source": (2, -1, CUT),
        "a source too large": (2, engine.n_ids, CUT),
    }
    used = engine.used_cells()
    for name, arguments in bad.items():
        assert refuses(partial(engine.adopt, *arguments)), name
    assert engine.used_cells() == used
    assert [engine.length(seq_id) for seq_id in range(3)] == [len(prompt), len(prompt) + 1, 0]
    decode(engine, 1, tokens, N_TOKENS)
    assert tokens == expected


def what_is_trimmed_is_computed_again(engine: Engine) -> None:
    """F5, K41: or the answer is no, and the id holds what it held."""
    prompt = prompt_of(engine)
    expected = cold(engine, prompt)
    other = cold(engine, diverging(engine))
    hold(engine, 0, prompt)
    is_cut = engine.trim(0, CUT)
    assert is_cut or not engine.can_share
    assert engine.length(0) == engine.used_cells() == (CUT if is_cut else len(prompt))
    if is_cut:
        engine.open(SequenceSpec(0, GREEDY))
        assert finish(engine, 0, diverging(engine)[CUT:]) == other
        engine.close(0, keep=True)
    assert engine.trim(0, engine.length(0))
    assert engine.trim(0, 0)
    assert engine.length(0) == engine.used_cells() == 0
    assert cold(engine, prompt) == expected


def a_bad_trim_is_refused_and_changes_nothing(engine: Engine) -> None:
    """K26, K126."""
    prompt = prompt_of(engine)
    expected = cold(engine, prompt)
    hold(engine, 0, prompt[:CUT])
    engine.open(SequenceSpec(1, GREEDY))
    feed(engine, 1, prompt[:CUT], draw=False)
    for seq_id, n_tokens in ((0, -1), (0, CUT + 1), (1, 0), (1, 3), (-1, 0), (engine.n_ids, 0), (2, 1)):
        with pytest.raises(EngineError):
            engine.trim(seq_id, n_tokens)
    assert engine.length(0) == engine.length(1) == CUT
    assert finish(engine, 1, prompt[CUT:]) == expected
    for seq_id in (-1, engine.n_ids, 2**31 - 1):
        with pytest.raises(EngineError):
            engine.length(seq_id)


def a_copy_is_what_was_saved(engine: Engine) -> None:
    """S33, S36, K6: asked for its size before it is made, through plain bytes, and the source goes on as before."""
    prompt = prompt_of(engine)
    expected = cold(engine, prompt)
    engine.open(SequenceSpec(0, GREEDY))
    feed(engine, 0, prompt[:CUT], draw=False)
    state = engine.save(0, 0, ROOM)
    assert state is not None
    assert (state.start, state.end, state.n_bytes) == (0, CUT, len(state.view()))
    assert engine.save(0, 0, state.n_bytes - 1) is None
    assert engine.save(0, 0, 0) is None
    assert engine.save(0, 0, -1) is None
    exact = engine.save(0, 0, state.n_bytes)
    assert exact is not None
    assert engine.used_cells() == CUT
    assert finish(engine, 0, prompt[CUT:]) == expected

    data = bytes(state.view())
    view = state.view()
    del state
    assert bytes(view) == data, "a view keeps its state alive"
    assert engine.restore(1, engine.load_state(data, 0, CUT))
    assert engine.length(1) == CUT
    engine.open(SequenceSpec(1, GREEDY))
    assert finish(engine, 1, prompt[CUT:]) == expected
    assert engine.restore(2, exact)
    assert engine.used_cells() == CUT + 2 * (len(prompt) + N_TOKENS - 1)


def copies_of_parts_are_put_together(engine: Engine) -> None:
    """S33, S34: each goes behind the one before."""
    prompt = prompt_of(engine)
    expected = cold(engine, prompt)
    hold(engine, 0, prompt)
    if not engine.can_share:
        with pytest.raises(EngineError):
            engine.save(0, 1, ROOM)
        return
    parts = []
    for start, end in ((0, 4), (4, 5), (5, len(prompt) - 1)):
        engine.adopt(1, 0, end)
        part = engine.save(1, start, ROOM)
        assert part is not None
        assert (part.start, part.end) == (start, end)
        parts.append(part)
    assert engine.trim(0, 0)
    assert engine.trim(1, 4)
    assert engine.restore(1, parts[1])
    assert engine.restore(1, parts[2])
    parked = last_id(engine)
    for part in parts:
        assert engine.restore(parked, part)
    assert engine.used_cells() == 2 * (len(prompt) - 1)
    engine.open(SequenceSpec(1, GREEDY))
    assert finish(engine, 1, prompt[-1:]) == expected
    engine.adopt(2, parked, len(prompt) - 1)
    engine.open(SequenceSpec(2, GREEDY))
    assert finish(engine, 2, prompt[-1:]) == expected


def a_bad_save_or_restore_is_refused_and_changes_nothing(engine: Engine) -> None:
    """K26, K126."""
    prompt = prompt_of(engine)
    expected = cold(engine, prompt)
    hold(engine, 0, prompt[:CUT])
    state = engine.save(0, 0, ROOM)
    assert state is not None
    engine.open(SequenceSpec(1, GREEDY))
    data = state.view()
    bad_calls: list[Callable[[], object]] = [
        lambda: engine.save(0, CUT, ROOM),
        lambda: engine.save(0, -1, ROOM),
        lambda: engine.save(2, 0, ROOM),
        lambda: engine.save(-1, 0, ROOM),
        lambda: engine.save(engine.n_ids, 0, ROOM),
        lambda: engine.restore(0, state),
        lambda: engine.restore(1, state),
        lambda: engine.restore(-1, state),
        lambda: engine.restore(engine.n_ids, state),
        lambda: engine.restore(2, engine.load_state(data, 1, CUT + 1)),
        lambda: engine.load_state(data, -1, CUT),
        lambda: engine.load_state(data, CUT, CUT),
        lambda: engine.go_back(0, state),
    ]
    for index, call in enumerate(bad_calls):
        assert refuses(call), index
    assert [engine.length(seq_id) for seq_id in range(3)] == [CUT, 0, 0]
    feed(engine, 1, prompt[:CUT], draw=False)
    assert finish(engine, 1, prompt[CUT:]) == expected


def a_copy_without_room_is_not_restored(engine: Engine) -> None:
    """S33: the answer is no, and nothing changed."""
    prompt = prompt_of(engine)
    hold(engine, 0, prompt)
    state = engine.save(0, 0, ROOM)
    assert state is not None
    far = engine.load_state(state.view(), 0, engine.info.n_ctx_seq + 1)
    used = engine.used_cells()
    assert not engine.restore(1, far)
    assert (engine.length(1), engine.used_cells()) == (0, used)
    assert engine.restore(1, state)


def a_checkpoint_is_gone_back_to(engine: Engine) -> None:
    """S31, K11: what diverges afterwards is as after a cold prompt; memory that can be trimmed needs none."""
    prompt = prompt_of(engine)
    expected = cold(engine, diverging(engine))
    again = cold(engine, prompt)
    engine.open(SequenceSpec(1, GREEDY))
    feed(engine, 1, prompt[:CUT], draw=False)
    checkpoint = engine.checkpoint(1, ROOM)
    assert finish(engine, 1, prompt[CUT:]) == again
    engine.close(1, keep=True)
    if checkpoint is None:
        assert engine.trim(1, CUT)
        return
    assert checkpoint.end == CUT
    assert engine.checkpoint(1, checkpoint.n_bytes // 2) is None
    assert engine.checkpoint(1, -1) is None
    for rest, text in ((diverging(engine)[CUT:], expected), (prompt[CUT:], again)):
        assert engine.go_back(1, checkpoint)
        assert engine.length(1) == engine.used_cells() == CUT
        engine.open(SequenceSpec(1, GREEDY))
        assert finish(engine, 1, rest) == text
        engine.close(1, keep=True)
    with pytest.raises(EngineError):
        engine.restore(2, checkpoint)
    with pytest.raises(EngineError):
        engine.go_back(2, checkpoint)


def a_bad_checkpoint_is_refused(engine: Engine) -> None:
    """K26, K126."""
    prompt = prompt_of(engine)
    for seq_id in (0, -1, engine.n_ids):
        with pytest.raises(EngineError):
            engine.checkpoint(seq_id, ROOM)
    hold(engine, 0, prompt)
    checkpoint = engine.checkpoint(0, ROOM)
    if checkpoint is None:
        return
    engine.open(SequenceSpec(0, GREEDY))
    hold(engine, 1, prompt[:CUT])
    for seq_id in (0, 1, -1, engine.n_ids):
        with pytest.raises(EngineError):
            engine.go_back(seq_id, checkpoint)
    assert [engine.length(seq_id) for seq_id in (0, 1)] == [len(prompt), CUT]


def a_shut_down_engine_holds_nothing(engine: Engine) -> None:
    """EngineDown from all of them."""
    prompt = prompt_of(engine)
    hold(engine, 0, prompt)
    state = engine.save(0, 0, ROOM)
    assert state is not None
    engine.shutdown()
    calls: list[Callable[[], object]] = [
        lambda: engine.length(0),
        lambda: engine.adopt(1, 0, CUT),
        lambda: engine.trim(0, 0),
        lambda: engine.save(0, 0, ROOM),
        lambda: engine.restore(1, state),
        lambda: engine.checkpoint(0, ROOM),
        lambda: engine.go_back(0, state),
    ]
    for call in calls:
        with pytest.raises(EngineDown):
            call()
    assert engine.used_cells() == 0
    assert len(state.view()) == state.n_bytes, "a copy outlives its engine"


MEMORY_LAWS: tuple[Law, ...] = (
    what_is_kept_goes_on,
    penalties_look_back_on_the_history,
    an_adopted_prefix_counts_as_computed,
    a_running_sequence_is_adopted_from,
    a_prompt_that_is_computed_may_adopt_the_rest,
    a_resumed_sequence_goes_on_from_what_its_id_holds,
    a_suspended_sequence_wants_an_id_that_holds_nothing_else,
    a_bad_adopt_is_refused_and_changes_nothing,
    what_is_trimmed_is_computed_again,
    a_bad_trim_is_refused_and_changes_nothing,
    a_copy_is_what_was_saved,
    copies_of_parts_are_put_together,
    a_bad_save_or_restore_is_refused_and_changes_nothing,
    a_copy_without_room_is_not_restored,
    a_checkpoint_is_gone_back_to,
    a_bad_checkpoint_is_refused,
)
"""Leave ids full: ``close_all`` before the next law on the same engine."""

FINAL_MEMORY_LAWS: tuple[Law, ...] = (a_shut_down_engine_holds_nothing,)
"""End the engine they are given."""
