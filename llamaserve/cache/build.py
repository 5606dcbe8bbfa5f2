"""From options to the prefix memory an engine can have."""

from __future__ import annotations

import logging
from pathlib import Path

from llamaserve.cache.disk_tier import DiskTier
from llamaserve.cache.fingerprint import fingerprint
from llamaserve.cache.prefix_memory import PrefixMemory
from llamaserve.cache.ram_tier import RamTier
from llamaserve.cache.shared_prefixes import SharedPrefixes
from llamaserve.cache.slot_prefixes import SlotPrefixes
from llamaserve.cache.tiers import Tiers
from llamaserve.config import CacheConfig
from llamaserve.engine.port import Engine, MemoryKind

CHECKPOINT_BYTES = 256 << 20
"""RAM that checkpoints of all slots may take; only memory that cannot be trimmed has any."""

_logger = logging.getLogger(__name__)


def make_prefix_memory(engine: Engine, config: CacheConfig, model_path: Path | None = None) -> PrefixMemory:
    """Any slot can use what another computed where cells can be shared; else each slot keeps its own.

    ``model_path`` is the model file: what the disk keeps is bound to it. Without it there is no disk tier.
    """
    can_trim = engine.can_share or engine.info.memory is MemoryKind.KV
    ram = RamTier(config.cache_ram_bytes, can_trim=can_trim) if config.cache_ram else None
    tiers = Tiers(engine, ram, _make_disk(engine, config, model_path, can_trim=can_trim), can_trim=can_trim)
    if engine.can_share:
        return SharedPrefixes(engine, tiers, most_parked=config.cache_cells)
    return SlotPrefixes(engine, tiers, similarity=config.slot_prompt_similarity, checkpoint_bytes=CHECKPOINT_BYTES)


def _make_disk(engine: Engine, config: CacheConfig, model_path: Path | None, *, can_trim: bool) -> DiskTier | None:
    if config.cache_disk is None:
        return None
    if model_path is None:
        _logger.warning("the prefix cache in %s is off: the model does not come from a file", config.cache_disk)
        return None
    key = fingerprint(model_path, engine.state_layout)
    return DiskTier(config.cache_disk, config.cache_disk_bytes, key, can_trim=can_trim)
