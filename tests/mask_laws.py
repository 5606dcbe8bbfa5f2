"""The laws of masks that every engine obeys (``engine.port``); run as those of ``engine_laws``."""

from __future__ import annotations

import math
from collections.abc import Iterable

from llamaserve.engine.port import Engine, PromptPiece, RowError, SequenceSpec, StepPlan
from llamaserve.errors import EngineError
from llamaserve.sampling import SamplingParams
from tests.engine_laws import GREEDY, N_TOKENS, SEEDED, Law, alone, prompt_of, refusal, start, token_of


def mask_of(engine: Engine, tokens: Iterable[int]) -> bytes:
    """A mask that allows just these."""
    mask = bytearray((engine.info.n_vocab + 31) // 32 * 4)
    for token in tokens:
        mask[token // 8] |= 1 << token % 8
    return bytes(mask)


def ordinary(engine: Engine) -> list[int]:
    """Tokens that end nothing."""
    return [token for token in range(engine.info.n_vocab) if not engine.vocab.is_eog(token)]


def a_row_draws_what_its_mask_allows(engine: Engine) -> None:
    """The first token and those after it, greedy and seeded; its neighbours draw as ever."""
    expected = alone(engine, 1)
    few = ordinary(engine)[3:40:6]
    for sampling in (GREEDY, SEEDED):
        prompt = prompt_of(engine)
        engine.open(SequenceSpec(0, sampling, prompt))
        neighbour = [start(engine, 1, 1)]
        plan = StepPlan(pieces=[PromptPiece(0, prompt, is_last=True)], masks={0: mask_of(engine, few)})
        assert token_of(engine.step(plan)[0]) in few
        for step in range(N_TOKENS - 1):
            one = few[step % len(few)]
            rows = engine.step(StepPlan(decode=[0, 1], masks={0: mask_of(engine, [one])}))
            assert token_of(rows[0]) == one
            neighbour.append(token_of(rows[1]))
        assert neighbour == expected
        for seq_id in (0, 1):
            engine.close(seq_id)


def a_mask_that_allows_all_changes_nothing(engine: Engine) -> None:
    """The same tokens, with and without."""
    for sampling in (GREEDY, SEEDED):
        expected = alone(engine, 0, sampling)
        every = mask_of(engine, range(engine.info.n_vocab))
        tokens = [start(engine, 0, 0, sampling)]
        while len(tokens) < N_TOKENS:
            tokens.append(token_of(engine.step(StepPlan(decode=[0], masks={0: every}))[0]))
        assert tokens == expected
        engine.close(0)


def a_mask_holds_for_a_step_that_ran_ahead(engine: Engine) -> None:
    """L10: it is decoded before its mask is known, and drawn under it."""
    few = ordinary(engine)[5:50:9]
    texts = []
    for ahead in (False, True):
        start(engine, 0)
        start(engine, 1, 1)
        text = []
        for step in range(N_TOKENS):
            masks = {step % 2: mask_of(engine, few)}
            rows = engine.collect(engine.submit(StepPlan(decode=[0, 1], masks=masks), ahead=ahead))
            assert token_of(rows[step % 2]) in few
            assert engine.report.ran_ahead is (ahead and step > 0 and engine.can_rewind)
            text.append([token_of(row) for row in rows])
        texts.append(text)
        for seq_id in (0, 1):
            engine.close(seq_id)
    assert texts[0] == texts[1]


def a_bad_mask_is_refused_with_its_plan(engine: Engine) -> None:
    """And the next plan is as if it had not been; the step that ran ahead is still there."""
    prompt = prompt_of(engine, 1)
    expected = alone(engine, 0)
    first = start(engine, 0)
    engine.open(SequenceSpec(1, GREEDY, prompt))
    (row,) = engine.collect(engine.submit(StepPlan(decode=[0]), ahead=True))
    good = mask_of(engine, ordinary(engine)[:3])
    beyond = bytearray(mask_of(engine, ()))
    if engine.info.n_vocab % 32:
        beyond[-1] = 0x80
    for plan in (
        StepPlan(decode=[0], masks={0: good[:-1]}),
        StepPlan(decode=[0], masks={0: good + bytes(4)}),
        StepPlan(decode=[0], masks={0: b""}),
        StepPlan(decode=[0], masks={0: mask_of(engine, ())}),
        StepPlan(decode=[0], masks={0: bytes(beyond)}),
        StepPlan(decode=[0], masks={1: good}),
        StepPlan(decode=[0], masks={0: good, 2: good}),
    ):
        assert refusal(engine, plan) is EngineError
        assert list(engine.ahead_rows) == ([0] if engine.can_rewind else [])
    piece = PromptPiece(1, prompt[:2], is_last=False)
    assert refusal(engine, StepPlan(pieces=[piece], masks={1: good})) is EngineError
    tokens = [first, token_of(row)]
    while len(tokens) < N_TOKENS:
        tokens.append(token_of(engine.step(StepPlan(decode=[0]))[0]))
    assert tokens == expected


def a_row_that_may_draw_nothing_fails_alone(engine: Engine) -> None:
    """Its mask allows only what its sampling parameters forbid: behind its prompt, and later."""
    expected = alone(engine, 1)
    few = ordinary(engine)[3:9]
    mask = mask_of(engine, few)
    one, *others = few
    for sampling in (
        SamplingParams(logit_bias=dict.fromkeys(few, -math.inf)),
        SamplingParams(logit_bias=dict.fromkeys(others, -math.inf), bad_words=((one,),)),
        SamplingParams(allowed_token_ids=tuple(ordinary(engine)[10:20])),
    ):
        for n_before in (0, 2):
            prompt = prompt_of(engine)
            neighbour = [start(engine, 1, 1)]
            engine.open(SequenceSpec(0, sampling, prompt))
            if n_before:
                engine.step(StepPlan(pieces=[PromptPiece(0, prompt, is_last=True)]))
                for _ in range(n_before):
                    rows = engine.collect(engine.submit(StepPlan(decode=[0, 1]), ahead=True))
                    neighbour.append(token_of(rows[1]))
                failed, other = engine.step(StepPlan(decode=[0, 1], masks={0: mask}))
            else:
                piece = PromptPiece(0, prompt, is_last=True)
                other, failed = engine.step(StepPlan(decode=[1], pieces=[piece], masks={0: mask}))
            assert (failed.error, failed.token, failed.piece) == (RowError.NO_TOKEN, None, b"")
            assert failed.message
            neighbour.append(token_of(other))
            assert refusal(engine, StepPlan(decode=[0])) is EngineError
            engine.close(0)
            while len(neighbour) < N_TOKENS:
                neighbour.append(token_of(engine.step(StepPlan(decode=[1]))[0]))
            assert neighbour == expected
            engine.close(1)


MASK_LAWS: tuple[Law, ...] = (
    a_row_draws_what_its_mask_allows,
    a_mask_that_allows_all_changes_nothing,
    a_mask_holds_for_a_step_that_ran_ahead,
    a_bad_mask_is_refused_with_its_plan,
    a_row_that_may_draw_nothing_fails_alone,
)
"""Leave sequences open, as ``LAWS`` do."""
