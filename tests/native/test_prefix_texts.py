"""A text that goes on from what another request left is the text of a cold engine, however that request ended."""

from __future__ import annotations

import pytest

from llamaserve.config import FlashAttention, Profile, SchedulerConfig
from llamaserve.engine.port import MemoryKind
from llamaserve.errors import Cancelled
from llamaserve.request import Failed, Finished, FinishReason, SamplingParams
from tests.native.conftest import LoadEngine
from tests.native.prefix_rig import Rig

PROMPT = [1, *(20 + index * 7 % 200 for index in range(89))]
NEXT = [30 + index * 11 % 200 for index in range(25)]
N_FIRST = 12
ENDS = ("length", "eos", "stop_string", "cancel_decode", "cancel_prefill")
CHUNK = 32


@pytest.fixture(params=["dense_model", "sliding_window_model", "recurrent_model", "hybrid_model", "shared"])
def rig(request: pytest.FixtureRequest, load: LoadEngine) -> Rig:
    """Each kind of memory in the parity profile, and the dense model in one pool, without flash attention: there its
    texts do not depend on where cells are."""
    if request.param == "shared":
        model = request.getfixturevalue("dense_model")
        engine = load(model, n_slots=2, flash_attention=FlashAttention.OFF)
    else:
        engine = load(request.getfixturevalue(request.param), n_slots=2, profile=Profile.PARITY)
    mixed = request.param == "shared"
    return Rig(engine, SchedulerConfig(prefill_chunk=CHUNK, mixed_step=mixed))


def ending(rig: Rig, how: str) -> tuple[list[int], int]:
    """Have a request end; the tokens it has left then, and how many it drew."""
    cold = rig.cold(PROMPT, N_FIRST)
    max_tokens, stop, sampling = N_FIRST, (), SamplingParams(temperature=0.0)
    if how == "eos":  # one token that the text has becomes so likely to be followed by the end that it is
        max_tokens = 100
        eos = next(token for token in range(rig.engine.info.n_vocab) if rig.engine.vocab.is_eog(token))
        sampling = SamplingParams(temperature=0.0, logit_bias={eos: 100.0})
    elif how == "stop_string":
        text = rig.engine.vocab.detokenize(cold[3:6], special=False).decode(errors="replace")
        max_tokens, stop = 100, (text,)
    request_id = rig.submit(PROMPT, max_tokens, stop, sampling)
    if how == "cancel_prefill":
        rig.scheduler.tick()
        rig.scheduler.tick()
        assert rig.scheduler.cancel(request_id)
    elif how == "cancel_decode":
        while len(rig.tokens(request_id)) < 6:
            rig.scheduler.tick()
        assert rig.scheduler.cancel(request_id)
    rig.run()
    return check_end(rig, request_id, how)


def check_end(rig: Rig, request_id: str, how: str) -> tuple[list[int], int]:
    """It ended as it was meant to."""
    end, drawn = rig.end(request_id), rig.tokens(request_id)
    if how.startswith("cancel"):
        assert isinstance(end, Failed)
        assert isinstance(end.error, Cancelled)
        return (PROMPT[: 2 * CHUNK], 0) if how == "cancel_prefill" else ([*PROMPT, *drawn[:-1]], len(drawn))
    assert isinstance(end, Finished)
    assert (
        end.reason
        is {
            "length": FinishReason.LENGTH,
            "eos": FinishReason.EOS,
            "stop_string": FinishReason.STOP_SEQUENCE,
        }[how]
    )
    return ([*PROMPT, *drawn] if how == "eos" else [*PROMPT, *drawn[:-1]]), len(drawn)


@pytest.mark.parametrize("how", ENDS)
def test_k108_k109_k147_a_hit_goes_on_as_a_cold_prompt_does(rig: Rig, how: str) -> None:
    """For every end and every kind of memory: just what was computed is left, and it is used whole."""
    left, _ = ending(rig, how)
    prompt = [*left, *NEXT]
    cold = rig.cold(prompt, 16)
    if not rig.engine.can_share:  # the cold request may have had the slot that kept what was left
        rig.forget_slots()
        left, _ = ending(rig, how)
    request_id = rig.submit(prompt, 16)
    rig.run()
    assert rig.cached(request_id) == len(left)
    assert rig.tokens(request_id) == cold


def test_s28_the_prompt_itself_again(rig: Rig) -> None:
    """K11: all but the last token where memory can be cut, all but the last few where it has checkpoints."""
    request_id = rig.submit(PROMPT, N_FIRST)
    rig.run()
    again = rig.submit(PROMPT, N_FIRST)
    rig.run()
    assert rig.tokens(again) == rig.tokens(request_id)
    can_cut = rig.engine.can_share or rig.engine.info.memory is MemoryKind.KV
    assert rig.cached(again) == len(PROMPT) - 1 if can_cut else rig.cached(again) >= len(PROMPT) - CHUNK


def test_s24_a_hit_on_a_generating_donor_changes_neither_text(rig: Rig) -> None:
    if not rig.engine.can_share:
        pytest.skip("nothing is shared")
    donor_cold, taker_cold = rig.cold(PROMPT, 40), rig.cold([*PROMPT, *NEXT], 10)
    donor = rig.submit(PROMPT, 40)
    for _ in range(8):
        rig.scheduler.tick()
    taker = rig.submit([*PROMPT, *NEXT], 10)
    rig.run()
    assert rig.cached(taker) == len(PROMPT)
    assert (rig.tokens(donor), rig.tokens(taker)) == (donor_cold, taker_cold)


def test_s25_s26_sharing_is_for_one_pool_of_plain_cells(rig: Rig) -> None:
    shares = rig.scheduler.stats().prefix_gauges.shares
    assert shares == rig.engine.can_share
    if not shares:
        first, second = rig.submit(PROMPT), rig.submit(PROMPT)
        rig.run()
        assert rig.cached(first) == rig.cached(second) == 0, "they ran at the same time, in two slots"
