"""One request's text, from token bytes to what the client sees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.text import TokenText


def given_out(stops: list[str], pieces: list[bytes]) -> tuple[str, str | None]:
    text = TokenText(stops)
    out = "".join(text.push(piece) for piece in pieces) + text.flush()
    return out, text.stop_sequence


def byte_by_byte(text: str) -> list[bytes]:
    return [bytes([byte]) for byte in text.encode()]


def test_without_stops_characters_pass_as_soon_as_they_are_complete() -> None:
    """S61"""
    text = TokenText(())
    assert [text.push(piece) for piece in (b"a", b"\xf0\x9f", b"\x99\x82b")] == ["a", "", "🙂b"]
    assert text.stop_sequence is None


def test_a_stop_string_is_found_over_the_bytes_of_its_characters() -> None:
    """K151"""
    assert given_out(["。"], byte_by_byte("日本。語")) == ("日本", "。")


def test_a_stop_string_that_shares_lead_bytes_with_the_text_holds_nothing_back_wrongly() -> None:
    """K151"""
    assert given_out(["🙂🙃"], byte_by_byte("🙂🙂🙃x")) == ("🙂", "🙂🙃")


def test_a_broken_off_character_follows_the_text_held_back() -> None:
    """K151, K14"""
    assert given_out(["stop!"], [b"sto", b"p\xe2\x82"]) == ("stop\ufffd", None)


def test_after_a_stop_string_a_broken_off_character_is_dropped() -> None:
    """K151"""
    assert given_out(["stop"], [b"go stop \xe2", b"\x82"]) == ("go ", "stop")


def test_an_empty_piece_adds_nothing() -> None:
    assert given_out(["x"], [b"", b"a", b""]) == ("a", None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 character"):
        TokenText([""])


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=3), max_size=3), st.integers(1, 5))
def test_streamed_text_equals_text_cut_at_the_first_stop_to_end(text: str, stops: list[str], size: int) -> None:
    """S61, K151"""
    data = text.encode("utf-8", "replace")
    text = data.decode()
    ends = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    end, _, first = min(ends, default=(len(text), 0, None))
    expected = text[: end - len(first)] if first else text
    assert given_out(stops, [data[i : i + size] for i in range(0, len(data), size)]) == (expected, first)
