"""What Ctrl-C does while modules are imported. Main thread."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends the process at once and silently inside the block.

    A KeyboardInterrupt in the middle of an import shows a traceback of other people's code, or is lost in a callback.
    Whoever started the process with Ctrl-C ignored, as a shell does behind ``&``, keeps it ignored.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
