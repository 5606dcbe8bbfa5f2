"""What every scheduler test starts from."""

from __future__ import annotations

import pytest

from llamaserve.config import FORCE_SYNC_VARIABLE
from llamaserve.scheduler.prefill_settings import GRANT_INTERVAL_VARIABLE, WINDOW_BUDGET_VARIABLE


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have some set."""
    for name in (FORCE_SYNC_VARIABLE, GRANT_INTERVAL_VARIABLE, WINDOW_BUDGET_VARIABLE):
        monkeypatch.delenv(name, raising=False)
