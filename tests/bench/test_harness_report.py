"""A report is printed, written and joined; one with an arm that did not engage ends with 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.harness import report as report_module
from bench.harness.machine_load import LoadSnapshot, others_text
from bench.harness.options import shown_command
from bench.harness.report import Report, Table, joined, publish

KEY = "1.2.3-abcdef0-x86_64-2-cores"


@pytest.fixture(autouse=True)
def _known_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "result_key", lambda: KEY)


def report(results: Path, **changes: object) -> Report:
    made = Report(
        scenario="decode",
        question="How fast?",
        command="python -m bench.decode",
        setting="model.gguf, 2 threads",
        tables=[Table("Rates", ["", "1 stream"], [["llamaserve", "101.5"]])],
        raw={"llamaserve": [101.5]},
        results=results,
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_table_is_markdown_with_a_title() -> None:
    table = Table("Rates", ["", "1 stream"], [["llamaserve", "101.5"]])
    assert table.markdown() == "Rates:\n\n|  | 1 stream |\n| --- | ---: |\n| llamaserve | 101.5 |"


def test_a_row_with_a_cell_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match="has 1 cells, not 2"):
        Table("Rates", ["", "1 stream"], [["llamaserve"]]).markdown()


def test_a_published_report_is_a_page_its_figures_and_the_joined_page(tmp_path: Path) -> None:
    page = publish(report(tmp_path, notes=["short prompts"]), None)
    assert page == tmp_path / KEY / "decode.md"
    assert "| llamaserve | 101.5 |" in page.read_text(encoding="utf-8")
    assert "- short prompts" in page.read_text(encoding="utf-8")
    figures = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert figures["raw"] == {"llamaserve": [101.5]}
    assert figures["setting"] == "model.gguf, 2 threads"
    assert figures["machine"]
    assert "## decode" in (tmp_path / f"{KEY}.md").read_text(encoding="utf-8")


def test_the_joined_page_has_every_scenario_published_so_far(tmp_path: Path) -> None:
    publish(report(tmp_path), None)
    publish(report(tmp_path, scenario="stall"), None)
    text = (tmp_path / f"{KEY}.md").read_text(encoding="utf-8")
    assert text.index("## decode") < text.index("## stall")


def test_the_joined_page_moves_headings_down_and_finds_the_plots() -> None:
    pages = {"decode": "# decode\n\nHow fast?\n\n![decode](decode.png)\n"}
    assert joined("1.2.3 at abcdef0", {"memory": "24 GiB"}, pages, KEY) == (
        f"# 1.2.3 at abcdef0\n\n- memory: 24 GiB\n\n## decode\n\nHow fast?\n\n![decode]({KEY}/decode.png)\n"
    )


def test_a_quick_report_is_printed_and_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(report(tmp_path, is_quick=True), None)
    assert list(tmp_path.iterdir()) == []
    assert "| llamaserve | 101.5 |" in capsys.readouterr().out


def test_an_arm_that_did_not_engage_is_named_and_ends_the_command_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """K145; the other arms' figures are published all the same."""
    with pytest.raises(SystemExit) as ended:
        publish(report(tmp_path, not_engaged=["llamaserve: no prefix was shared"]), None)
    assert ended.value.code == 1
    text = (tmp_path / KEY / "decode.md").read_text(encoding="utf-8")
    assert "**Did not engage:** llamaserve: no prefix was shared." in text
    assert "did not engage: llamaserve: no prefix was shared" in capsys.readouterr().err


def test_a_plot_is_small_and_linked(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plots need the dependency group bench")
    page = publish(report(tmp_path), lambda figure: figure.subplots().plot([1, 2, 4], [1.0, 1.9, 3.1]))
    assert 0 < page.with_suffix(".png").stat().st_size < 100_000
    assert "![decode](decode.png)" in page.read_text(encoding="utf-8")


def test_a_command_is_shown_without_the_folders_of_this_machine() -> None:
    arguments = ["--rounds", "3", "-m", "/home/somebody/models/model.gguf", "--quick"]
    assert shown_command("decode", arguments) == "python -m bench.decode --rounds 3 -m model.gguf --quick"


def test_what_others_had_of_the_machine_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 seconds of 2 cores: 12 busy, 8 of them ours."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    start = LoadSnapshot(at=100.0, busy=50.0, stolen=1.0, own=3.0)
    end = LoadSnapshot(at=110.0, busy=62.0, stolen=3.0, own=11.0)
    text = others_text(start, end)
    assert text == "Meanwhile other processes had 20% of the machine, and the host gave 10% to other guests."
    assert others_text(None, end) is None
