"""A reasoning that has spent its tokens is ended, and only then."""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.chat.reasoning_budget import ReasoningBudget, ReasoningMarks
from llamaserve.constraint import TokenConstraint
from llamaserve.engine.fake import FakeVocabulary

BEGUN = ReasoningMarks("<t>", "</t>", is_begun=True)
UNBEGUN = ReasoningMarks("<t>", "</t>", is_begun=False)


class OneMask:
    """Says the same mask always, and keeps what it accepted."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def begin(self) -> TokenConstraint:
        return self

    def mask(self) -> bytes | None:
        return b"\x01"

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    is_complete = False
    filler = None


def forced(constraint: TokenConstraint) -> int | None:
    """The only token that may come; None = any."""
    mask = constraint.mask()
    if mask is None:
        return None
    (token,) = [index for index in range(8 * len(mask)) if mask[index // 8] >> index % 8 & 1]
    return token


def write(constraint: TokenConstraint, text: str) -> str:
    """Accept a text byte by byte wherever any token may come; what comes out."""
    out, rest = bytearray(), list(text.encode())
    while rest or forced(constraint) is not None:
        token = forced(constraint)
        if token is None:
            token = rest.pop(0)
        constraint.accept(token)
        out.append(token)
    return out.decode()


def budget(n_tokens: int, marks: ReasoningMarks = BEGUN) -> TokenConstraint:
    return ReasoningBudget(n_tokens, marks, FakeVocabulary()).begin()


def test_a_begun_reasoning_ends_when_its_tokens_are_spent() -> None:
    assert write(budget(3), "abcdef") == "abc</t>def"
    assert write(budget(0), "abc") == "</t>abc"


def test_a_reasoning_that_ends_in_time_is_left_alone() -> None:
    assert write(budget(10), "ab</t>cdefghijklmnop") == "ab</t>cdefghijklmnop"


def test_tokens_are_counted_from_the_beginning_of_the_reasoning() -> None:
    assert write(budget(2, UNBEGUN), "abcdefgh") == "abcdefgh"
    assert write(budget(2, UNBEGUN), "ab<t>cdefgh") == "ab<t>cd</t>efgh"


def test_an_answer_that_begins_with_its_reasoning_is_counted_at_once() -> None:
    assert write(budget(2, ReasoningMarks("", "</t>", is_begun=False)), "abcd") == "ab</t>cd"


def test_a_reasoning_that_begins_again_has_what_is_left() -> None:
    assert write(budget(3), "abcd<t>ef") == "abc</t>d<t></t>ef"
    # The tokens of its end count but for the last.
    assert write(budget(5, UNBEGUN), "<t>a</t>b<t>cdefg") == "<t>a</t>b<t>c</t>defg"
    assert write(budget(6, UNBEGUN), "<t>a</t>b<t>cdefg") == "<t>a</t>b<t>cd</t>efg"


def test_without_a_beginning_there_is_one_reasoning() -> None:
    assert write(budget(2, ReasoningMarks("", "</t>", is_begun=False)), "abcd<t>e</t>f") == "ab</t>cd<t>e</t>f"


class Filler:
    """Keeps what it was asked to fill."""

    def __init__(self) -> None:
        self.filled: list[TokenConstraint] = []

    def fill(self, constraints: Sequence[TokenConstraint]) -> None:
        self.filled += constraints


def test_masks_of_the_restrictions_within_are_filled_together() -> None:
    filler = Filler()
    inner = [OneMask(), OneMask()]
    for one in inner:
        one.filler = filler  # type: ignore[assignment]  # of the class it is nobody
    first, second = (ReasoningBudget(1, BEGUN, FakeVocabulary(), one).begin() for one in inner)
    assert first.filler == second.filler
    assert first.filler is not None
    first.filler.fill([first, second])
    assert filler.filled == inner
    first.accept(ord("x"))
    assert forced(first) is not None
    assert first.filler is None


def test_a_character_is_not_broken() -> None:
    assert write(budget(1), "世界") == "世</t>界"


def test_each_answer_has_its_own_count() -> None:
    restriction = ReasoningBudget(1, BEGUN, FakeVocabulary())
    for _ in range(2):
        assert write(restriction.begin(), "xy") == "x</t>y"


def test_the_restriction_within_holds_everywhere_else_and_sees_every_token() -> None:
    inner = OneMask()
    constraint = ReasoningBudget(1, BEGUN, FakeVocabulary(), inner).begin()
    assert constraint.mask() == b"\x01"
    constraint.accept(ord("x"))
    for byte in b"</t>":
        assert forced(constraint) == byte
        constraint.accept(byte)
    assert constraint.mask() == b"\x01"
    assert bytes(inner.accepted) == b"x</t>"


def test_masks_are_as_long_as_the_vocabulary() -> None:
    mask = budget(0).mask()
    assert mask is not None
    assert len(mask) == (FakeVocabulary().n_tokens + 31) // 32 * 4
