"""Notices clients whose prompts change near their beginning from one request to the next, which no cache can help.

Two signs, neither of which a new conversation with a known system prompt shows (K10): a session whose next prompt has
only a part of what the session left, and a prompt that goes on like a recent one behind a changed place, such as a
timestamp or a number of the request in the first message.
"""

from __future__ import annotations

import logging
from array import array

from llamaserve._hot import common_prefix
from llamaserve.cache.prefix_memory import PrefixCounters

LEAST_CACHED = 64
"""Tokens a text must have to be judged (S38)."""
SHARE_LEFT = (0.1, 0.5)
"""A session's next prompt is unstable when it has more than the first and less than the second part of the text."""
NEEDLE = 32
"""Tokens in a row that two texts have in common only if one was made from the other."""

_logger = logging.getLogger(__name__)


def is_partial_match(n_common: int, n_left: int) -> bool:
    """Whether a session's next prompt has some of its text, and not most of it (S38)."""
    low, high = SHARE_LEFT
    return n_left >= LEAST_CACHED and low < n_common / n_left < high


def goes_on_alike(tokens: array[int], text: array[int], n_common: int) -> bool:
    """Whether ``tokens`` have a part of ``text`` again behind the place where the two part."""
    n_rest = len(text) - n_common
    if n_rest < LEAST_CACHED:
        return False
    rest = memoryview(tokens)[n_common:].tobytes()
    for start in (n_common + n_rest // 4, n_common + n_rest // 2):
        at = rest.find(text[start : start + NEEDLE].tobytes())
        if at >= 0 and at % text.itemsize == 0:
            return True
    return False


class InstabilityWatch:
    """Counts prompts with an unstable prefix, and says so in the log once. One thread."""

    def __init__(self, counters: PrefixCounters) -> None:
        self._counters = counters
        self._has_warned = False

    def compare_session(self, tokens: array[int], n_held: int, left: array[int]) -> bool:
        """Judge a prompt by what its session left, if nothing better than that was found (``n_held``)."""
        n_common = common_prefix(tokens, left)
        if n_held > n_common or not is_partial_match(n_common, len(left)):
            return False
        self._note(f"{n_common} of the {len(left)} tokens its session had left")
        return True

    def compare_recent(self, tokens: array[int], n_held: int, text: array[int]) -> bool:
        """Judge a prompt by a recent text of its scope."""
        n_common = common_prefix(tokens, text)
        if n_held > n_common or not goes_on_alike(tokens, text, n_common):
            return False
        self._note(f"only its first {n_common} tokens with a text of {len(text)} that it repeats further on")
        return True

    def _note(self, what: str) -> None:
        self._counters.unstable_prefixes += 1
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "a prompt has %s: a client changes something near the beginning of its prompts (a time, a number of the"
                " request), so that they are computed again each time; further ones are only counted",
                what,
            )
