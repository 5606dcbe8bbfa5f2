"""What every scheduler test starts from."""

from __future__ import annotations

import pytest

from llamaserve.config import FORCE_SYNC_VARIABLE


@pytest.fixture(autouse=True)
def _no_force_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have it set."""
    monkeypatch.delenv(FORCE_SYNC_VARIABLE, raising=False)
