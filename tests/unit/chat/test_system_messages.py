"""Several system messages become one, where they come first."""

from __future__ import annotations

from llamaserve.chat.system_messages import with_one_system_message

A = {"role": "system", "content": "a"}
B = {"role": "system", "content": "b"}
HI = {"role": "user", "content": "hi"}


def test_those_that_come_first_are_joined() -> None:
    joined = {"role": "system", "content": "a\n\nb\n\na"}
    assert with_one_system_message([A, B, A, HI]) == [joined, HI]
    empty = {"role": "system", "content": ""}
    assert with_one_system_message([empty, A, empty, B, {"role": "system"}]) == with_one_system_message([A, B])
    assert with_one_system_message([A, B]) == [{"role": "system", "content": "a\n\nb"}]


def test_others_stay_where_they_are() -> None:
    for messages in ([], [HI], [A, HI], [HI, A, B], [A, HI, B]):
        assert with_one_system_message(messages) is messages
    assert with_one_system_message([A, B, HI, A, B])[1:] == [HI, A, B]
