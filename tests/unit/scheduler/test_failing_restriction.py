"""A restriction that raises anything fails its own request: the others and the server go on."""

from __future__ import annotations

import pytest

from llamaserve.config import SchedulerConfig
from llamaserve.constraint import MaskFiller, TokenConstraint
from llamaserve.engine.fake import EOS, FakeEngine
from llamaserve.engine.fake_masks import N_MASK_BYTES
from llamaserve.errors import BadGrammar, DecodeFailed, LlamaServeError
from llamaserve.request import GenerationRequest
from llamaserve.scheduler.prefill_settings import GRANT_INTERVAL_VARIABLE
from tests.unit.scheduler.harness import Harness, alone


class Panic(BaseException):
    """As an abort in a native extension arrives: no Exception."""


ANYTHING: list[BaseException] = [RuntimeError("a bug"), MemoryError(), Panic("aborted"), SystemExit(1)]
PLACES = ["begin", "mask", "accept", "is_complete", "filler"]


class Failing:
    """A restriction that raises in one of its methods, once so many tokens were drawn."""

    def __init__(self, place: str, error: BaseException, after: int) -> None:
        self.place = place
        self.error = error
        self.after = after

    def begin(self) -> TokenConstraint:
        answer = FailingAnswer(self)
        answer.fail("begin")
        return answer


class FailingAnswer:
    """One answer: any token but the end."""

    def __init__(self, of: Failing) -> None:
        self.of = of
        self.n_taken = 0

    def fail(self, place: str) -> None:
        if place == self.of.place and self.n_taken >= self.of.after:
            raise self.of.error

    def mask(self) -> bytes | None:
        self.fail("mask")
        mask = bytearray(b"\xff" * N_MASK_BYTES)
        mask[EOS // 8] &= ~(1 << EOS % 8)
        return bytes(mask)

    def accept(self, token: int) -> None:
        self.fail("accept")
        self.n_taken += 1

    @property
    def is_complete(self) -> bool:
        self.fail("is_complete")
        return False

    @property
    def filler(self) -> MaskFiller | None:
        return self.of if self.of.place == "filler" else None  # type: ignore[return-value]  # it has no fill at all


def submit(harness: Harness, name: str, restriction: Failing, **fields: object) -> str:
    options = {"max_tokens": 8} | fields
    request = GenerationRequest(name, tuple(b"hello"), constraint=restriction, **options)  # type: ignore[arg-type]  # any field
    harness.scheduler.submit(request)
    return name


@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("error", ANYTHING, ids=repr)
@pytest.mark.parametrize(("place", "after"), [("begin", 0), *((place, n) for place in PLACES[1:4] for n in (0, 3))])
def test_whatever_a_restriction_raises_fails_its_request_alone(
    place: str, after: int, error: BaseException, lookahead: bool
) -> None:
    harness = Harness(config=SchedulerConfig(lookahead=lookahead))
    bad = submit(harness, "bad", Failing(place, error, after))
    good = harness.submit(b"good", max_tokens=12)
    harness.run()
    assert isinstance(harness.error(bad), DecodeFailed)
    assert type(error).__name__ in str(harness.error(bad))
    assert harness.text(good) == alone(b"good", 12)[0]
    assert harness.scheduler.failure is None
    assert harness.engine.used_cells() == 0
    later = harness.submit(b"later")
    harness.run()
    assert harness.text(later) == alone(b"later")[0]


@pytest.mark.parametrize("place", PLACES[:4])
def test_an_error_of_ours_is_told_as_it_is(place: str) -> None:
    """The client's grammar is at fault, not the server."""
    harness = Harness()
    error: LlamaServeError = BadGrammar("too complex")
    bad = submit(harness, "bad", Failing(place, error, 0))
    harness.run()
    assert harness.error(bad) is error


def test_masks_that_cannot_be_computed_together_are_computed_alone() -> None:
    harness = Harness()
    restriction = Failing("filler", RuntimeError(), 0)  # one filler for both
    names = [submit(harness, name, restriction) for name in ("a", "b")]
    harness.run()
    assert [len(harness.tokens(name)) for name in names] == [8, 8]


def test_many_restrictions_that_fail_do_not_end_the_server() -> None:
    harness = Harness()
    names = [submit(harness, f"r{n}", Failing(PLACES[n % 4], RuntimeError(), 0)) for n in range(40)]
    harness.run()
    assert all(isinstance(harness.error(name), DecodeFailed) for name in names)
    assert harness.scheduler.failure is None


@pytest.mark.parametrize("after", range(3, 11))
def test_a_step_that_is_decided_again_is_one_step(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt has its piece after as many decode steps as ever."""
    monkeypatch.setenv(GRANT_INTERVAL_VARIABLE, "4")
    harness = Harness(FakeEngine(n_ctx=1024), SchedulerConfig(mixed_step=False, prefill_chunk=8, lookahead=False))
    harness.submit(b"stream", max_tokens=200)
    bad = submit(harness, "bad", Failing("mask", RuntimeError(), after), max_tokens=100)
    harness.tick(4)
    n_before = len(harness.engine.plans)
    harness.submit(b"p" * 80, max_tokens=1)
    harness.run()
    assert len(harness.tokens(bad)) == after
    kinds = "".join("p" if plan.pieces else "d" for plan in harness.engine.plans[n_before:])
    assert kinds.rstrip("d") == "dddd".join("p" * 10)


def test_one_that_cannot_begin_waits_no_more_for_its_group() -> None:
    """The prompts of its private group are kept for nobody."""
    harness = Harness()
    submit(harness, "bad", Failing("begin", RuntimeError(), 0), cache_prompt=False, prompt_group="group")
    harness.run()
    assert "group" not in harness.prefixes._private  # type: ignore[attr-defined]  # the fake shares cells
