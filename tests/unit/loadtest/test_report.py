"""Tables, Markdown and JSON of a run made by hand."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from llamaserve.loadtest.load import ClosedLoad, OpenLoad
from llamaserve.loadtest.outcome import Failure, Outcome
from llamaserve.loadtest.plan import Plan
from llamaserve.loadtest.record import record
from llamaserve.loadtest.render import markdown, print_sections
from llamaserve.loadtest.report import milliseconds, report
from llamaserve.loadtest.run import Point
from llamaserve.loadtest.slo import Slo
from llamaserve.loadtest.view import BarView, LineView, View
from llamaserve.loadtest.workload import Workload
from tests.unit.loadtest.outcomes import outcome, without_usage

GOOD = [outcome(0.1, 0.02, 0.02), outcome(0.3, 0.02, 0.04, submitted=100.5)]
PLAN = Plan("http://a", n_requests=2)


def text_of(plan: Plan, *points: Point) -> str:
    out = io.StringIO()
    print_sections(Console(file=out, width=80), report(plan, "tiny", points))
    return out.getvalue()


def closed(*outcomes: Outcome, warmup: tuple[Outcome, ...] = (), concurrency: int = 4) -> Point:
    return Point(ClosedLoad(concurrency), list(warmup), list(outcomes), generator_cpu=0.25)


def test_the_table_has_mean_and_percentiles_in_milliseconds() -> None:
    text = text_of(PLAN, closed(*GOOD))
    rows = {line.split("  ")[0].strip(): line.split()[-6:] for line in text.splitlines()}
    assert rows["ms"] == ["mean", "p50", "p90", "p95", "p99", "max"]
    assert rows["TTFT"] == ["200.0", "200.0", "280.0", "290.0", "298.0", "300.0"]
    assert rows["ITL"] == ["25.0", "20.0", "34.0", "37.0", "39.4", "40.0"]
    assert rows["TPOT"][0] == "25.0"
    assert rows["end to end"][5] == "360.0"
    assert rows["client queue"] == ["0.00"] * 6


def test_sentences_say_counts_rates_and_the_generators_share() -> None:
    text = text_of(PLAN, closed(*GOOD))
    assert "2 requests in 0.86 s: 2 ok, 0 failed\n" in text
    assert "output 7.0 tok/s, with prompts 30.2 tok/s, 2.33 requests/s\n" in text
    assert "prompt tokens 10 / 10.0 / 10 (min / mean / max); of them cached not reported\n" in text
    assert "the generator itself used 0.25 s of processor time, 29.1% of one core\n" in text
    assert "model tiny, completions, temperature 0, seed 0\n" in text


def test_failures_are_counted_by_kind_with_the_first_of_each() -> None:
    failures = [outcome(failure="closed"), outcome(failure="status"), outcome(failure="closed")]
    text = text_of(PLAN, closed(*GOOD, *failures, warmup=(outcome(failure="stalled"),)))
    assert "failed, closed: 2, the first: why\n" in text
    assert "failed, status: 1, the first: why\n" in text
    assert "warm-up failed, stalled: 1, the first: why\n" in text
    assert "2 ok, 3 failed" in text


def test_when_all_failed_there_are_no_figures_to_misread() -> None:
    text = text_of(PLAN, closed(outcome(failure="unreachable")))
    assert "0 ok, 1 failed" in text
    assert "tok/s" not in text


def test_missing_usage_is_reported_and_no_rate_given() -> None:
    text = text_of(PLAN, closed(GOOD[0], *without_usage([GOOD[1]])))
    assert "tokens/s unknown: 1 of 2 answers came without token counts, and their lengths are not checked\n" in text


def test_goodput_names_its_limits() -> None:
    plan = Plan("http://a", n_requests=2, slo=Slo(ttft=0.2, itl=0.05))
    text = text_of(plan, closed(*GOOD))
    assert "goodput (ttft ≤ 200 ms, itl ≤ 50 ms): 1.16 requests/s, 1 of 2 requests\n" in text


def test_an_interrupted_point_says_so() -> None:
    plan = Plan("http://a", n_requests=9)
    assert "2 requests in 0.86 s (interrupted: 9 were planned): 2 ok" in text_of(plan, closed(*GOOD))
    assert "concurrency 4\nno request ended\n" in text_of(plan, closed())


def test_a_sweep_ends_with_a_comparison() -> None:
    plan = Plan("http://a", n_requests=2, slo=Slo(ttft=0.2), loads=(ClosedLoad(1), ClosedLoad(4), OpenLoad(2)))
    text = text_of(plan, closed(*GOOD, concurrency=1), closed(*GOOD), Point(OpenLoad(2), [], [*GOOD]))
    rows = text[text.index("sweep") :].splitlines()
    assert [row[:9].strip() for row in rows[-3:]] == ["1 at once", "4 at once", "2/s"]
    assert rows[-1].split()[1:] == ["2.33", "7.0", "200.0", "298.0", "20.0", "39.4", "0", "1.16"]
    assert "sweep" not in text_of(plan, closed(*GOOD))


def test_every_line_of_the_tables_fits_a_terminal_of_80() -> None:
    slow = [outcome(123.456, 100.0, 100.0) for _ in range(2)]
    plan = Plan("http://a", n_requests=2, slo=Slo(ttft=0.2))
    text = text_of(plan, closed(*slow, concurrency=10_000), closed(*slow))
    tables = [line for line in text.splitlines() if line.startswith(("TTFT", "load", "ms", "10000", "4 "))]
    assert len(tables) == 7
    assert max(map(len, tables)) <= 80
    assert "…" not in text


def test_markdown_has_the_same_and_no_server_can_write_markup_into_it() -> None:
    evil = outcome(failure="closed")
    document = markdown(report(PLAN, "a|b<script>", [closed(*GOOD, evil)]))
    assert (
        "| ms | mean | p50 | p90 | p95 | p99 | max |\n|---|---:|---:|---:|---:|---:|---:|\n| TTFT | 200.0 |" in document
    )
    assert "- failed, closed: 1, the first: why\n" in document
    assert "a\\|b\\<script\\>" in document
    assert document.startswith("## llamaserve bench http://a\n")


def test_text_of_a_server_is_no_markup_on_the_terminal() -> None:
    out = io.StringIO()
    print_sections(Console(file=out, width=80), report(PLAN, "[red]tiny[/red]", [closed(*GOOD)]))
    assert "[red]tiny[/red]" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.00"), (0.00123, "1.23"), (0.0456, "45.6"), (1.2345, "1234"), (0.99996, "1000.0")]
)
def test_times_have_as_many_digits_as_they_deserve(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text


def json_of(plan: Plan, *points: Point, interrupted: bool = False) -> dict[str, Any]:
    document = record(plan, "tiny", points, version="1", started="2024-01-01T00:00:00+00:00", interrupted=interrupted)
    decoded = json.loads(document)
    assert isinstance(decoded, dict)
    return decoded


def test_json_has_every_parameter_but_no_headers_value() -> None:
    plan = Plan(
        "http://a",
        workload=Workload(seed=3, extra_body={"top_k": 1}),
        loads=(ClosedLoad(4), OpenLoad(0.5)),
        slo=Slo(itl=0.05),
        headers={"Authorization": "Bearer secret"},
    )
    document = json_of(plan, closed(*GOOD))
    assert document["parameters"] == {
        "url": "http://a",
        "model": "tiny",
        "endpoint": "completions",
        "input_tokens": 128,
        "output_tokens": 64,
        "shared_prefix_tokens": 0,
        "any_length": False,
        "temperature": 0.0,
        "seed": 3,
        "extra_body": {"top_k": 1},
        "requests": 32,
        "warmup": 1,
        "loads": [{"loop": "closed", "concurrency": 4}, {"loop": "open", "request_rate": 0.5}],
        "slo": {"itl": 0.05},
        "stall_timeout": 120.0,
        "headers": ["Authorization"],
    }
    assert "secret" not in json.dumps(document)
    assert (document["version"], document["interrupted"]) == ("1", False)


def test_json_has_figures_and_every_request() -> None:
    point = json_of(PLAN, closed(*GOOD, outcome(failure="closed", submitted=101)), interrupted=True)["points"][0]
    assert point["load"] == {"loop": "closed", "concurrency": 4}
    assert point["generator_cpu"] == 0.25
    assert point["summary"]["failed"] == {"closed": 1}
    assert point["summary"]["ttft"]["p50"] == pytest.approx(0.2)
    assert point["summary"]["goodput"] is None
    assert [request["submitted"] for request in point["requests"]] == [0, 0.5, 1]
    assert point["requests"][0] == {
        "submitted": 0,
        "queue": 0,
        "ttft": 0.1,
        "tpot": 0.02,
        "e2e": 0.14,
        "finished": 0.14,
        "token_times": [0.1, 0.12, 0.14],
        "prompt_tokens": 10,
        "cached_tokens": None,
        "completion_tokens": 3,
        "failure": None,
        "text": "text",
    }
    assert point["requests"][2]["failure"] == {"kind": "closed", "detail": "why"}


def test_json_of_a_point_in_which_nothing_ended_has_no_figures() -> None:
    point = json_of(PLAN, closed(warmup=(outcome(failure="stalled"),)))["points"][0]
    assert (point["summary"], point["requests"]) == (None, [])
    assert point["warmup_failures"] == [{"kind": "stalled", "detail": "why"}]


def test_lines_come_with_every_tenth_of_the_requests() -> None:
    out = io.StringIO()
    view: View = LineView(Console(file=out, width=40))
    view.part("concurrency 4", 25)
    view.tokens(7)
    for index in range(25):
        view.outcome(outcome(1) if index else outcome(failure="closed"))
    lines = out.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("llamaserve: concurrency 4: 3/25 done, ")
    assert lines[-1].startswith("llamaserve: concurrency 4: 25/25 done, ")
    assert lines[-1].endswith("tok/s, 1 failed")


def test_a_terminal_gets_a_bar_that_leaves_nothing_behind() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    with BarView(console) as view:
        view.part("4 requests/s [x]", 3)
        view.tokens(5)
        view.outcome(outcome(failure="closed"))
        assert view.figures.endswith("tok/s, 1 failed")
        view.refresh()
    shown = out.getvalue()
    assert "4 requests/s [x]" in shown
    assert "1/3" in shown
    assert "1 failed" in shown
    assert shown.endswith("\x1b[1A\x1b[2K")


def test_what_a_server_sent_does_not_steer_the_terminal() -> None:
    """Its bytes are quoted in the table of failures."""
    failure = Failure.because("status", "500: \x00\x1b[31m\u202ered\nline")
    assert failure.detail == "500: \ufffd\ufffd[31m\ufffdred line"
