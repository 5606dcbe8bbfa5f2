"""API keys and the file they stand in."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamaserve.api_key import MAX_KEY_LENGTH, ApiKey, ApiKeys, check_keys, read_key_file
from llamaserve.errors import ConfigError
from llamaserve.request import Lane


def file_with(folder: Path, text: str | bytes) -> Path:
    path = folder / "keys"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_key_is_found_by_its_text_only() -> None:
    keys = ApiKeys([ApiKey.of("sk-one", "anna"), ApiKey.of("sk-two", "boris", Lane.LOW)])
    found = keys.find(b"sk-two")
    assert found is not None
    assert (found.owner, found.most_urgent) == ("boris", Lane.LOW)
    assert [keys.find(text) for text in (b"", b"sk-", b"sk-two ", b"SK-TWO", b"sk-two\xff")] == [None] * 5
    assert not ApiKeys([])
    assert ApiKeys([]).find(b"") is None


def test_nothing_of_a_key_is_kept_that_could_show_it() -> None:
    key = ApiKey.of("sk-very-secret")
    assert "very" not in repr(key)
    assert "very" not in key.owner
    assert b"very" not in key.digest


def test_a_key_without_a_name_is_an_owner_of_its_own_and_the_same_one_after_a_restart() -> None:
    assert ApiKey.of("a").owner == ApiKey.of("a").owner != ApiKey.of("b").owner


def test_keys_of_one_owner_count_once() -> None:
    assert ApiKeys([ApiKey.of("old", "anna"), ApiKey.of("new", "anna"), ApiKey.of("other")]).n_owners == 2


@pytest.mark.parametrize("secret", ["", "two words", "tab\t", "schlüssel", "new\nline", "x" * (MAX_KEY_LENGTH + 1)])
def test_a_key_no_client_could_send_is_refused_without_being_shown(secret: str) -> None:
    with pytest.raises(
        ConfigError, match=f"has {len(secret)} characters: it must have 1 to {MAX_KEY_LENGTH}"
    ) as raised:
        ApiKey.of(secret)
    assert not secret or secret not in str(raised.value)


def test_the_longest_key_is_taken() -> None:
    assert ApiKeys([ApiKey.of("x" * MAX_KEY_LENGTH)]).find(b"x" * MAX_KEY_LENGTH)


@pytest.mark.parametrize("owner", ["", "two words", "ü", "x" * 65])
def test_an_owner_that_is_no_name_is_refused(owner: str) -> None:
    with pytest.raises(ConfigError, match="name of an API key"):
        ApiKey.of("secret", owner)


def test_one_key_for_two_owners_is_refused_and_the_same_twice_is_not() -> None:
    check_keys([ApiKey.of("a", "anna"), ApiKey.of("a", "anna")])
    with pytest.raises(ConfigError, match="given twice, for 'anna' and 'boris'"):
        check_keys([ApiKey.of("a", "anna"), ApiKey.of("a", "boris")])


def test_a_file_has_a_key_a_line_with_a_name_and_a_lane_if_wanted(tmp_path: Path) -> None:
    text = "# who may\n\nsk-plain\n anna  sk-anna \nboris\tsk-boris\tlow\r\n"
    plain, anna, boris = read_key_file(file_with(tmp_path, text))
    assert plain == ApiKey.of("sk-plain")
    assert anna == ApiKey.of("sk-anna", "anna")
    assert boris == ApiKey.of("sk-boris", "boris", Lane.LOW)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("good\nanna sk-anna urgent", "line 2: the lane is 'urgent': it must be one of high, normal, low"),
        ("a b c d", "line 1: it has 4 words"),
        ("a\nb ü\n", "line 2: an API key has 1 characters"),
        ("# nothing\n", "has no API key in it"),
        (b"\xff\xfe", "cannot be read: it is not UTF-8"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path: Path, text: str | bytes, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_key_file(file_with(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere cannot be read: No such file"):
        read_key_file(tmp_path / "nowhere")
