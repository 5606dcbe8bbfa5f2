"""Stop strings are found in any cut of the text, and nothing of them is given out."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve._hot import StopMatcher
from tests.reference.stop_matcher import StopMatcher as ReferenceMatcher

# Few letters, so that stops overlap each other, themselves and the text.
STOPS = st.lists(st.text("ab🙂", min_size=1, max_size=5), max_size=4)
PIECES = st.lists(st.text("ab🙂c", max_size=6), max_size=10)


def pushed(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    texts = [matcher.push(piece) for piece in pieces]
    return [*texts, matcher.flush()], matcher.matched


def test_without_stops_every_text_passes_at_once() -> None:
    assert pushed([], ["one", "", "two"]) == (["one", "", "two", ""], None)


def test_a_stop_inside_one_text_cuts_it() -> None:
    """K151"""
    assert pushed(["END"], ["before END after", "more"]) == (["before ", "", ""], "END")


def test_a_beginning_of_a_stop_is_held_back_until_it_is_decided() -> None:
    """K151"""
    assert pushed(["END"], ["ab E", "N", "d END"]) == (["ab ", "", "ENd ", ""], "END")


def test_a_stop_over_many_texts_is_found() -> None:
    """K151"""
    assert pushed(["<|im_end|>"], ["yes<", "|im", "_e", "nd|", ">", "!"]) == (
        ["yes", "", "", "", "", "", ""],
        "<|im_end|>",
    )


def test_what_is_held_back_comes_out_when_the_text_ends() -> None:
    """K151"""
    assert pushed(["\n\nUser:"], ["hello\n", "\nUse"]) == (["hello", "", "\n\nUse"], None)


def test_only_the_longest_possible_tail_is_held_back() -> None:
    """K151"""
    assert pushed(["aab"], ["aaa", "a", "c"]) == (["a", "a", "aac", ""], None)


def test_the_stop_that_ends_first_wins() -> None:
    """K151"""
    assert pushed(["abcdef", "cd"], ["xabcdef"]) == (["xab", ""], "cd")


def test_of_stops_that_end_together_the_one_that_starts_earliest_wins() -> None:
    """K151"""
    assert pushed(["c", "abc", "bc"], ["xab", "c"]) == (["x", "", ""], "abc")


def test_the_order_of_the_stops_does_not_matter() -> None:
    """K151"""
    assert pushed(["cd", "abcdef"], ["xabcdef"]) == pushed(["abcdef", "cd"], ["xabcdef"])


def test_text_held_for_a_longer_stop_is_given_out_when_a_shorter_one_ends() -> None:
    """K151"""
    assert pushed(["abcdX", "cd"], ["abc", "d"]) == (["", "ab", ""], "cd")


def test_a_stop_as_the_first_text_leaves_nothing() -> None:
    """K151"""
    assert pushed(["\n"], ["\n"]) == (["", ""], "\n")


def test_stops_outside_the_basic_plane_are_found() -> None:
    """K151"""
    assert pushed(["🙂日"], ["a🙂", "🙂", "日b"]) == (["a", "🙂", "", ""], "🙂日")


def test_a_stop_that_was_given_twice_is_one_stop() -> None:
    assert pushed(["x", "x"], ["ax"]) == (["a", ""], "x")


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 character"):
        StopMatcher(["ok", ""])


@pytest.mark.parametrize("stops", ["one string", [b"bytes"], [None], 5])
def test_only_sequences_of_strings_are_taken(stops: object) -> None:
    with pytest.raises(TypeError):
        StopMatcher(stops)  # type: ignore[arg-type]  # the wrong type is the point


def test_only_strings_are_pushed() -> None:
    with pytest.raises(TypeError):
        StopMatcher(["x"]).push(b"x")  # type: ignore[arg-type]  # the wrong type is the point


@given(STOPS, PIECES)
def test_every_push_equals_the_reference(stops: list[str], pieces: list[str]) -> None:
    """K151"""
    reference = ReferenceMatcher(stops)
    texts = [*(reference.push(piece) for piece in pieces), reference.flush()]
    assert pushed(stops, pieces) == (texts, reference.matched)


@given(STOPS, PIECES)
def test_text_and_match_do_not_depend_on_the_cut(stops: list[str], pieces: list[str]) -> None:
    """K151"""
    text = "".join(pieces)
    results = [pushed(stops, cut) for cut in ([text], pieces, list(text))]
    assert len({("".join(texts), matched) for texts, matched in results}) == 1


@given(STOPS, PIECES)
def test_no_text_given_out_has_a_stop_in_it(stops: list[str], pieces: list[str]) -> None:
    """K151"""
    texts, _ = pushed(stops, pieces)
    assert not [stop for stop in stops if stop in "".join(texts)]


def test_the_time_of_a_character_grows_neither_with_the_text_nor_with_the_stops() -> None:
    """K25: a second of work; looking again at the whole text, or at every stop, would take hours."""
    matcher = StopMatcher(["a" * (1023 - n) + "b" for n in range(64)])
    finished = threading.Event()

    def push_four_million_characters() -> None:
        for _ in range(1_000_000):
            matcher.push("aaaa")
        finished.set()

    threading.Thread(target=push_four_million_characters, daemon=True).start()
    assert finished.wait(60)
    assert matcher.flush() == "a" * 1023
