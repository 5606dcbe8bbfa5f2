"""Random requests on a real engine: llama.cpp's cells are always those the books have."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llamaserve.cache.shared_prefixes import SharedPrefixes
from llamaserve.config import CacheConfig, FlashAttention, SchedulerConfig
from llamaserve.request import Failed
from tests.native.conftest import LoadEngine
from tests.native.prefix_rig import Rig

TRUNKS = ([*range(20, 100)], [*range(20, 60), *range(120, 160)], [*range(150, 210)])

PROMPTS = st.builds(
    lambda trunk, n_trunk, end: [*trunk[:n_trunk], *end],
    st.sampled_from(TRUNKS),
    st.integers(1, 80),
    st.lists(st.integers(3, 250), max_size=12),
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), PROMPTS, st.integers(1, 20), st.sampled_from(["", "", "salt"]), st.booleans()),
        st.tuples(st.just("tick"), st.integers(1, 12)),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
    ),
    min_size=5,
    max_size=40,
)


def test_cells_used_are_cells_accounted(load: LoadEngine, dense_model: Path) -> None:
    """K4, S23, S37: after any mix of ends, cancels, pressure and tiers, and no sequence id is leaked."""
    engine = load(dense_model, n_ctx=256, n_slots=3, n_batch=64, flash_attention=FlashAttention.OFF)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(OPERATIONS, st.integers(0, 1), st.sampled_from([0, 1024]))
    def check(operations: list[tuple[object, ...]], cache_ram: int, preempt_ram: int) -> None:
        config = SchedulerConfig(prefill_chunk=32, preempt_ram=preempt_ram)
        rig = Rig(engine, config, CacheConfig(cache_ram=cache_ram, cache_cells=20))
        asked: list[str] = []
        for operation, *arguments in operations:
            if operation == "ask":
                prompt, max_tokens, salt, is_cached = arguments
                asked.append(rig.submit(prompt, max_tokens, cache_salt=salt, cache_prompt=is_cached))  # type: ignore[arg-type]
            elif operation == "tick":
                for _ in range(int(str(arguments[0]))):
                    rig.scheduler.tick()
                rig.check_books()
            elif asked:
                rig.scheduler.cancel(asked[-1 - int(str(arguments[0])) % len(asked)])
        rig.run()
        rig.check_books()
        assert all(rig.events[request_id] for request_id in asked)
        forget_all(rig)
        for request_id in asked:
            end = rig.end(request_id)
            assert not isinstance(end, Failed) or "cancel" in type(end.error).__name__.lower(), end

    check()


def forget_all(rig: Rig) -> None:
    """Nothing is left when nothing is wanted: no cell, no id."""
    prefixes, engine = rig.prefixes, rig.engine
    assert isinstance(prefixes, SharedPrefixes)
    assert prefixes.make_room(engine.info.n_ctx)
    assert engine.used_cells() == 0
    assert len(prefixes._parked.free_ids) == engine.n_ids - engine.info.n_slots
    assert all(engine.length(seq_id) == 0 for seq_id in range(engine.n_ids))
