"""Limits: how they are written and when they are kept."""

from __future__ import annotations

import pytest

from llamaserve.errors import ConfigError
from llamaserve.loadtest.outcome import Outcome
from llamaserve.loadtest.slo import Slo
from tests.unit.loadtest.outcomes import outcome, without_usage


def test_limits_are_written_in_milliseconds() -> None:
    slo = Slo.parse(["ttft:500", "itl:50.5", "tpot:40", "e2e:9000"])
    assert slo == Slo(ttft=0.5, itl=0.0505, tpot=0.04, e2e=9)
    assert Slo.parse(["itl:50"]).limits == {"itl": 0.05}


@pytest.mark.parametrize(
    "text", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-1", "ttft:nan", "ttft:inf", "TTFT:5", "e2el:5", "", ":5"]
)
def test_a_bad_limit_is_quoted(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Slo.parse([text])
    assert repr(text) in str(refused.value)


def test_a_second_limit_for_one_thing_is_refused() -> None:
    with pytest.raises(ConfigError, match="second limit for itl"):
        Slo.parse(["itl:50", "itl:60"])


@pytest.mark.parametrize(
    ("slo", "one", "is_met"),
    [
        (Slo(), outcome(9, 9), True),
        (Slo(ttft=1), outcome(1, 9), True),
        (Slo(ttft=1), outcome(1.1), False),
        (Slo(itl=1), outcome(9, 1, 1), True),
        (Slo(itl=1), outcome(9, 0.1, 1.1, 0.1), False),
        (Slo(tpot=1), outcome(9, 0.5, 1.5), True),
        (Slo(tpot=1), outcome(9, 1.5, 1.5), False),
        (Slo(e2e=3), outcome(1, 1, 1), True),
        (Slo(e2e=2.9), outcome(1, 1, 1), False),
        (Slo(ttft=1, e2e=2.9), outcome(1, 1, 1), False),
        (Slo(itl=1, tpot=1), outcome(1), True),
        (Slo(ttft=1), outcome(tokens=0), False),
        (Slo(tpot=9), without_usage([outcome(1, 1)])[0], False),
        (Slo(itl=9), without_usage([outcome(1, 1)])[0], True),
    ],
)
def test_a_request_keeps_its_limits_or_not(slo: Slo, one: Outcome, is_met: bool) -> None:
    assert slo.is_met_by(one) is is_met
