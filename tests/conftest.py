"""For all tests."""

from __future__ import annotations

import signal

# A shell that starts a test run in the background has it ignore SIGINT, and its child processes inherit that: what is
# tested about Ctrl-C would then be about something else.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
