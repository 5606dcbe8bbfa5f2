"""Two runs of tokens are compared where they lie."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve._hot import common_prefix
from tests.reference.common_prefix import common_prefix as reference_common_prefix

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def tokens(values: list[int] | range) -> array[int]:
    return array("i", values)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128, 1000])
def test_equal_tokens_are_equal_to_their_end(length: int) -> None:
    assert common_prefix(tokens(range(length)), tokens(range(length))) == length
    assert common_prefix(tokens(range(length)), tokens(range(length + 1))) == length


@pytest.mark.parametrize("position", [0, 1, 62, 63, 64, 65, 128, 199])
def test_the_first_difference_is_found_wherever_it_is(position: int) -> None:
    a, b = tokens(range(200)), tokens(range(200))
    b[position] = -1
    assert common_prefix(a, b) == common_prefix(b, a) == position


@pytest.mark.parametrize("bit", [0, 7, 8, 23, 24, 31])
def test_every_bit_of_a_token_counts(bit: int) -> None:
    a = tokens([5] * 100)
    b = tokens([5] * 70 + [(5 ^ (1 << bit)) - (2**32 if bit == 31 else 0)] + [5] * 29)
    assert common_prefix(a, b) == 70


def test_the_starts_may_differ_and_reach_to_the_end() -> None:
    assert common_prefix(tokens([9, 1, 2, 3]), tokens([1, 2, 4]), 1) == 2
    assert common_prefix(tokens([1, 2]), tokens([1, 2]), 2, 2) == 0


def test_nothing_beyond_the_limit_is_compared() -> None:
    assert common_prefix(tokens(range(200)), tokens(range(200)), limit=77) == 77
    assert common_prefix(tokens([1, 2]), tokens([1, 3]), limit=5) == 1
    assert common_prefix(tokens([1]), tokens([1]), limit=0) == 0


def test_views_are_compared_as_arrays_are() -> None:
    a, b = memoryview(tokens(range(100))), tokens(range(100))
    assert common_prefix(a[10:90], b, 0, 10) == 80
    assert common_prefix(memoryview(bytes(b)).cast("i"), b) == 100


def test_an_array_can_grow_again_after_the_comparison() -> None:
    """K44: its memory is borrowed, not copied, and given back, also where an error was raised."""
    a = tokens([1, 2])
    common_prefix(a, a)
    with pytest.raises(TypeError):
        common_prefix(a, [1])  # type: ignore[arg-type]  # the wrong type is the point
    with pytest.raises(ValueError, match="b_start"):
        common_prefix(a, tokens([]), 0, 1)
    with pytest.raises(ValueError, match="a_start"):
        common_prefix(a, a, 3)
    a.append(3)


@pytest.mark.parametrize(
    "wrong", [array("h", [1]), array("q", [1]), array("f", [1]), array("I", [1]), b"1234", [1], None]
)
def test_only_int32_is_compared(wrong: object) -> None:
    for arguments in ((wrong, tokens([1])), (tokens([1]), wrong)):
        with pytest.raises(TypeError):
            common_prefix(*arguments)


def test_only_one_dimension_is_compared() -> None:
    square = memoryview(tokens(range(4))).cast("B").cast("i", (2, 2))
    with pytest.raises(TypeError, match="a has 2 dimensions"):
        common_prefix(square, tokens([1]))


def test_only_tokens_side_by_side_are_compared() -> None:
    with pytest.raises(BufferError):
        common_prefix(memoryview(tokens(range(4)))[::2], tokens([1]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a_start": 3}, "a_start is 3: it must be 0 to 2"),
        ({"a_start": -1}, "a_start is -1: it must be 0 to 2"),
        ({"b_start": 4}, "b_start is 4: it must be 0 to 3"),
        ({"b_start": -(2**62)}, "b_start is -4611686018427387904: it must be 0 to 3"),
        ({"limit": -1}, "limit is -1: it must be 0 or more"),
    ],
)
def test_a_start_outside_and_a_negative_limit_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        common_prefix(tokens([1, 2]), tokens([1, 2, 3]), **arguments)


# Long runs of few values, so that much is equal and block borders are crossed.
RUNS = st.lists(st.tuples(st.sampled_from([0, 1, INT32_MIN, INT32_MAX]), st.integers(1, 70)), max_size=5).map(
    lambda runs: tokens([value for value, count in runs for _ in range(count)])
)


STARTS = st.tuples(st.integers(0, 100), st.integers(0, 100))


@given(runs=st.tuples(RUNS, RUNS, RUNS), starts=STARTS, limit=st.none() | st.integers(0, 300))
def test_the_result_equals_the_reference(
    runs: tuple[array[int], array[int], array[int]], starts: tuple[int, int], limit: int | None
) -> None:
    """K44"""
    common, a_rest, b_rest = runs
    a, b = tokens([7] * starts[0]) + common + a_rest, tokens([8] * starts[1]) + common + b_rest
    for a_start, b_start in (starts, (0, 0), (len(a), starts[1]), (starts[0], len(b))):
        expected = reference_common_prefix(a, b, a_start, b_start, limit)
        assert common_prefix(a, b, a_start, b_start, limit) == expected
