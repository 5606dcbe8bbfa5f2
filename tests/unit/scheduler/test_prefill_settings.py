"""Flag before environment before default (T4, T12, T14)."""

from __future__ import annotations

import pytest

from llamaserve.errors import ConfigError
from llamaserve.scheduler.prefill_settings import (
    MAX_NUMBER,
    resolve_grant_interval,
    resolve_mixed_step,
    resolve_window_budget,
)

GARBAGE = [None, "", " ", "abc", "-3", "8.5", "eight", "16x", "1_6", "0x10", "+4", "४"]


@pytest.mark.parametrize("text", GARBAGE)
def test_what_is_no_number_counts_as_not_set(text: str | None) -> None:
    """T4, T12: 16 decode ticks, and the derived budget."""
    assert resolve_grant_interval(flag=None, text=text) == 16
    assert resolve_window_budget(flag=None, text=text, max_rows=8, prefill_chunk=256) == 4096


@pytest.mark.parametrize(("text", "expected"), [("4", 4), (" 12 ", 12), ("0", 0), ("007", 7)])
def test_the_environment_goes_before_the_default(text: str, expected: int) -> None:
    assert resolve_grant_interval(flag=None, text=text) == expected
    assert resolve_window_budget(flag=None, text=text, max_rows=4, prefill_chunk=512) == expected


@pytest.mark.parametrize("text", ["2147483647", "2147483648", "99999999999", "9" * 6000])
def test_a_huge_number_counts_as_the_largest(text: str) -> None:
    assert resolve_grant_interval(flag=None, text=text) == MAX_NUMBER
    assert resolve_window_budget(flag=None, text=text, max_rows=4, prefill_chunk=512) == MAX_NUMBER


@pytest.mark.parametrize("flag", [0, 7])
def test_the_flag_goes_before_the_environment(flag: int) -> None:
    """T4: an explicit 0 too."""
    assert resolve_grant_interval(flag=flag, text="4") == flag
    assert resolve_window_budget(flag=flag, text="4", max_rows=4, prefill_chunk=512) == flag


def test_a_negative_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"prefill_grant_interval is -1: .* at least 0"):
        resolve_grant_interval(flag=-1, text=None)
    with pytest.raises(ConfigError, match=r"max_batch_prefill_tokens is -2: .* at least 0"):
        resolve_window_budget(flag=-2, text=None, max_rows=4, prefill_chunk=512)


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize(
    ("text", "expected"),
    [(text, True) for text in ("1", "true", "yes", "on", " YES ", "True")]
    + [(text, False) for text in ("0", "false", "no", "off", " Off")]
    + [(text, None) for text in (None, "", "maybe", "2")],
)
def test_mixed_steps_are_switched_by_a_word(text: str | None, expected: bool | None, default: bool) -> None:
    """T14; a word nobody knows keeps the default."""
    wanted = default if expected is None else expected
    assert resolve_mixed_step(flag=None, text=text, default=default) is wanted
    assert resolve_mixed_step(flag=not wanted, text=text, default=default) is not wanted
