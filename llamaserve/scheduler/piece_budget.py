"""How many prompt tokens a step may have so that running streams hold their latency target. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from llamaserve.scheduler.step_cost import FEW_ROWS, StepCostModel, StepShape

TARGET_MULTIPLE = 4.0
"""The target where nobody set one, as a multiple of the time of a step without prompts."""
DEVIATIONS = 3.6
"""Mean deviations between what is expected and the target. The 99th percentile of a normal distribution is 2.9 of them
above its mean (2.33 * sqrt(pi / 2)); the rest is for what the model does not know of the mean."""
ACCEPTABLE = 0.6
"""Part of the best pace at which a prompt can go on beside the rows that is enough where the target asks for it; less
by half the spread of the steps, so that noise does not make pieces larger."""
PATIENCE = 0.25
"""Where no piece within the target is fast enough: of having the streams wait twice as long the prompt must gain a
sixth, ``2 ** 0.25``."""


def target_seconds(model: StepCostModel, rows: StepShape, target_itl_ms: float | None) -> float | None:
    """The most a step of these decode rows shall take with prompts beside them; None = as long as it takes.

    ``target_itl_ms``: ``--target-itl``; None = a multiple of the steady time, 0 = off.
    """
    if target_itl_ms is None:
        return TARGET_MULTIPLE * model.seconds(rows)
    return target_itl_ms / 1000.0 if target_itl_ms else None


def piece_budget(
    model: StepCostModel, rows: StepShape, *, n_held: int, target_s: float | None, n_left: int, chunk: int
) -> int:
    """Prompt tokens for a step of these decode rows; at least 1, at most ``n_left`` and ``chunk``.

    ``n_held``: tokens before the first piece; ``n_left``: tokens that all prompts have left. As many as keep 99 of 100
    steps within the target. Where pieces of that size are computed too slowly, larger ones: the prompt goes on, and
    small ones would have the streams wait more often for the same work. Without rows, or without a target, the chunk.
    """
    most = max(1, min(n_left, chunk))
    if rows[0] == 0 or target_s is None:
        return most
    limit_s = target_s / (1.0 + DEVIATIONS * model.spread)
    size = model.most_tokens(rows, n_held=n_held, limit_s=limit_s)
    if size >= most:
        return most
    # One far above all that was seen is not tried on waiting streams.
    largest = min(chunk, max(2 * FEW_ROWS, int(model.largest_seen)))
    seconds = {
        power_of_2: model.least_seconds(rows, power_of_2, n_held=n_held)
        for power_of_2 in [1 << power for power in range(largest.bit_length())]
    }
    least_s = min(seconds[other] / other for other in seconds)
    if size and model.least_seconds(rows, size, n_held=n_held) / size * (ACCEPTABLE - model.spread / 2) <= least_s:
        return size
    return min(most, max(size, _fairest_size(seconds, limit_s)))


def _fairest_size(seconds: Mapping[int, float], limit_s: float) -> int:
    """Of which prompt and streams have most, of steps that take so many seconds. A size nobody has seen got the benefit
    of the doubt, so the knee is found wherever it is."""

    def price(size: int) -> float:
        return float(seconds[size] / size * max(seconds[size], limit_s) ** PATIENCE)

    return min(seconds, key=price)
