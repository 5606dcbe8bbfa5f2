"""The server that counts for itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.loadtest.own_server import OwnServer, own_server


@pytest.fixture
def server() -> Iterator[OwnServer]:
    with own_server() as server:
        yield server
