"""One real server for all tests that talk HTTP."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.e2e.http_server import RealServer, real_server


@pytest.fixture(scope="session")
def http_server() -> Generator[RealServer, None, None]:
    """The default model behind a real socket."""
    with real_server() as server:
        yield server
