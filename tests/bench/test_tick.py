"""The scenario ``tick``."""

from __future__ import annotations

import json

import pytest

from bench import tick
from bench.phase_clock import PHASES, TICK
from llamaserve.engine.fake import FakeEngine


def test_a_steady_tick_decodes_a_token_of_every_slot() -> None:
    measured = tick.measure_steady(slots=3, n_ticks=4)
    assert measured.slots == 3
    assert measured.engine > 0
    assert measured.phases.keys() == {*PHASES, TICK}


def test_a_turnover_ends_a_request_of_every_slot_in_every_tick() -> None:
    measured = tick.measure_turnover(slots=3, n_ticks=4)
    assert measured.tick > 0
    assert measured.phases["admit"] > 0


def test_a_tick_that_is_not_what_it_should_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def ending(**options: object) -> FakeEngine:
        return FakeEngine(n_slots=2, n_ctx=64, n_ctx_seq=12, continuation=lambda _: ord("a"))

    monkeypatch.setattr(tick, "FakeEngine", ending)
    with pytest.raises(RuntimeError, match="2 slots: a tick was not what it should be"):
        tick.measure_steady(slots=2, n_ticks=20)


def test_the_engines_time_is_taken_out_of_the_schedulers_cost() -> None:
    measured = tick.measure_steady(slots=2, n_ticks=5)
    assert 0 < measured.scheduler < measured.tick
    assert 0 < measured.engine < measured.tick


@pytest.mark.parametrize(("slots", "expected"), [(1, 3000), (8, 2500), (64, 312), (250, 200)])
def test_a_round_has_about_as_many_tokens_at_every_size(slots: int, expected: int) -> None:
    assert tick.ticks_of(slots, is_quick=False) == expected


def test_the_tables_have_a_row_for_every_number_of_slots() -> None:
    phases = dict.fromkeys((*PHASES, TICK), 1.0)
    rounds = {n: [tick.Ticks(n, tick=30.0, engine=10.0, scheduler=20.0, phases=phases)] for n in (1, 8)}
    table = tick.cost_table("Cost", rounds, "token")
    assert [row[0] for row in table.rows] == ["1", "8"]
    assert table.rows[1][1:3] == ["20.0 (20.0..20.0)", "2.50 (2.50..2.50)"]
    assert "| around them |" in tick.phase_table("Phases", rounds).markdown()


def test_a_run_can_be_written_as_json() -> None:
    assert json.loads(json.dumps(vars(tick.measure_steady(slots=1, n_ticks=2))))["slots"] == 1
