"""Room for connections: how many files this process may have open. Once, at the start."""

from __future__ import annotations

from contextlib import suppress

ENOUGH = 65536
"""Sockets and files; the kernel keeps tables for them only when they are opened."""


def allow_many_connections() -> None:
    """Raise this process' own limit of open files as far as it may, up to ``ENOUGH``. Systems often begin with 1024,
    which a thousand idle connections use up: nobody could connect any more then."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # some systems have a lower limit than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
