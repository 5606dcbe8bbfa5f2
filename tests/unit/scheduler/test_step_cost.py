"""What the cost model learns from simulated machines, and what it makes of bad steps."""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserve.scheduler.step_cost import TILE_ROWS, StepCostModel, StepShape, piece_cells
from llamaserve.scheduler.time_table import FIRST_GUESS_S, relative_time
from tests.unit.scheduler.simulated_machine import Machine, SizeTime, accelerator, no_base, two_cores

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def times_as_slow(factor: float, n_tokens: int) -> float:
    return factor * two_cores(n_tokens)


def trained(by_size: SizeTime, *, n_steps: int = 600, **options: float) -> Machine:
    """A machine whose model has seen pieces of all sizes behind contexts of all lengths."""
    machine = Machine(by_size, **options)  # type: ignore[arg-type]  # the options are floats
    for step in range(n_steps):
        size = SIZES[step % len(SIZES)]
        machine.run(StepShape(0, size, piece_cells(machine.chance.randint(0, 4000), size)))
    return machine


def test_before_it_has_seen_anything_a_step_has_a_time_that_grows_with_its_size() -> None:
    model = StepCostModel()
    times = [model.seconds(StepShape(0, size, 0)) for size in SIZES]
    assert times[0] > 0
    assert times == sorted(times)
    assert times[-1] == pytest.approx(512 * FIRST_GUESS_S)
    assert model.seconds(StepShape(0, 0, 0)) == 0.0
    assert model.largest_seen == 0


@pytest.mark.parametrize(("by_size", "cell_s"), [(two_cores, 2e-7), (accelerator, 5e-9), (no_base, 2e-7)])
def test_it_learns_what_sizes_and_contexts_cost(by_size: SizeTime, cell_s: float) -> None:
    """Within 15 % of the truth, for sizes between those it saw too; single steps vary by 5 %."""
    machine = trained(by_size, cell_s=cell_s)
    for size in (*SIZES, 6, 24, 100, 384):
        for n_held in (0, 2000, 4000):
            shape = StepShape(0, size, piece_cells(n_held, size))
            assert machine.model.seconds(shape) == pytest.approx(machine.seconds(shape), rel=0.15), (size, n_held)


def test_it_knows_where_pieces_become_too_small() -> None:
    """The knee of two cores: 16 tokens at the rate of 512, 8 a third slower."""
    model = trained(two_cores, cell_s=0.0).model
    rates = {size: size / model.least_seconds(StepShape(0, 0, 0), size, n_held=0) for size in SIZES}
    assert rates[16] == pytest.approx(rates[512], rel=0.1)
    assert rates[8] == pytest.approx(2 / 3 * rates[512], rel=0.1)


def test_one_step_that_took_ten_times_as_long_changes_little() -> None:
    machine = trained(two_cores, noise=0.0)
    shape = StepShape(4, 12, 5000)
    for _ in range(20):
        machine.run(shape)
    before = machine.model.seconds(shape)
    machine.model.observe(shape, 10 * machine.seconds(shape))
    assert machine.model.seconds(shape) == pytest.approx(before, rel=0.06)


def test_a_first_step_that_took_ten_times_as_long_is_corrected_by_its_neighbours() -> None:
    machine = Machine(two_cores, cell_s=0.0, noise=0.0)
    for size in (4, 16, 256):
        for _ in range(3):
            machine.run(StepShape(0, size, 0))
    machine.model.observe(StepShape(0, 64, 0), 10 * two_cores(64))
    assert machine.model.seconds(StepShape(0, 64, 0)) < 1.5 * two_cores(64)


def test_it_follows_a_machine_that_becomes_three_times_slower_and_one_that_becomes_faster() -> None:
    machine = trained(two_cores, cell_s=0.0)
    for factor in (3.0, 0.3):
        machine.by_size = partial(times_as_slow, factor)
        for _ in range(30):
            machine.run(StepShape(0, 16, 0))
        assert machine.model.seconds(StepShape(0, 16, 0)) == pytest.approx(factor * two_cores(16), rel=0.15)


def test_what_a_cell_costs_is_not_guessed_from_noise() -> None:
    """Steady streams over short contexts say nothing of long prompts."""
    machine = Machine(two_cores, cell_s=0.0, noise=0.1)
    for n_cells in range(400, 1400):
        machine.run(StepShape(4, 0, n_cells))
    shape = StepShape(0, 512, piece_cells(0, 512))
    assert machine.model.seconds(shape) < 3 * 512 * two_cores(4) / 4


def test_the_time_of_decode_rows_alone_is_the_steady_time() -> None:
    machine = Machine(two_cores)
    for _ in range(100):
        machine.run(StepShape(4, 0, 1200))
        machine.run(StepShape(4, 60, 60_000))
    assert machine.model.seconds(StepShape(4, 0, 1200)) == pytest.approx(two_cores(4), rel=0.1)


def test_spread_is_the_mean_distance_and_bounded() -> None:
    """Of a normal distribution it is 0.8 standard deviations."""
    assert trained(no_base, noise=0.1, n_steps=2000).model.spread == pytest.approx(0.08, abs=0.03)
    model = StepCostModel()
    for step in range(500):
        model.observe(StepShape(1, 0, 0), 10.0 ** (step % 3))
    assert model.spread <= 0.25


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=str(seconds)):
        StepCostModel().observe(StepShape(1, 0, 0), seconds)


def test_a_step_that_was_not_measured_teaches_nothing() -> None:
    model = StepCostModel()
    before = model.seconds(StepShape(4, 0, 0))
    model.observe(StepShape(4, 0, 0), 0.0)
    model.observe(StepShape(0, 0, 0), 1.0)
    assert (model.seconds(StepShape(4, 0, 0)), model.largest_seen) == (before, 0)


def test_sizes_nobody_saw_go_by_the_shape_of_small_steps() -> None:
    model = StepCostModel()
    model.observe(StepShape(0, 512, 0), 1.536)
    assert model.seconds(StepShape(0, 16, 0)) == pytest.approx(0.048)
    assert model.seconds(StepShape(0, 8, 0)) == pytest.approx(0.030)
    assert model.seconds(StepShape(0, 2048, 0)) == pytest.approx(4 * 1.536)
    assert [relative_time(size) for size in (16, 512)] == [16, 512]


STEPS = st.tuples(
    st.builds(StepShape, st.integers(0, 64), st.integers(0, 4096), st.integers(0, 10**7)),
    st.floats(1e-6, 1e3),
)


@given(
    steps=st.lists(STEPS, max_size=60),
    n_rows=st.integers(0, 64),
    n_held=st.integers(0, 30_000),
    limit_s=st.floats(1e-6, 100),
)
def test_times_are_positive_and_grow_and_the_largest_piece_is_the_largest(
    steps: list[tuple[StepShape, float]], n_rows: int, n_held: int, limit_s: float
) -> None:
    """Whatever it was told."""
    model = StepCostModel()
    for shape, seconds in steps:
        model.observe(shape, seconds)
    before = 0.0
    for size in range(1, 600, 7):
        seconds = model.seconds(StepShape(n_rows, size, piece_cells(n_held, size)))
        assert seconds > 0
        is_other_kernel = n_rows + size - 7 < TILE_ROWS <= n_rows + size
        assert is_other_kernel or seconds >= before * (1 - 1e-9)
        before = seconds
    most = model.most_tokens(StepShape(n_rows, 0, 50 * n_rows), n_held=n_held, limit_s=limit_s)

    def takes(size: int) -> float:
        return model.seconds(StepShape(n_rows, size, 50 * n_rows + piece_cells(n_held, size)))

    assert most == 0 or takes(most) <= limit_s * (1 + 1e-6)
    assert takes(most + 1) >= limit_s * (1 - 1e-6)
