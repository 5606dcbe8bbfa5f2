"""The time of a step by its number of tokens, from what each size class has seen. Pure.

Between the means of two classes the table is straight; sizes beyond what was seen go by ``relative_time``. A class that
has seen one or two steps, or none for long, is not taken to be slower than a larger one, nor much slower for each token
than a smaller one: its steps may have come when the machine was busy, and a size that is thought to be slow is not
computed again by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

FIRST_GUESS_S = 0.002
"""Seconds a token of a large piece takes before anything was seen."""
FIRST_KNEE = 16
"""Tokens from which pieces are thought to be efficient before anything was seen."""
FIRST_BASE = 4
"""Tokens whose time a smaller piece takes whatever its size."""
FEW_SEEN = 3
"""Steps after which a class needs no neighbour to be believed."""
LONG_AGO = 64
"""Steps after which a class that saw none of them needs its neighbours again."""
TOKEN_SLACK = 1.25
"""How much more a token may cost in such a class than in the one below: 17 tokens may need two tiles of 16."""
LEAST_PART = 0.25
"""Part of a class's time that is never put down to cells."""


def relative_time(n_tokens: float) -> float:
    """The time of a step as a multiple of a large one's time for a token, where only its size is known: below 16 tokens
    a base is left, as measured on two cores (8 tokens: 36 ms, 16: 48 ms, 512: 1536 ms)."""
    return max(n_tokens, FIRST_BASE + (1 - FIRST_BASE / FIRST_KNEE) * n_tokens)


class SizeClass:
    """Means over the recent steps of about the same number of tokens, and over many more of them."""

    __slots__ = (
        "attended",
        "long_attended",
        "long_seconds",
        "long_tokens",
        "n_seen",
        "seconds",
        "seen_at",
        "tokens",
    )

    def __init__(self, tokens: float, attended: float, seconds: float) -> None:
        self.n_seen = 1
        self.seen_at = 0
        """Number of the newest step."""
        self.tokens = self.long_tokens = tokens
        self.attended = self.long_attended = attended
        self.seconds = self.long_seconds = seconds


def time_table(
    classes: Sequence[SizeClass], cell_s: Callable[[float], float], n_steps: int
) -> tuple[list[float], list[float]]:
    """Numbers of tokens, ascending, and the seconds of a step of so many without its cells.

    ``classes``: those that have seen a step, by size; ``cell_s``: seconds of a cell in a step of so many tokens;
    ``n_steps``: number of the newest step. There are at least two points, and no time falls with the size.
    """
    tokens = [seen.tokens for seen in classes]
    times = [max(seen.seconds - cell_s(seen.tokens) * seen.attended, LEAST_PART * seen.seconds) for seen in classes]
    _doubt(classes, tokens, times, n_steps)
    _make_rising(classes, times)
    _fill_in(tokens, times)
    return tokens, times


def _doubt(classes: Sequence[SizeClass], tokens: list[float], times: list[float], n_steps: int) -> None:
    """Have neighbours correct the classes that have seen little, or nothing for long."""
    doubted = [n for n, seen in enumerate(classes) if seen.n_seen < FEW_SEEN or seen.seen_at < n_steps - LONG_AGO]
    for index in reversed(doubted):
        if index + 1 < len(classes):
            times[index] = min(times[index], times[index + 1])
    for index in doubted:
        if index:
            most = TOKEN_SLACK * times[index - 1] * tokens[index] / tokens[index - 1]
            times[index] = min(times[index], most)


def _make_rising(classes: Sequence[SizeClass], times: list[float]) -> None:
    """Have no time fall with the size: of two that contradict each other, the one seen last is believed."""
    for index in range(1, len(times)):
        if times[index] >= times[index - 1]:
            continue
        if classes[index].seen_at < classes[index - 1].seen_at:
            times[index] = times[index - 1]
            continue
        below = index - 1
        while below >= 0 and times[below] > times[index]:
            times[below] = times[index]
            below -= 1


def _fill_in(tokens: list[float], times: list[float]) -> None:
    """Points that nobody has seen, by the shape: 1 token and the knee, unless they lie within what was seen."""
    if not tokens:
        tokens.append(FIRST_KNEE)
        times.append(FIRST_GUESS_S * relative_time(FIRST_KNEE))
    if tokens[-1] < FIRST_KNEE:
        times.append(times[-1] * relative_time(FIRST_KNEE) / relative_time(tokens[-1]))
        tokens.append(FIRST_KNEE)
    for size in (FIRST_KNEE, 1):
        if tokens[0] > size:
            times.insert(0, times[0] * relative_time(size) / relative_time(tokens[0]))
            tokens.insert(0, size)
