"""Restricted requests: what their rows may draw, when they end, and that nobody else notices."""

from __future__ import annotations

import math

import pytest

from llamaserve.config import SchedulerConfig
from llamaserve.constraint import MaskFiller, TokenConstraint
from llamaserve.engine.fake import EOS, FakeEngine, letters
from llamaserve.engine.fake_masks import N_MASK_BYTES
from llamaserve.errors import GrammarFailed, NoTokenLeft
from llamaserve.request import FinishReason, GenerationRequest, SamplingParams
from llamaserve.scheduler.scheduler import MAX_CONSECUTIVE_FAILED_STEPS
from tests.unit.scheduler.harness import Harness, alone


class Filler:
    """Counts how many it was asked to fill at once."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def fill(self, constraints: object) -> None:
        assert isinstance(constraints, list)
        self.sizes.append(len(constraints))


class Spelling:
    """A restriction to one text: every answer spells it, then ends. Fails, if asked to, at some place."""

    def __init__(self, text: bytes, *, fails_at: int | None = None, refuses_at: int | None = None) -> None:
        self.text = text
        self.fails_at = fails_at
        self.refuses_at = refuses_at
        self.begun: list[Speller] = []
        self.fills: Filler | None = None

    def begin(self) -> TokenConstraint:
        self.begun.append(Speller(self))
        return self.begun[-1]


class Speller:
    """One answer."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        self.taken: list[int] = []

    def mask(self) -> bytes | None:
        if len(self.taken) == self.spelling.fails_at:
            raise GrammarFailed("too complex")
        text = self.spelling.text
        token = text[len(self.taken)] if len(self.taken) < len(text) else EOS
        mask = bytearray(N_MASK_BYTES)
        mask[token // 8] |= 1 << token % 8
        return bytes(mask)

    def accept(self, token: int) -> None:
        if len(self.taken) == self.spelling.refuses_at:
            raise GrammarFailed("not that one")
        self.taken.append(token)

    @property
    def is_complete(self) -> bool:
        return len(self.taken) == len(self.spelling.text)

    @property
    def filler(self) -> MaskFiller | None:
        return self.spelling.fills


def submit(harness: Harness, spelling: Spelling, name: str, prompt: bytes = b"hello", **fields: object) -> str:
    options = {"max_tokens": 50, "cache_prompt": False} | fields
    harness.scheduler.submit(GenerationRequest(name, tuple(prompt), constraint=spelling, **options))  # type: ignore[arg-type]  # any field
    return name


@pytest.mark.parametrize("lookahead", [True, False])
def test_a_restricted_answer_is_what_it_may_be_and_its_neighbours_are_as_ever(lookahead: bool) -> None:
    """S39."""
    harness = Harness(config=SchedulerConfig(lookahead=lookahead))
    name = submit(harness, Spelling(b'{"a": 1}'), "json")
    other = harness.submit(b"other", max_tokens=20)
    harness.run()
    assert harness.text(name) == '{"a": 1}'
    assert harness.finished(name).reason is FinishReason.EOS
    assert harness.finished(name).completion_tokens == 8
    assert harness.text(other) == alone(b"other", 20)[0]


def test_restricted_rows_keep_lookahead() -> None:
    """L10: every step but the first runs ahead."""
    harness = Harness()
    submit(harness, Spelling(b"x" * 12), "one")
    submit(harness, Spelling(b"y" * 40), "two", max_tokens=12)
    harness.run()
    assert harness.text("two") == "y" * 12
    n_decode = sum(not plan.pieces for plan in harness.engine.plans)
    assert sum(harness.engine.ran_ahead) >= n_decode - 2


def test_an_answer_that_is_whole_draws_its_end_where_that_is_computed_already() -> None:
    """So that the step that ran ahead is not taken back; without one it ends at once."""
    for lookahead, n_steps in ((True, 5), (False, 4)):
        harness = Harness(config=SchedulerConfig(lookahead=lookahead))
        name = submit(harness, Spelling(b"text"), "one")
        harness.run()
        assert (harness.text(name), len(harness.engine.plans)) == ("text", n_steps)
        assert harness.finished(name).reason is FinishReason.EOS
        assert sum(harness.scheduler.stats().lookahead_discards.values()) == 0


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(ignore_eos=True),
        SamplingParams(logit_bias={EOS: -math.inf}),
        SamplingParams(min_tokens=5),
        SamplingParams(min_tokens=50),
        SamplingParams(bad_words=((EOS,),)),
        SamplingParams(bad_words=((ord("t"), EOS),)),
        SamplingParams(allowed_token_ids=tuple(b"text")),
    ],
)
@pytest.mark.parametrize("lookahead", [True, False])
def test_a_whole_answer_whose_end_is_forbidden_ends_all_the_same(sampling: SamplingParams, lookahead: bool) -> None:
    """Nothing else may follow it, so there is nothing to forbid the end for."""
    harness = Harness(config=SchedulerConfig(lookahead=lookahead))
    name = submit(harness, Spelling(b"text"), "one", sampling=sampling)
    harness.run()
    assert harness.text(name) == "text"
    assert harness.finished(name).reason is FinishReason.EOS


@pytest.mark.parametrize("sampling", [SamplingParams(min_tokens=4), SamplingParams(logit_bias={EOS: -3.0, 7: 5.0})])
def test_what_leaves_the_end_of_a_whole_answer_free_takes_no_step_back(sampling: SamplingParams) -> None:
    harness = Harness()
    name = submit(harness, Spelling(b"text"), "one", sampling=sampling)
    harness.run()
    assert harness.text(name) == "text"
    assert sum(harness.scheduler.stats().lookahead_discards.values()) == 0


@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("place", [0, 3])
def test_a_restriction_that_the_request_itself_forbids_fails_it_alone(lookahead: bool, place: int) -> None:
    """It is the request's fault, not the model's: as many of them as one likes are no failed steps (E11)."""
    harness = Harness(config=SchedulerConfig(lookahead=lookahead))
    text = b"0123456789"
    sampling = SamplingParams(logit_bias={text[place]: -math.inf})
    for index in range(2 * MAX_CONSECUTIVE_FAILED_STEPS):
        name = submit(harness, Spelling(text), f"alone{index}", sampling=sampling)
        harness.run()
        assert isinstance(harness.error(name), NoTokenLeft)
        assert harness.text(name) == text[:place].decode()
    bad = submit(harness, Spelling(text), "bad", sampling=sampling)
    good = submit(harness, Spelling(b"good text"), "good")
    free = harness.submit(b"free", max_tokens=20)
    harness.run()
    assert isinstance(harness.error(bad), NoTokenLeft)
    assert harness.text(good) == "good text"
    assert harness.text(free) == alone(b"free", 20)[0]
    assert (harness.scheduler.failure, harness.scheduler.stats().failed_steps) == (None, 0)


def test_max_tokens_cuts_an_answer_short() -> None:
    """What there is is a beginning of one."""
    harness = Harness()
    name = submit(harness, Spelling(b"0123456789"), "one", max_tokens=4)
    whole = submit(harness, Spelling(b"0123"), "two", max_tokens=4)
    harness.run()
    assert (harness.text(name), harness.finished(name).reason) == ("0123", FinishReason.LENGTH)
    assert (harness.text(whole), harness.finished(whole).reason) == ("0123", FinishReason.EOS)


def test_a_stop_string_ends_a_restricted_answer() -> None:
    harness = Harness()
    name = submit(harness, Spelling(b"one, two"), "one", stop=(",",))
    harness.run()
    assert (harness.text(name), harness.finished(name).reason) == ("one", FinishReason.STOP_SEQUENCE)


def test_text_held_back_for_a_stop_string_comes_with_the_end_of_a_whole_answer() -> None:
    harness = Harness()
    name = submit(harness, Spelling(b"a</"), "one", stop=("</s>",))
    harness.run()
    assert harness.text(name) == "a</"


@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("when", ["fails_at", "refuses_at"])
def test_a_restriction_that_fails_ends_its_request_alone(lookahead: bool, place: int, when: str) -> None:
    """Fails closed: what was drawn is all there is, and no more is."""
    harness = Harness(config=SchedulerConfig(lookahead=lookahead))
    spelling = Spelling(b"0123456789", **{when: place})  # type: ignore[arg-type]  # one of its places
    name = submit(harness, spelling, "bad")
    good = submit(harness, Spelling(b"good text"), "good")
    free = harness.submit(b"free", max_tokens=20)
    harness.run()
    assert isinstance(harness.error(name), GrammarFailed)
    assert harness.text(name) == "0123456789"[:place]
    assert harness.text(good) == "good text"
    assert harness.text(free) == alone(b"free", 20)[0]


def test_every_answer_begins_anew() -> None:
    """n answers of one restriction."""
    harness = Harness()
    spelling = Spelling(b"same")
    names = [submit(harness, spelling, f"r{index}") for index in range(6)]
    harness.run()
    assert [harness.text(name) for name in names] == ["same"] * 6
    assert len(spelling.begun) == 6


@pytest.mark.parametrize("preempt_ram", [0, 64])
def test_a_preempted_answer_goes_on_where_it_was(preempt_ram: int) -> None:
    """With a copy of its cells, and computed again."""
    engine = FakeEngine(n_slots=3, n_ctx=40)
    harness = Harness(engine, SchedulerConfig(preempt_ram=preempt_ram))
    texts = {f"r{index}": bytes([ord("a") + index]) * 25 for index in range(3)}
    for name, text in texts.items():
        submit(harness, Spelling(text), name, prompt=name.encode())
    harness.run()
    assert {name: harness.text(name).encode() for name in texts} == texts
    assert harness.scheduler.stats().preemptions > 0


def test_rows_that_have_masks_to_compute_do_so_together() -> None:
    harness = Harness()
    filler = Filler()
    for name in ("a", "b", "c"):
        spelling = Spelling(b"text")
        spelling.fills = None if name == "c" else filler
        submit(harness, spelling, name)
    harness.run()
    assert set(filler.sizes) == {2}
    assert len(filler.sizes) >= 4


def test_a_plan_has_masks_for_its_restricted_rows_only_and_for_none_before_the_prompt_ends() -> None:
    harness = Harness(FakeEngine(n_batch=8, n_slots=4, continuation=letters))
    submit(harness, Spelling(b"text"), "one", prompt=b"a long prompt of many tokens")
    harness.submit(b"x", max_tokens=30)
    harness.run()
    for plan in harness.engine.plans:
        drawing = {*plan.decode, *(piece.seq_id for piece in plan.pieces if piece.is_last)}
        assert plan.masks.keys() <= drawing
        assert len(plan.masks) <= 1
    assert sum(len(plan.masks) for plan in harness.engine.plans) in (4, 5)
