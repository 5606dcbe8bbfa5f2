"""Bytes of tokens become whole characters, however they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve._hot import Utf8Stream
from tests.reference.utf8_stream import Utf8Stream as ReferenceStream

ANY_BYTES = st.lists(
    st.one_of(
        st.text(max_size=4).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.binary(max_size=4),
        st.sampled_from(
            [b"\xe2\x82", b"\xf0\x9f\x99", b"\x80", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80"]
        ),
    ),
    max_size=8,
)


def pushed(pieces: list[bytes]) -> list[str]:
    stream = Utf8Stream()
    return [*(stream.push(piece) for piece in pieces), stream.flush()]


def test_whole_characters_pass_at_once() -> None:
    """S61"""
    assert pushed([b"plain", "zażółć".encode(), "日本語 🙂".encode()]) == ["plain", "zażółć", "日本語 🙂", ""]


def test_a_two_byte_character_waits_for_its_second_byte() -> None:
    """S61"""
    assert pushed([b"caf\xc3", b"\xa9!"]) == ["caf", "é!", ""]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_four_byte_character_waits_for_its_last_byte(cut: int) -> None:
    """S61"""
    encoded = "🙂".encode()
    assert pushed([encoded[:cut], encoded[cut:]]) == ["", "🙂", ""]


def test_text_before_a_broken_off_character_is_given_out() -> None:
    """S61"""
    stream = Utf8Stream()
    assert stream.push("price: €".encode()[:-1]) == "price: "
    assert stream.push(b"\xac") == "€"


def test_a_byte_that_no_character_has_is_replaced_at_once() -> None:
    """S61"""
    assert pushed([b"a\xffb", b"\xff"]) == ["a\ufffdb", "\ufffd", ""]


def test_a_continuation_byte_without_a_lead_byte_is_replaced_at_once() -> None:
    """S61"""
    assert pushed([b"\x80", b"x\xbf\xbf"]) == ["\ufffd", "x\ufffd\ufffd", ""]


def test_a_long_text_keeps_only_its_lead_byte_back() -> None:
    """S61"""
    long_text = "ab" * 5000
    assert pushed([long_text.encode() + b"\xe6", b"\x97\xa5"]) == [long_text, "日", ""]


def test_a_lead_byte_followed_by_something_else_is_replaced_and_the_rest_kept() -> None:
    """S61"""
    assert pushed([b"\xe2\x82", b"A"]) == ["", "\ufffdA", ""]


def test_a_text_that_ends_inside_a_character_ends_with_one_replacement() -> None:
    """K14"""
    stream = Utf8Stream()
    assert stream.push(b"ok\xf0\x9f\x99") == "ok"
    assert stream.flush() == "\ufffd"


def test_a_flushed_stream_starts_anew() -> None:
    stream = Utf8Stream()
    stream.push(b"\xe2\x82")
    stream.flush()
    assert stream.push(b"\xac") == "\ufffd"
    assert stream.push("€".encode()) == "€"


@pytest.mark.parametrize("data", ["text", None, bytearray(b"x"), 5])
def test_only_bytes_are_taken(data: object) -> None:
    with pytest.raises(TypeError):
        Utf8Stream().push(data)  # type: ignore[arg-type]  # the wrong type is the point


@given(ANY_BYTES)
def test_every_push_equals_the_reference(pieces: list[bytes]) -> None:
    reference = ReferenceStream()
    assert pushed(pieces) == [*(reference.push(piece) for piece in pieces), reference.flush()]


@given(ANY_BYTES)
def test_the_text_does_not_depend_on_the_cut(pieces: list[bytes]) -> None:
    """S61"""
    data = b"".join(pieces)
    whole = data.decode("utf-8", "replace")
    assert "".join(pushed([data])) == whole
    assert "".join(pushed(pieces)) == whole
    assert "".join(pushed([data[i : i + 1] for i in range(len(data))])) == whole


@given(st.text())
def test_no_replacement_appears_in_valid_text_fed_byte_by_byte(text: str) -> None:
    """S61"""
    text = text.encode("utf-8", "replace").decode()
    assert "".join(pushed([bytes([byte]) for byte in text.encode()])) == text
