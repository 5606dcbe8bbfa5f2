"""The laws of steps that every engine obeys (``engine.port``), each a function of an engine with 3 or more slots, none
of them open.

Run on the fake engine in tests/unit and on the real one in tests/native. Texts are drawn greedily, so an engine must
give a sequence the same tokens whatever runs beside it: the real one needs the parity profile and a model for which
that holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from llamaserve.engine.port import Engine, PromptPiece, RowError, RowOutput, Score, SequenceSpec, StepPlan, Ticket
from llamaserve.errors import BadToken, EngineDown, EngineError, LlamaServeError
from llamaserve.sampling import SamplingParams

Law = Callable[[Engine], None]

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, seed=7, ignore_eos=True)
PENALISED = SamplingParams(temperature=0.7, seed=11, repeat_penalty=1.4, ignore_eos=True)
TEXTS = ("The capital of France is", "Once upon a time there was", "1 2 3 4 5 6 7")
N_TOKENS = 6


def prompt_of(engine: Engine, index: int = 0) -> tuple[int, ...]:
    """Tokens of one of the test texts."""
    return tuple(engine.vocab.tokenize(TEXTS[index], add_special=True, parse_special=False))


def start(engine: Engine, seq_id: int, index: int = 0, sampling: SamplingParams = GREEDY) -> int:
    """Open a sequence and compute its whole prompt; the first token."""
    prompt = prompt_of(engine, index)
    engine.open(SequenceSpec(seq_id, sampling, prompt))
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(seq_id, prompt, is_last=True)]))
    return token_of(row)


def token_of(row: RowOutput) -> int:
    """The token of a row that worked."""
    assert row.error is None, row.message
    assert row.token is not None
    return row.token


def alone(engine: Engine, index: int, sampling: SamplingParams = GREEDY, seq_id: int = 0) -> list[int]:
    """The tokens a test text gets when nothing runs beside it."""
    tokens = [start(engine, seq_id, index, sampling)]
    while len(tokens) < N_TOKENS:
        (row,) = engine.step(StepPlan(decode=[seq_id]))
        tokens.append(token_of(row))
    engine.close(seq_id)
    return tokens


def together(engine: Engine, seq_ids: Sequence[int]) -> list[list[int]]:
    """The tokens of running sequences, decoded side by side."""
    tokens: list[list[int]] = [[] for _ in seq_ids]
    for _ in range(N_TOKENS - 1):
        for got, row in zip(tokens, engine.step(StepPlan(decode=seq_ids)), strict=True):
            got.append(token_of(row))
    return tokens


def refusal(engine: Engine, plan: StepPlan) -> type[LlamaServeError] | None:
    """The error an engine refuses a plan with; None if it takes it."""
    try:
        engine.submit(plan)
    except LlamaServeError as error:
        return type(error)
    return None


def a_step_is_a_submit_and_its_collect(engine: Engine) -> None:
    """E13."""
    whole = alone(engine, 0)
    split = [start(engine, 0)]
    while len(split) < N_TOKENS:
        (row,) = engine.collect(engine.submit(StepPlan(decode=[0]), engine.new_flag()))
        split.append(token_of(row))
    assert split == whole


def one_ticket_is_outstanding_at_most(engine: Engine) -> None:
    """A second submit is refused and the first is collected as if it had not been there."""
    start(engine, 0)
    ticket = engine.submit(StepPlan(decode=[0]))
    with pytest.raises(EngineError):
        engine.submit(StepPlan(decode=[0]))
    assert [row.seq_id for row in engine.collect(ticket)] == [0]
    with pytest.raises(EngineError):
        engine.collect(ticket)


def an_unknown_ticket_is_refused(engine: Engine) -> None:
    """A ticket that was never given out."""
    with pytest.raises(EngineError):
        engine.collect(Ticket(2**31 - 1))


def rows_come_back_in_plan_order(engine: Engine) -> None:
    """E3: decode rows, then prompt pieces, whatever their ids."""
    start(engine, 2)
    start(engine, 1, 1)
    engine.open(SequenceSpec(0, GREEDY))
    rows = engine.step(StepPlan(decode=[2, 1], pieces=[PromptPiece(0, prompt_of(engine, 2), is_last=True)]))
    assert [row.seq_id for row in rows] == [2, 1, 0]


def a_sequence_gets_the_same_tokens_beside_others(engine: Engine) -> None:
    """E4, E20: one sequence is a batch of one."""
    expected = [alone(engine, index) for index in range(3)]
    firsts = [start(engine, seq_id, seq_id) for seq_id in range(3)]
    got = [[first, *rest] for first, rest in zip(firsts, together(engine, [0, 1, 2]), strict=True)]
    assert got == expected


def a_fresh_sequence_has_a_fresh_sampler(engine: Engine) -> None:
    """S40: the same seed draws the same tokens again, in the same sequence id and in another."""
    first = alone(engine, 0, SEEDED)
    assert alone(engine, 0, SEEDED) == first
    assert alone(engine, 0, SEEDED, seq_id=1) == first


def only_the_last_piece_draws(engine: Engine) -> None:
    """S62."""
    prompt = prompt_of(engine)
    engine.open(SequenceSpec(0, GREEDY))
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(0, prompt[:3], is_last=False)]))
    assert (row.token, row.error, row.is_eog, row.piece) == (None, None, False, b"")
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(0, prompt[3:], is_last=True)]))
    token_of(row)


def a_row_says_what_its_token_means(engine: Engine) -> None:
    """The piece and the end mark are those of the vocabulary."""
    start(engine, 0)
    (row,) = engine.step(StepPlan(decode=[0]))
    token = token_of(row)
    assert row.piece == engine.vocab.detokenize([token], special=False)
    assert row.is_eog == engine.vocab.is_eog(token)


def a_decode_row_takes_one_cell(engine: Engine) -> None:
    """E12; the token drawn last has no cell."""
    start(engine, 0)
    assert engine.used_cells() == len(prompt_of(engine))
    engine.step(StepPlan(decode=[0]))
    assert engine.used_cells() == len(prompt_of(engine)) + 1


def closing_frees_the_cells(engine: Engine) -> None:
    """``close`` says whether the sequence was open, and may be called again or with any number."""
    start(engine, 0)
    assert engine.close(0)
    assert engine.used_cells() == 0
    assert not engine.close(0)
    assert not engine.close(-1)
    assert not engine.close(engine.info.n_slots)


def a_bad_open_is_refused(engine: Engine) -> None:
    """K26: an open id, ids out of range, a bias on a token that is not there, a stop token that is not."""
    engine.open(SequenceSpec(0, GREEDY))
    for seq_id in (0, -1, engine.info.n_slots):
        with pytest.raises(EngineError):
            engine.open(SequenceSpec(seq_id, GREEDY))
    with pytest.raises(BadToken):
        engine.open(SequenceSpec(1, SamplingParams(logit_bias={engine.info.n_vocab: 1.0})))
    with pytest.raises(BadToken):
        engine.open(SequenceSpec(1, GREEDY, stop_tokens=[engine.info.n_vocab]))
    assert not engine.close(1)


def a_bad_plan_is_refused_and_changes_nothing(engine: Engine) -> None:
    """E10, K26, K126: every bad row raises; the sequences go on as if the plan had not been handed in."""
    expected = [alone(engine, index) for index in range(2)]
    firsts = [start(engine, 0, 0), start(engine, 1, 1)]
    engine.open(SequenceSpec(2, GREEDY))
    used = engine.used_cells()
    prompt = prompt_of(engine)
    n_batch = engine.info.n_batch
    bad_plans: dict[str, tuple[type[LlamaServeError], StepPlan]] = {
        "empty": (EngineError, StepPlan()),
        "decode twice": (EngineError, StepPlan(decode=[0, 0])),
        "decode and piece": (EngineError, StepPlan(decode=[0], pieces=[PromptPiece(0, prompt, is_last=True)])),
        "not open": (EngineError, StepPlan(decode=[0, engine.info.n_slots])),
        "negative id": (EngineError, StepPlan(decode=[-1])),
        "nothing drawn": (EngineError, StepPlan(decode=[0, 2])),
        "a prompt again": (EngineError, StepPlan(decode=[0], pieces=[PromptPiece(1, prompt, is_last=True)])),
        "empty piece": (EngineError, StepPlan(decode=[0], pieces=[PromptPiece(2, (), is_last=True)])),
        "token too large": (
            BadToken,
            StepPlan(decode=[0], pieces=[PromptPiece(2, (*prompt, engine.info.n_vocab), is_last=True)]),
        ),
        "last with a next": (
            EngineError,
            StepPlan(decode=[0], pieces=[PromptPiece(2, prompt, is_last=True, n_top=0, next_token=prompt[0])]),
        ),
        "next token too large": (
            BadToken,
            StepPlan(decode=[0], pieces=[PromptPiece(2, prompt, False, n_top=0, next_token=engine.info.n_vocab)]),
        ),
        "token negative": (BadToken, StepPlan(decode=[0], pieces=[PromptPiece(2, (*prompt, -1), is_last=True)])),
        "too many tokens": (
            EngineError,
            StepPlan(decode=[0], pieces=[PromptPiece(2, (prompt[0],) * n_batch, is_last=True)]),
        ),
    }
    for name, (error, plan) in bad_plans.items():
        assert refusal(engine, plan) is error, name
    assert engine.used_cells() == used
    got = [[first, *rest] for first, rest in zip(firsts, together(engine, [0, 1]), strict=True)]
    assert got == expected


def a_flag_stops_its_step_only(engine: Engine) -> None:
    """S56: a step whose flag was set before computes nothing; the next step is as ever."""
    expected = alone(engine, 0)
    engine.open(SequenceSpec(1, GREEDY))
    flag = engine.new_flag()
    flag.set()
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(1, prompt_of(engine, 1), is_last=True)]), flag)
    assert (row.error, row.token) == (RowError.ABORTED, None)
    assert engine.close(1)
    assert alone(engine, 0) == expected


def a_stopped_row_is_as_before_the_step(engine: Engine) -> None:
    """S56: it can run again, and its neighbours are untouched."""
    expected = [alone(engine, index) for index in range(3)]
    firsts = [start(engine, 0), start(engine, 1, 1)]
    engine.open(SequenceSpec(2, GREEDY))
    piece = PromptPiece(2, prompt_of(engine, 2), is_last=True)
    used = engine.used_cells()
    flag = engine.new_flag()
    flag.set()
    rows = engine.step(StepPlan(decode=[1], pieces=[piece]), flag)
    assert [row.error for row in rows] == [RowError.ABORTED] * 2
    with pytest.raises(EngineError):
        engine.open(SequenceSpec(1, GREEDY))
    assert engine.used_cells() == used
    (row,) = engine.step(StepPlan(pieces=[piece]))
    firsts.append(token_of(row))
    assert [[first, *rest] for first, rest in zip(firsts, together(engine, [0, 1, 2]), strict=True)] == expected


def a_step_that_runs_ahead_brings_the_same_rows(engine: Engine) -> None:
    """L2, L22, L23: greedy and seeded; and it does run ahead where memory can go back."""
    for sampling in (GREEDY, SEEDED, PENALISED):
        expected = [alone(engine, index, sampling) for index in range(2)]
        tokens = [[start(engine, index, index, sampling)] for index in range(2)]
        n_ahead = 0
        while len(tokens[0]) < N_TOKENS:
            rows = engine.collect(engine.submit(StepPlan(decode=[0, 1]), ahead=True))
            n_ahead += engine.report.ran_ahead
            assert list(engine.ahead_rows) == ([0, 1] if engine.can_rewind else [])
            for got, row in zip(tokens, rows, strict=True):
                got.append(token_of(row))
        close_all(engine)
        assert tokens == expected
        assert n_ahead == (N_TOKENS - 2 if engine.can_rewind else 0)


def a_step_taken_back_leaves_no_trace(engine: Engine) -> None:
    """E13, L6, L23: neither in the cells nor in a sampler, whatever takes it back."""
    for sampling in (GREEDY, SEEDED, PENALISED):
        expected = [alone(engine, index, sampling) for index in range(2)]
        tokens = [[start(engine, index, index, sampling)] for index in range(2)]
        for take_back in (engine.unwind, lambda: engine.close(2), lambda: None, engine.unwind):
            rows = engine.collect(engine.submit(StepPlan(decode=[0, 1]), ahead=True))
            used = engine.used_cells()
            take_back()
            assert engine.used_cells() == used
            rows = [*rows, *engine.step(StepPlan(decode=[1])), *engine.step(StepPlan(decode=[0]))]
            for row in rows:
                tokens[row.seq_id].append(token_of(row))
        close_all(engine)
        for got, text in zip(tokens, expected, strict=True):
            assert got[:N_TOKENS] == text


def a_prompt_that_ends_starts_a_step_ahead(engine: Engine) -> None:
    """L14: the last piece of a prompt and a decode row, in any order of their ids."""
    expected = [alone(engine, index) for index in range(2)]
    tokens = {1: [start(engine, 1, 1)], 0: []}
    engine.open(SequenceSpec(0, GREEDY))
    plan = StepPlan(decode=[1], pieces=[PromptPiece(0, prompt_of(engine, 0), is_last=True)])
    for _ in range(N_TOKENS - 1):
        for row in engine.collect(engine.submit(plan, ahead=True)):
            tokens[row.seq_id].append(token_of(row))
        plan = StepPlan(decode=[0, 1])
    assert tokens[1] == expected[1]
    assert tokens[0] == expected[0][: N_TOKENS - 1]
    assert engine.report.ran_ahead is engine.can_rewind


def nothing_runs_ahead_of_an_unfinished_prompt(engine: Engine) -> None:
    """L4."""
    prompt = prompt_of(engine, 0)
    engine.open(SequenceSpec(0, GREEDY))
    engine.collect(engine.submit(StepPlan(pieces=[PromptPiece(0, prompt[:2], is_last=False)]), ahead=True))
    assert list(engine.ahead_rows) == []
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(0, prompt[2:], is_last=True)]))
    assert row.error is None


def a_suspended_sequence_goes_on(engine: Engine) -> None:
    """S10: with a copy of its cells or computed again, under another id, with its sampler as it was."""
    for sampling in (GREEDY, SEEDED, PENALISED):
        expected = alone(engine, 0, sampling)
        for max_bytes in (2**30, 0):
            tokens = [start(engine, 0, 0, sampling)]
            for _ in range(2):
                (row,) = engine.collect(engine.submit(StepPlan(decode=[0]), ahead=True))
                tokens.append(token_of(row))
            suspended = engine.suspend(0, max_bytes)
            assert (suspended.n_bytes > 0) == (max_bytes > 0)
            assert engine.used_cells() == 0
            start(engine, 0, 1)
            assert engine.resume(2, suspended)
            with pytest.raises(EngineError):
                engine.resume(1, suspended)
            if max_bytes == 0:
                had = (*prompt_of(engine, 0), *tokens[:-1])
                with pytest.raises(EngineError):
                    engine.submit(StepPlan(decode=[2]))
                for start_at, end in ((0, 3), (3, len(had))):
                    piece = PromptPiece(2, had[start_at:end], is_last=False)
                    (row,) = engine.step(StepPlan(pieces=[piece]))
                    assert (row.error, row.token) == (None, None)
            while len(tokens) < N_TOKENS:
                (row,) = engine.step(StepPlan(decode=[2]))
                tokens.append(token_of(row))
            close_all(engine)
            assert tokens == expected, (sampling, max_bytes)


def a_stop_token_ends_the_text(engine: Engine) -> None:
    """As an end-of-generation token does: nothing runs ahead of its row."""
    expected = alone(engine, 0)
    prompt = prompt_of(engine)
    stop = expected[3]
    engine.open(SequenceSpec(0, GREEDY, prompt, stop_tokens=[stop]))
    rows = [*engine.step(StepPlan(pieces=[PromptPiece(0, prompt, is_last=True)]))]
    while not rows[-1].is_eog:
        rows += engine.collect(engine.submit(StepPlan(decode=[0]), ahead=True))
        assert list(engine.ahead_rows) == ([0] if engine.can_rewind and not rows[-1].is_eog else [])
    assert [row.token for row in rows] == expected[: expected.index(stop) + 1]


def a_score_is_what_the_model_thinks_of_a_token(engine: Engine) -> None:
    """The token drawn greedily is the likeliest; scores change no token, ahead or not, beside others or alone."""
    for n_top in (0, 5):
        expected = [alone(engine, index) for index in range(2)]
        prompt = prompt_of(engine)
        engine.open(SequenceSpec(0, GREEDY, prompt, n_top=n_top))
        start(engine, 1, 1)
        rows = [*engine.step(StepPlan(pieces=[PromptPiece(0, prompt, is_last=True)]))]
        while len(rows) < N_TOKENS:
            row, other = engine.collect(engine.submit(StepPlan(decode=[0, 1]), ahead=len(rows) % 3 > 0))
            assert list(other.scores) == []
            rows.append(row)
        assert [row.token for row in rows] == expected[0]
        for row in rows:
            ((token, piece, logprob, top),) = row.scores
            assert token == row.token
            assert piece == engine.vocab.detokenize([token], special=True)
            assert logprob is not None
            assert logprob <= 0.0
            assert len(top) == n_top
            values = [value for _, _, value in top]
            assert values == sorted(values, reverse=True)
            assert sum(map(math.exp, values)) <= 1.0 + 1e-4
            assert all(written == engine.vocab.detokenize([likely], special=True) for likely, written, _ in top)
            allowed = [(likely, value) for likely, _, value in top if not engine.vocab.is_eog(likely)]
            assert allowed[:1] == [(token, logprob)][:n_top]
        close_all(engine)


def scores_do_not_depend_on_the_pieces(engine: Engine) -> None:
    """A text that was drawn scores as a prompt what it scored then, however it is cut, more tokens at once than rows
    draw; a piece without a next token leaves its last one out."""
    prompt = prompt_of(engine)
    engine.open(SequenceSpec(0, GREEDY, prompt, n_top=2))
    drawn = []
    plan = StepPlan(pieces=[PromptPiece(0, prompt, is_last=True)])
    for _ in range(60):
        (row,) = engine.step(plan)
        drawn += row.scores
        plan = StepPlan(decode=[0])
    engine.close(0)
    text = (*prompt, *(token for token, *_ in drawn))
    for n_piece in (len(text), 40, 7):
        scores: list[Score] = []
        engine.open(SequenceSpec(1, GREEDY, n_top=2))
        for start_at in range(0, len(text), n_piece):
            tokens = text[start_at : start_at + n_piece]
            end = start_at + len(tokens)
            next_token = text[end] if end < len(text) else None
            piece = PromptPiece(1, tokens, is_last=end == len(text), n_top=2, next_token=next_token)
            (row,) = engine.step(StepPlan(pieces=[piece]))
            assert row.error is None, row.message
            assert len(row.scores) == len(tokens) + (start_at == 0)
            scores += row.scores
        engine.close(1)
        assert [token for token, *_ in scores[:-1]] == list(text)
        assert scores[0][2:] == (None, ())
        assert scores[-1][0] == row.token
        for score, before in zip(scores[len(prompt) : -1], drawn, strict=True):
            assert score[:2] == before[:2]
            assert score[2] == pytest.approx(before[2], abs=0.02)
    engine.open(SequenceSpec(1, GREEDY))
    (row,) = engine.step(StepPlan(pieces=[PromptPiece(1, text[:9], is_last=False, n_top=0)]))
    assert [token for token, *_ in row.scores] == list(text[:9])


def a_stopped_row_has_no_scores(engine: Engine) -> None:
    """It is computed again, and has them once."""
    prompt = prompt_of(engine)
    engine.open(SequenceSpec(0, GREEDY))
    piece = PromptPiece(0, prompt, is_last=True, n_top=1)
    flag = engine.new_flag()
    flag.set()
    (row,) = engine.step(StepPlan(pieces=[piece]), flag)
    assert (row.error, list(row.scores)) == (RowError.ABORTED, [])
    (row,) = engine.step(StepPlan(pieces=[piece]))
    assert [token for token, *_ in row.scores] == list(prompt)


def a_shut_down_engine_refuses(engine: Engine) -> None:
    """``shutdown`` may be called twice; afterwards there is an error, not a crash."""
    start(engine, 0)
    assert engine.failure is None
    engine.shutdown()
    engine.shutdown()
    assert engine.failure is not None
    with pytest.raises(EngineDown):
        engine.open(SequenceSpec(1, GREEDY))
    with pytest.raises(EngineDown):
        engine.submit(StepPlan(decode=[0]))
    with pytest.raises(EngineError):
        engine.collect(Ticket(1))
    engine.close(0)
    assert engine.used_cells() == 0


def a_step_outstanding_at_the_shutdown_is_lost(engine: Engine) -> None:
    """Its ticket brings an error, not a crash and not its rows."""
    start(engine, 0)
    ticket = engine.submit(StepPlan(decode=[0]))
    engine.shutdown()
    with pytest.raises(EngineError):
        engine.collect(ticket)
    with pytest.raises(EngineError):
        engine.submit(StepPlan(decode=[0]))
    with pytest.raises(EngineDown):
        engine.open(SequenceSpec(1, GREEDY))


LAWS: tuple[Law, ...] = (
    a_step_is_a_submit_and_its_collect,
    one_ticket_is_outstanding_at_most,
    an_unknown_ticket_is_refused,
    rows_come_back_in_plan_order,
    a_sequence_gets_the_same_tokens_beside_others,
    a_fresh_sequence_has_a_fresh_sampler,
    only_the_last_piece_draws,
    a_row_says_what_its_token_means,
    a_decode_row_takes_one_cell,
    closing_frees_the_cells,
    a_bad_open_is_refused,
    a_bad_plan_is_refused_and_changes_nothing,
    a_flag_stops_its_step_only,
    a_stopped_row_is_as_before_the_step,
    a_step_that_runs_ahead_brings_the_same_rows,
    a_step_taken_back_leaves_no_trace,
    a_prompt_that_ends_starts_a_step_ahead,
    nothing_runs_ahead_of_an_unfinished_prompt,
    a_suspended_sequence_goes_on,
    a_stop_token_ends_the_text,
    a_score_is_what_the_model_thinks_of_a_token,
    scores_do_not_depend_on_the_pieces,
    a_stopped_row_has_no_scores,
)
"""Leave sequences open: close every id before the next law on the same engine."""

FINAL_LAWS: tuple[Law, ...] = (a_shut_down_engine_refuses, a_step_outstanding_at_the_shutdown_is_lost)
"""End the engine they are given."""


def close_all(engine: Engine) -> None:
    """Make an engine fit for the next law: no id holds anything."""
    for seq_id in range(engine.info.n_slots):
        engine.close(seq_id)
    for seq_id in range(engine.n_ids):
        assert engine.trim(seq_id, 0)
