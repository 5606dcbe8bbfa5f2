"""Thousands of prompts that nobody repeats: the process does not grow."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from llamaserve.config import CacheConfig
from tests.native.conftest import LoadEngine
from tests.native.prefix_rig import Rig

WARM_UP = 1200
"""Requests after which the RAM tier is full and every list has its size."""
REQUESTS = 3600
"""What a server of one request a second has in an hour."""


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_distinct_prompts_keep_memory_flat(load: LoadEngine, dense_model: Path, tmp_path: Path) -> None:
    """S37, and the books stay right all the time: cells, ids, tiers."""
    engine = load(dense_model, n_ctx=1024, n_slots=4)
    cache = CacheConfig(cache_ram=4, cache_cells=256, cache_disk=tmp_path / "kept", cache_disk_gib=0.01)
    rig = Rig(engine, cache=cache, model_path=dense_model)
    draw = random.Random(1)
    after_warm_up = 0
    for number in range(WARM_UP + REQUESTS):
        if number == WARM_UP:
            after_warm_up = resident_bytes()
        session = f"s{number}" if number % 3 == 0 else None
        rig.submit([draw.randrange(3, 250) for _ in range(60)], 8, session=session, cache_salt=f"{number % 50}")
        if number % 4 == 3:
            rig.run()
            rig.events.clear()
            rig.check_books()
            assert rig.flush_disk(), "what waits for the disk takes memory too"
    grown = resident_bytes() / after_warm_up
    stats = rig.scheduler.stats()
    assert stats.prefix.evictions > REQUESTS / 2
    assert stats.prefix_gauges.ram_bytes <= 4 << 20
    rig.prefixes.close()
    print(f"grown by {100 * (grown - 1):.2f} %")
    assert grown <= 1.05
