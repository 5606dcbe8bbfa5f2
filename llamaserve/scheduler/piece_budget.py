"""How many prompt tokens a step may have so that running streams hold their latency target. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from llamaserve.scheduler.step_cost import TILE_ROWS, StepCostModel, StepShape

TARGET_MULTIPLE = 4.0
"""The target where nobody set one, as a multiple of the time of a step without prompts."""
DEVIATIONS = 3.6
"""Mean deviations between what is expected and the target. The 99th percentile of a normal distribution is 2.9 of them
above its mean (2.33 * sqrt(pi / 2)); the rest is for what the model does not know of the mean."""
PACE_FOR_DEFAULT = 0.55
"""Part of the best pace of a prompt beside the rows below which the target is given up where nobody set one."""
PACE_FOR_GIVEN = 0.25
"""The same for a target that was set: who asks for it pays for it, but no prompt is starved."""
MOST_DOUBT = 0.1
"""Spread of the steps beyond which more of it counts no more: a busy machine is no reason to starve prompts."""
PATIENCE = 0.25
"""Where the target is given up: of having the streams wait twice as long the prompt must gain a sixth, ``2 ** 0.25``.
"""


class LatencyTarget(NamedTuple):
    """What steps with prompts beside streams shall hold."""

    seconds: float
    """The most a step shall take."""
    least_pace: float
    """It is held while a prompt goes on at this part of the best pace."""


def latency_target(model: StepCostModel, rows: StepShape, target_itl_ms: float | None) -> LatencyTarget | None:
    """For a step of these decode rows; None = it takes as long as it takes.

    ``target_itl_ms``: ``--target-itl``; None = a multiple of the steady time, 0 = off.
    """
    if target_itl_ms is None:
        return LatencyTarget(TARGET_MULTIPLE * model.seconds(rows), PACE_FOR_DEFAULT)
    return LatencyTarget(target_itl_ms / 1000.0, PACE_FOR_GIVEN) if target_itl_ms else None


def piece_budget(
    model: StepCostModel, rows: StepShape, *, n_held: int, target: LatencyTarget | None, n_left: int, chunk: int
) -> int:
    """Prompt tokens for a step of these decode rows; at least 1, at most ``n_left`` and ``chunk``.

    ``n_held``: tokens before the first piece; ``n_left``: tokens that all prompts have left. As many as keep 99 of 100
    steps within the target. Where pieces of that size are computed too slowly, larger ones: the prompt goes on, and
    small ones would have the streams wait more often for the same work. Without rows, or without a target, the chunk.
    """
    most = max(1, min(n_left, chunk))
    if rows[0] == 0 or target is None:
        return most
    limit_s = target.seconds / (1.0 + DEVIATIONS * model.spread)
    within = model.most_tokens(rows, n_held=n_held, limit_s=limit_s)
    if within >= most:
        return most
    sizes = _sizes_to_try(rows[0], int(model.largest_seen), chunk)
    seconds = {size: model.least_seconds(rows, size, n_held=n_held) for size in {within, *sizes} if size}
    least_s = min(seconds[size] / size for size in seconds)
    doubt = min(model.spread, MOST_DOUBT) / 2  # noise shall not make pieces larger
    if within and seconds[within] / within * (target.least_pace - doubt) <= least_s:
        return within
    size = max(within, _fairest_size(seconds, limit_s))
    # A part of a piece goes first, while the fewest cells are held.
    rest = n_left % size
    return min(most, rest if rest > size // 4 else size)


def _sizes_to_try(n_rows: int, largest_seen: int, chunk: int) -> list[int]:
    """Pieces that fill a step to a power of 2 with its rows, since kernels compute whole tiles; and the largest.

    A size nobody has seen gets the benefit of the doubt, so the knee is found wherever it is; one far above all that
    was seen is not tried on waiting streams.
    """
    largest = min(chunk, max(2 * TILE_ROWS, largest_seen))
    filled = [(1 << power) - n_rows for power in range((largest + n_rows).bit_length())]
    return [*[size for size in filled if size > 0], largest]


def _fairest_size(seconds: Mapping[int, float], limit_s: float) -> int:
    """Of which prompt and streams have most, of steps that take so many seconds."""

    def price(size: int) -> float:
        return float(seconds[size] / size * max(seconds[size], limit_s) ** PATIENCE)

    return min(seconds, key=price)
