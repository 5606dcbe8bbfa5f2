"""How many prompt tokens a step may have so that running streams hold their latency target. Pure."""

from __future__ import annotations

from llamaserve.scheduler.step_cost import StepCostModel, StepShape

TARGET_MULTIPLE = 4.0
"""The target where nobody set one, as a multiple of the time of a step without prompts."""
DEVIATIONS = 3.6
"""Mean deviations between what is expected and the target. The 99th percentile of a normal distribution is 2.9 of them
above its mean (2.33 * sqrt(pi / 2)); the rest is for what the model does not know of the mean."""
EFFICIENT = 0.9
"""Part of the best rate at which a piece is computed that is as small as the model allows."""
ACCEPTABLE = 0.75
"""Part of the best rate that is enough where the target asks for it. Both are less by the spread of the steps, so that
noise does not make pieces larger."""


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
    steps within the target. Where pieces of that size are computed too slowly, the smallest that are not: the prompt
    goes on, and smaller ones would have the streams wait more often for the same work. Without rows, or without a
    target, the chunk.
    """
    most = max(1, min(n_left, chunk))
    if rows[0] == 0 or target_s is None:
        return most
    size = model.most_tokens(rows, n_held=n_held, limit_s=target_s / (1.0 + DEVIATIONS * model.spread))
    if size >= most:
        return most
    best_s = model.best_token_s(n_held=n_held)
    if size and model.token_s(size, n_held=n_held) <= best_s / (ACCEPTABLE - model.spread):
        return size
    return min(most, max(size, _efficient_size(model, rows[0], n_held, best_s, chunk)))


def _efficient_size(model: StepCostModel, n_rows: int, n_held: int, best_s: float, chunk: int) -> int:
    """The smallest power of two whose tokens cost little more than the best. A size nobody has seen gets the benefit of
    the doubt, and nothing is known of rates above the largest seen: so the knee is found wherever it is."""
    most_s = best_s / (EFFICIENT - model.spread)
    size = 1
    while size < chunk and model.least_token_s(size, n_rows=n_rows, n_held=n_held) > most_s:
        size *= 2
    if size > model.largest_seen / 2:
        size *= 2
    return min(size, chunk)
