"""The pure rules: admission, finish order, kinds of steps, prompt pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.engine.fake import N_VOCAB, FakeEngine
from llamaserve.errors import BadToken, EmptyPrompt, PromptTooLong
from llamaserve.request import FinishReason, GenerationRequest, SamplingParams
from llamaserve.scheduler.admission import check_request
from llamaserve.scheduler.finish import finish_reason
from llamaserve.scheduler.prefill_plan import PieceSize, plan_pieces
from llamaserve.scheduler.tick_policy import StepKind, choose_step

INFO = FakeEngine(n_ctx=16).info


def test_an_empty_prompt_is_refused() -> None:
    """S67."""
    with pytest.raises(EmptyPrompt):
        check_request(GenerationRequest("r", ()), INFO)


def test_a_prompt_leaves_room_for_one_token() -> None:
    check_request(GenerationRequest("r", (1,) * 15), INFO)
    with pytest.raises(PromptTooLong, match=r"length is 16 tokens.*has 16 tokens"):
        check_request(GenerationRequest("r", (1,) * 16), INFO)


@pytest.mark.parametrize("token", [-1, N_VOCAB, 2**31])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_token_outside_the_vocabulary_is_refused(token: int, place: int) -> None:
    """K26."""
    prompt = [1, 2, 3]
    prompt[place] = token
    with pytest.raises(BadToken, match=str(token)) as caught:
        check_request(GenerationRequest("r", tuple(prompt)), INFO)
    assert caught.value.param == "prompt"


def test_a_bias_on_a_token_outside_the_vocabulary_is_refused() -> None:
    """K26."""
    request = GenerationRequest("r", (1,), sampling=SamplingParams(logit_bias={0: 1.0, N_VOCAB: 1.0}))
    with pytest.raises(BadToken) as caught:
        check_request(request, INFO)
    assert caught.value.param == "logit_bias"


def test_the_edges_of_the_vocabulary_are_inside() -> None:
    check_request(GenerationRequest("r", (0, N_VOCAB - 1)), INFO)


GOES_ON = {
    "is_eog": False,
    "is_stopped": False,
    "n_generated": 1,
    "max_tokens": 10,
    "n_prompt": 1,
    "n_ctx_seq": 100,
}
RULES_IN_ORDER: list[tuple[dict[str, object], FinishReason]] = [
    ({"is_eog": True}, FinishReason.EOS),
    ({"is_stopped": True}, FinishReason.STOP_SEQUENCE),
    ({"max_tokens": 1}, FinishReason.LENGTH),
    ({"n_ctx_seq": 2}, FinishReason.CONTEXT_EXHAUSTED),
]


def test_the_first_finish_rule_that_fires_wins() -> None:
    """E7, E8: EOS, stop string, max_tokens, context."""
    assert finish_reason(**GOES_ON) is None  # type: ignore[arg-type]  # the values have the parameters' types
    for first, (_, expected) in enumerate(RULES_IN_ORDER):
        fired: dict[str, object] = dict(GOES_ON)
        for change, _ in RULES_IN_ORDER[first:]:
            fired |= change
        assert finish_reason(**fired) is expected  # type: ignore[arg-type]  # as above


def test_prompt_and_text_together_fill_the_context_exactly() -> None:
    common = {"is_eog": False, "is_stopped": False, "max_tokens": None}
    at = [finish_reason(**common, n_generated=n, n_prompt=6, n_ctx_seq=10) for n in (3, 4)]  # type: ignore[arg-type]  # as above
    assert at == [None, FinishReason.CONTEXT_EXHAUSTED]


def run_choices(
    n_steps: int, *, n_begun: int, n_new: int, interval: int, mixed_step: bool = False
) -> list[StepKind | None]:
    """The kinds of steps while two streams decode and the same prompts go on waiting."""
    kinds: list[StepKind | None] = []
    last_kind, count = StepKind.DECODE, 0
    for _ in range(n_steps):
        kind, count = choose_step(
            n_decoding=2,
            n_begun=n_begun,
            n_new=n_new,
            mixed_step=mixed_step,
            grant_interval=interval,
            last_kind=last_kind,
            n_decode_steps=count,
            owes_decode=False,
        )
        last_kind = kind or last_kind
        kinds.append(kind)
    return kinds


def test_where_steps_are_not_mixed_a_prompt_in_pieces_has_one_after_each_interval() -> None:
    """T12, K105."""
    kinds = run_choices(170, n_begun=1, n_new=0, interval=16)
    assert kinds[:17] == [StepKind.DECODE] * 16 + [StepKind.PROMPT]
    assert kinds.count(StepKind.PROMPT) == 10
    assert set(run_choices(100, n_begun=1, n_new=0, interval=0)) == {StepKind.DECODE}


def test_where_steps_are_not_mixed_new_prompts_begin_at_once_and_streams_have_every_second_step() -> None:
    """K9: however many prompts come that end with their first token."""
    kinds = run_choices(100, n_begun=0, n_new=3, interval=16)
    assert kinds == [StepKind.PROMPT, StepKind.DECODE] * 50


def test_a_prompt_in_pieces_keeps_its_grants_and_new_ones_wait_for_them() -> None:
    """T15: whose turn a grant is, the order of prompts says."""
    kinds = run_choices(170, n_begun=1, n_new=3, interval=16)
    assert kinds.count(StepKind.PROMPT) == 10


@pytest.mark.parametrize(("n_begun", "n_new"), [(1, 0), (0, 1), (2, 2)])
def test_mixed_steps_have_all_rows_and_pieces_at_once(n_begun: int, n_new: int) -> None:
    """T14."""
    assert set(run_choices(50, n_begun=n_begun, n_new=n_new, interval=16, mixed_step=True)) == {StepKind.MIXED}


@pytest.mark.parametrize("mixed_step", [True, False])
@pytest.mark.parametrize("last_kind", list(StepKind))
@pytest.mark.parametrize("owes_decode", [True, False])
def test_without_streams_a_prompt_always_goes_on_and_without_anything_there_is_no_step(
    mixed_step: bool, last_kind: StepKind, owes_decode: bool
) -> None:
    common = {"mixed_step": mixed_step, "grant_interval": 16, "last_kind": last_kind, "n_decode_steps": 3}
    common["owes_decode"] = owes_decode
    prompt_kind = StepKind.MIXED if mixed_step else StepKind.PROMPT
    for n_begun, n_new in ((1, 0), (0, 1)):
        assert choose_step(n_decoding=0, n_begun=n_begun, n_new=n_new, **common) == (prompt_kind, 0)  # type: ignore[arg-type]  # the values have the parameters' types
    assert choose_step(n_decoding=0, n_begun=0, n_new=0, **common) == (None, 0)  # type: ignore[arg-type]  # as above
    assert choose_step(n_decoding=1, n_begun=0, n_new=0, **common) == (StepKind.DECODE, 0)  # type: ignore[arg-type]  # as above


@given(
    mixed_step=st.booleans(),
    interval=st.integers(0, 3),
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), max_size=40),
)
def test_streams_advance_in_every_second_step_whatever_prompts_come_and_go(
    mixed_step: bool, interval: int, steps: list[tuple[int, int, bool]]
) -> None:
    """Steps that hold a piece are stopped as often as clients like: then their decode rows have no token."""
    last_kind, count, has_advanced = StepKind.DECODE, 0, True
    owes_decode = False
    for n_begun, n_new, is_stopped in steps:
        kind, count = choose_step(
            n_decoding=2,
            n_begun=n_begun,
            n_new=n_new,
            mixed_step=mixed_step,
            grant_interval=interval,
            last_kind=last_kind,
            n_decode_steps=count,
            owes_decode=owes_decode,
        )
        assert kind is not None
        owes_decode = kind is StepKind.MIXED and is_stopped
        advances = kind is not StepKind.PROMPT and not owes_decode
        assert advances or has_advanced
        last_kind, has_advanced = kind, advances


def test_prompts_share_the_budget_in_order_of_admission() -> None:
    prompts = [PieceSize(3, 50), PieceSize(0, 20), PieceSize(1, 99)]
    assert plan_pieces(prompts, budget=70, prefill_chunk=40) == [(3, 40), (0, 20), (1, 10)]
    assert plan_pieces(prompts, budget=30, prefill_chunk=0) == [(3, 30)]
    assert plan_pieces([], budget=30, prefill_chunk=8) == []


@given(
    left=st.lists(st.integers(1, 300), max_size=6),
    budget=st.integers(1, 200),
    prefill_chunk=st.integers(0, 100),
)
def test_pieces_fit_and_the_first_prompt_always_advances(left: list[int], budget: int, prefill_chunk: int) -> None:
    """K102: no prompt waits for ever."""
    prompts = [PieceSize(seq_id, n_left) for seq_id, n_left in enumerate(left)]
    pieces = plan_pieces(prompts, budget=budget, prefill_chunk=prefill_chunk)
    assert sum(piece.n_tokens for piece in pieces) <= budget
    assert [piece.seq_id for piece in pieces] == list(range(len(pieces)))
    for piece in pieces:
        assert 0 < piece.n_tokens <= left[piece.seq_id]
        assert prefill_chunk == 0 or piece.n_tokens <= prefill_chunk
    assert bool(pieces) == bool(left)
