"""Texts that end at a line: too little indentation, or the time is over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.text.line_limits import LineLimits


def cut(min_indent: int, pieces: list[str]) -> tuple[str, bool]:
    lines = LineLimits(min_indent, None)
    return "".join(lines.take(piece, 0.0) for piece in pieces), lines.is_over


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a)\n    return a\n\ndef g(", "a)\n    return a\n"),
        ("a)\n    return a\ndef g(", "a)\n    return a\n"),
        ("a)\n  x", "a)\n  "),
        ("a\n    \n    b\nc", "a\n    \n    b\n"),
        ("a\n\t\t\t\tb\n \t  c", "a\n\t\t\t\tb\n \t  c"),
        ("", ""),
        ("\n", "\n"),
        ("\n   ", "\n   "),
        ("far left", "far left"),
    ],
    ids=repr,
)
def test_a_text_ends_before_a_line_that_is_indented_too_little(text: str, kept: str) -> None:
    assert cut(4, [text]) == cut(4, list(text)) == (kept, len(kept) < len(text))


@given(st.lists(st.text("a \t\n", max_size=6), max_size=8), st.integers(1, 3))
def test_how_the_text_is_cut_into_pieces_does_not_matter(pieces: list[str], min_indent: int) -> None:
    assert cut(min_indent, pieces) == cut(min_indent, ["".join(pieces)])


@given(st.text("a \t\n"), st.integers(1, 3))
def test_every_whole_line_that_is_left_but_the_first_is_indented(text: str, min_indent: int) -> None:
    kept, is_over = cut(min_indent, [text])
    assert text.startswith(kept)
    assert is_over == (kept != text)
    for line in kept.split("\n")[1:-1]:
        assert len(line) - len(line.lstrip(" \t")) >= min_indent


def test_nothing_is_given_out_after_the_end() -> None:
    lines = LineLimits(1, None)
    assert lines.take("a\nb", 0.0) == "a\n"
    assert (lines.take("  c", 0.0), lines.is_over) == ("", True)


def test_after_its_time_a_text_ends_with_the_next_line() -> None:
    lines = LineLimits(0, 1.0)
    assert (lines.take("one\n", 1.0), lines.is_over) == ("one\n", False)
    assert (lines.take("two", 5.0), lines.is_over) == ("two", False)
    assert (lines.take(" three\nfour", 6.0), lines.is_over) == (" three\nfour", True)
    assert lines.take("five", 6.0) == ""


def test_without_a_time_limit_the_time_does_not_matter() -> None:
    assert LineLimits(1, None).take("a\n b\n", 1e9) == "a\n b\n"
