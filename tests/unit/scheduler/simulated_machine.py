"""Machines that exist as formulas, with noise, and a planner that runs on them."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from llamaserve.scheduler.piece_budget import latency_target, piece_budget
from llamaserve.scheduler.step_cost import StepCostModel, StepShape, piece_cells

SizeTime = Callable[[int], float]

# Measured on two cores with a model of 135M parameters; straight lines between.
_TWO_CORES = [(1, 0.0094), (4, 0.020), (8, 0.036), (16, 0.048), (1 << 20, 0.003 * (1 << 20))]


def two_cores(n_tokens: int) -> float:
    """Pieces of 16 at the rate of 512, pieces of 8 a third slower."""
    return _between(_TWO_CORES, n_tokens)


def _between(points: list[tuple[int, float]], n_tokens: int) -> float:
    index = bisect_left([size for size, _ in points], n_tokens)
    if points[index][0] == n_tokens:
        return points[index][1]
    (low, before), (high, after) = points[index - 1 : index + 1]
    return before + (after - before) * (n_tokens - low) / (high - low)


def accelerator(n_tokens: int) -> float:
    """The same time for any number of tokens up to 64."""
    return 0.010 * max(1.0, n_tokens / 64)


def no_base(n_tokens: int) -> float:
    """Every token costs the same."""
    return 0.003 * n_tokens


def tiles(n_tokens: int) -> float:
    """Whole tiles of 16 tokens."""
    return 0.012 * -(-n_tokens // 16)


_TWO_KERNELS = [(1, 0.012), (4, 0.031), (8, 0.057), (16, 0.108), (32, 0.200), (64, 0.370), (1 << 20, 0.006 * (1 << 20))]


def two_kernels(n_tokens: int) -> float:
    """Without matrix units: pieces of 64 at the rate of 512, those of 8 a sixth slower."""
    return _between(_TWO_KERNELS, n_tokens)


def two_kernels_cells(n_tokens: int) -> float:
    """llama.cpp's attention on a CPU: from 64 rows on a cell is read once for a tile of 64, full or not, and the fewer
    rows there are, the more tiles are cut where two threads share them. Measured with 9 heads."""
    if n_tokens < 64:
        return 7e-6
    n_computed = -(-n_tokens // 64) * 64
    return 1.55e-6 * (1 + 50 / n_computed) * n_computed / n_tokens


@dataclass
class Machine:
    """Runs steps and tells the model of them."""

    by_size: SizeTime
    cell_s: float | Callable[[int], float] = 2e-7
    """Seconds of an attended cell; by the step's tokens, if they decide it."""
    noise: float = 0.05
    hiccups: float = 0.0
    """Part of the steps that take ten times as long."""
    seed: int = 0
    model: StepCostModel = field(default_factory=StepCostModel)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def seconds(self, shape: StepShape) -> float:
        """What a step takes without noise."""
        n_tokens = shape.n_rows + shape.n_prompt
        cell_s = self.cell_s(n_tokens) if callable(self.cell_s) else self.cell_s
        return self.by_size(n_tokens) + cell_s * shape.n_attended

    def run(self, shape: StepShape) -> float:
        """What it takes now."""
        seconds = self.seconds(shape) * max(0.5, 1 + self.chance.gauss(0, self.noise))
        if self.chance.random() < self.hiccups:
            seconds *= 10
        self.model.observe(shape, seconds)
        return seconds

    def prompt_alone(self, n_tokens: int, chunk: int = 512) -> float:
        """Seconds of a prompt's pieces with nothing beside them, without noise."""
        starts = range(0, n_tokens, chunk)
        sizes = [min(chunk, n_tokens - start) for start in starts]
        cells = [piece_cells(start, size) for start, size in zip(starts, sizes, strict=True)]
        return sum(self.seconds(StepShape(0, size, n)) for size, n in zip(sizes, cells, strict=True))

    def warm_up(self, rows: StepShape, n_prompt: int = 200) -> None:
        """What a server does before a long prompt comes: short prompts, then streams."""
        for _ in range(rows.n_rows):
            self.run(StepShape(0, n_prompt, piece_cells(0, n_prompt)))
        for _ in range(50):
            self.run(rows)

    def prompt_beside(
        self, rows: StepShape, n_tokens: int, *, target_itl_ms: float | None = None, chunk: int = 512
    ) -> tuple[list[int], list[float]]:
        """Sizes and seconds of the steps that compute a prompt beside streams."""
        n_held, sizes, times = 0, [], []
        while n_held < n_tokens:
            size = piece_budget(
                self.model,
                rows,
                n_held=n_held,
                target=latency_target(self.model, rows, target_itl_ms),
                n_left=n_tokens - n_held,
                chunk=chunk,
            )
            cells = rows.n_attended + piece_cells(n_held, size)
            times.append(self.run(StepShape(rows.n_rows, size, cells)))
            sizes.append(size)
            n_held += size
        return sizes, times
