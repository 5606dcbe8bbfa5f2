"""Progress is a bar on a terminal and plain lines elsewhere."""

import io

from rich.console import Console

from llamaserve.cli.progress import DownloadBar, LoadBar


def console(is_terminal: bool) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=is_terminal, width=120, legacy_windows=False), written


def test_off_a_terminal_a_download_is_a_line_for_each_phase() -> None:
    target, written = console(is_terminal=False)
    with DownloadBar(target) as bar:
        bar.note("downloading [tiny] from a place with a long name" + "x" * 200)
        bar.advance(1, 100)
        bar.advance(100, 100)
        bar.note("unpacking")
    assert written.getvalue().splitlines() == [
        "llamaserve: downloading [tiny] from a place with a long name" + "x" * 200,
        "llamaserve: unpacking",
    ]


def test_on_a_terminal_a_download_shows_size_and_total() -> None:
    target, written = console(is_terminal=True)
    with DownloadBar(target) as bar:
        bar.note("downloading tiny")
        bar.advance(25_000_000, 100_000_000)
        bar.advance(50_000_000, 100_000_000)
    assert "50.0/100.0 MB" in written.getvalue()


def test_off_a_terminal_loading_writes_nothing() -> None:
    target, written = console(is_terminal=False)
    with LoadBar(target, "tiny") as bar:
        assert bar.advance(0.5)
    assert written.getvalue() == ""


def test_on_a_terminal_loading_shows_how_far_it_is() -> None:
    target, written = console(is_terminal=True)
    with LoadBar(target, "tiny") as bar:
        bar.advance(0.5)
    assert "loading tiny" in written.getvalue()
    assert "50%" in written.getvalue()


def test_a_cancelled_load_is_told_at_its_next_step() -> None:
    bar = LoadBar(console(is_terminal=False)[0], "tiny")
    assert bar.advance(0.1)
    bar.cancel()
    assert not bar.advance(0.2)
