"""From flags and environment to the settings of prefill: flag before environment before default (T4). Pure.

A variable's text comes in as a value. One that cannot be read as what it should be counts as not set.
"""

from __future__ import annotations

from collections.abc import Mapping

from llamaserve.config import SchedulerConfig
from llamaserve.errors import ConfigError, shown
from llamaserve.scheduler.grant_interval import DEFAULT_GRANT_INTERVAL
from llamaserve.scheduler.prefill_window import default_window_budget
from llamaserve.scheduler.prompt_pieces import PrefillLimits

WINDOW_BUDGET_VARIABLE = "LLAMASERVE_MAX_BATCH_PREFILL_TOKENS"
GRANT_INTERVAL_VARIABLE = "LLAMASERVE_PREFILL_GRANT_INTERVAL"
MIXED_STEP_VARIABLE = "LLAMASERVE_MIXED_STEP"

MAX_NUMBER = 2**31 - 1
"""What a larger number in the environment counts as."""

_SWITCH_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def prefill_limits(config: SchedulerConfig, *, n_batch: int, environment: Mapping[str, str]) -> PrefillLimits:
    """What bounds the pieces of a step."""
    return PrefillLimits(
        n_batch=n_batch,
        prefill_chunk=config.prefill_chunk,
        max_rows=config.max_batch_prefill,
        window_budget=resolve_window_budget(
            flag=config.max_batch_prefill_tokens,
            text=environment.get(WINDOW_BUDGET_VARIABLE),
            max_rows=config.max_batch_prefill,
            prefill_chunk=config.prefill_chunk,
        ),
    )


def grant_interval(config: SchedulerConfig, environment: Mapping[str, str]) -> int:
    """Decode steps before a prompt in pieces is granted one, where steps are not mixed."""
    return resolve_grant_interval(flag=config.prefill_grant_interval, text=environment.get(GRANT_INTERVAL_VARIABLE))


def resolve_window_budget(*, flag: int | None, text: str | None, max_rows: int, prefill_chunk: int) -> int:
    """Tokens of a prefill window; 0 = no limit. Raises ConfigError for a negative flag."""
    derived = default_window_budget(max_rows=max_rows, prefill_chunk=prefill_chunk)
    return _resolve("max_batch_prefill_tokens", flag, text, derived)


def resolve_grant_interval(*, flag: int | None, text: str | None) -> int:
    """Decode steps before a prompt in pieces is granted one; 0 = none while anything decodes. Raises ConfigError for a
    negative flag."""
    return _resolve("prefill_grant_interval", flag, text, DEFAULT_GRANT_INTERVAL)


def resolve_mixed_step(*, flag: bool | None, text: str | None, default: bool = True) -> bool:
    """Whether steps are mixed (T14)."""
    if flag is not None:
        return flag
    return default if text is None else _SWITCH_WORDS.get(text.strip().lower(), default)


def _resolve(name: str, flag: int | None, text: str | None, default: int) -> int:
    if flag is not None:
        if flag < 0:
            raise ConfigError(f"{name} is {shown(flag)}: it must be a whole number of at least 0")
        return flag
    number = None if text is None else _unsigned(text)
    return default if number is None else number


def _unsigned(text: str) -> int | None:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()):
        return None
    if len(digits.lstrip("0")) > len(str(MAX_NUMBER)):  # also: int() refuses thousands of digits
        return MAX_NUMBER
    return min(int(digits), MAX_NUMBER)
