"""Ctrl-C while the command is still being imported."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from llamaserve.cli.interrupt import ended_by_ctrl_c

PATIENCE_S = 30.0

# Presses Ctrl-C in the middle of the import of a module, then runs the command.
PROGRAM = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, CtrlC())
from llamaserve.cli import main
main(["complete", "hi", "-m", "no-such-file.gguf"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
@pytest.mark.parametrize(
    "module", ["llamaserve.cli.commands", "typer", "msgspec", "llamaserve.cli.real_parts", "uvicorn"]
)
def test_ctrl_c_during_an_import_ends_the_process_silently(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_is_a_keyboard_interrupt_again_afterwards() -> None:
    with ended_by_ctrl_c():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    """A shell starts programs behind ``&`` this way."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ended_by_ctrl_c():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
