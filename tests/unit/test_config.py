"""Options check themselves and say which one is wrong."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from llamaserve.config import (
    FORCE_SYNC_VARIABLE,
    CacheConfig,
    EngineConfig,
    FlashAttention,
    HttpConfig,
    Profile,
    SchedulerConfig,
    split_options,
    usable_cores,
)
from llamaserve.errors import ConfigError, UnknownOption


def test_the_defaults_are_those_of_the_specification() -> None:
    """§1.1."""
    config = EngineConfig(Path("model.gguf"))
    assert (config.n_ctx, config.n_slots, config.n_batch, config.n_ubatch) == (8192, 4, 2048, 512)
    assert config.n_gpu_layers == 99
    scheduler = SchedulerConfig()
    assert (scheduler.max_queue, scheduler.prefill_chunk, scheduler.mixed_step) == (64, 512, True)
    assert (scheduler.max_queue_tokens, scheduler.queue_aging) == (0, True)
    assert (scheduler.lookahead, scheduler.preempt_ram) == (True, 1024)
    cache = CacheConfig()
    assert (cache.cache_prompt, cache.cache_disk, cache.slot_prompt_similarity) == (True, None, 0.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_ctx", 0),
        ("n_ctx", 2**31),
        ("n_ctx", 4096.0),
        ("n_slots", 0),
        ("n_slots", 257),
        ("n_batch", 0),
        ("n_ubatch", 0),
        ("n_threads", -1),
        ("n_threads_batch", 1025),
        ("n_gpu_layers", -1),
        ("n_batch", 2**31),
        ("n_ubatch", 2**31),
        ("n_gpu_layers", 99_999_999_999),
        ("n_slots", True),
    ],
)
def test_an_engine_option_that_cannot_work_is_refused_by_name(name: str, value: object) -> None:
    """K18."""
    with pytest.raises(ConfigError, match=f"^{name} is {value}"):
        EngineConfig(Path("model.gguf"), **{name: value})  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("model_path", "model.gguf", "a Path"),
        ("profile", "parity", "a Profile"),
        ("flash_attention", "on", "a FlashAttention"),
        ("use_mmap", 1, "True or False"),
        ("use_mlock", "no", "True or False"),
        ("check_tensors", None, "True or False"),
        ("swa_full", "false", "True or False"),
        ("gather_cells", 0, "True or False"),
    ],
)
def test_an_engine_option_of_the_wrong_type_is_refused_by_name(name: str, value: object, expected: str) -> None:
    """K18: a string that looks like a profile would silently be the other one."""
    with pytest.raises(ConfigError, match=f"^{name} is {value!r}: it must be {expected}$"):
        EngineConfig(**{"model_path": Path("model.gguf"), name: value})  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("name", ["n_batch", "n_ubatch", "n_gpu_layers"])
def test_a_size_may_be_as_large_as_llama_cpps_integers(name: str) -> None:
    assert getattr(EngineConfig(Path("model.gguf"), **{name: 2**31 - 1}), name) == 2**31 - 1  # type: ignore[arg-type]


def test_a_number_too_long_to_write_out_is_refused_as_well() -> None:
    with pytest.raises(ConfigError, match=r"^n_ctx is <a number of 16610 bits>: it must be"):
        EngineConfig(Path("model.gguf"), n_ctx=10**5000)


def test_a_batch_smaller_than_the_slots_is_refused() -> None:
    """K18: llama.cpp aborts the process on it."""
    with pytest.raises(ConfigError, match=r"^n_batch is 3: it must be at least n_slots, 4$"):
        EngineConfig(Path("model.gguf"), n_slots=4, n_batch=3)
    assert EngineConfig(Path("model.gguf"), n_slots=4, n_batch=4).n_batch == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_queue", -1),
        ("max_queue_tokens", -1),
        ("queue_aging", 1),
        ("target_itl", -1),
        ("target_itl", 60_001),
        ("target_itl", "fast"),
        ("max_batch_prefill", 0),
        ("max_batch_prefill_tokens", -1),
        ("prefill_grant_interval", -1),
        ("prefill_chunk", -1),
        ("max_queue", None),
        ("mixed_step", "off"),
        ("lookahead", 1),
        ("preempt_ram", -1),
        ("preempt_ram", 0.5),
    ],
)
def test_a_scheduler_option_that_cannot_work_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is {value!r}: it must be"):
        SchedulerConfig(**{name: value})  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache_prompt", None),
        ("cache_ram", -1),
        ("cache_ram", 0.5),
        ("cache_ram", 2**31),
        ("cache_disk", "folder"),
        ("cache_disk_gib", 0),
        ("cache_disk_gib", -0.5),
        ("cache_disk_gib", math.inf),
        ("cache_disk_gib", math.nan),
        ("cache_disk_gib", True),
        ("cache_disk_gib", "10"),
        ("cache_disk_gib", 2**20 + 1),
        ("slot_prompt_similarity", -0.1),
        ("slot_prompt_similarity", 1.1),
        ("slot_prompt_similarity", math.nan),
        ("slot_prompt_similarity", None),
    ],
)
def test_a_cache_option_that_cannot_work_is_refused_by_name(name: str, value: object) -> None:
    """K18."""
    with pytest.raises(ConfigError, match=f"^{name} is {value!r}: it must be"):
        CacheConfig(**{name: value})  # type: ignore[arg-type]  # that is the point


def test_sizes_of_the_cache_are_also_bytes() -> None:
    config = CacheConfig(cache_ram=3, cache_disk=Path("folder"), cache_disk_gib=0.5)
    assert (config.cache_ram_bytes, config.cache_disk_bytes) == (3 * 2**20, 2**29)
    assert CacheConfig(cache_ram=0).cache_ram_bytes == 0
    assert CacheConfig(cache_disk_gib=1e-12).cache_disk_bytes == 1


@pytest.mark.parametrize("similarity", [0, 1, 0.5])
def test_a_similarity_may_stand_at_both_ends_of_its_range(similarity: float) -> None:
    assert CacheConfig(slot_prompt_similarity=similarity).slot_prompt_similarity == similarity


@pytest.mark.parametrize(("value", "looks_ahead"), [(None, True), ("1", False), ("0", False), ("", False)])
def test_nothing_runs_ahead_while_the_environment_forces_one_step_at_a_time(
    value: str | None, looks_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L15: whatever its value; and the option alone is enough as well."""
    monkeypatch.delenv(FORCE_SYNC_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(FORCE_SYNC_VARIABLE, value)
    assert SchedulerConfig().looks_ahead is looks_ahead
    assert SchedulerConfig(lookahead=False).looks_ahead is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("port", value) for value in (-1, 65536, "80")),
        *(("max_body_bytes", 0), ("host", None), ("shows_slots", 1), ("priority_header", "on")),
        *(("drain_timeout_s", value) for value in (-1, 86_401, "1", True, math.nan)),
        *(("sse_ping_interval_s", value) for value in (-0.5, 86_401, None)),
        *(("body_timeout_s", value) for value in (0, -1, 86_401, math.inf)),
        *(("max_body_bytes", value) for value in (1023, 2**30 + 1)),
        *(("api_keys", "secret"), ("cors_origins", "*"), ("cors_origins", ["*"])),
        *(("ssl_certfile", "cert.pem"), ("ssl_keyfile", 1)),
    ],
)
def test_an_http_option_that_cannot_work_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is {re.escape(repr(value))}: it must be"):
        HttpConfig(**{name: value})  # type: ignore[arg-type]  # fields have many types


@pytest.mark.parametrize(
    "origin", ["", "example.com", "https://a/", "https://a/path", "https://u@a", "null", "http://"]
)
def test_a_cors_origin_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=f"^a CORS origin is {origin!r}: it must be"):
        HttpConfig(cors_origins=("*", origin))


def test_tls_needs_certificate_and_key_and_makes_the_scheme() -> None:
    assert HttpConfig().scheme == "http"
    assert HttpConfig(ssl_certfile=Path("a"), ssl_keyfile=Path("b")).scheme == "https"
    for given, missing in (("ssl_certfile", "ssl_keyfile"), ("ssl_keyfile", "ssl_certfile")):
        with pytest.raises(ConfigError, match=f"^{given} is given without {missing}"):
            HttpConfig(**{given: Path("a")})  # type: ignore[arg-type]  # fields have many types


def test_zero_threads_are_one_for_each_usable_core() -> None:
    config = EngineConfig(Path("model.gguf"))
    assert config.threads == config.threads_batch == usable_cores() >= 1
    config = EngineConfig(Path("model.gguf"), n_threads=3)
    assert (config.threads, config.threads_batch) == (3, 3)
    config = EngineConfig(Path("model.gguf"), n_threads=3, n_threads_batch=5)
    assert (config.threads, config.threads_batch) == (3, 5)


def test_the_parity_profile_has_no_flash_attention() -> None:
    """F1, F4."""
    path = Path("model.gguf")
    assert EngineConfig(path).flash_attention_mode is FlashAttention.AUTO
    assert EngineConfig(path, profile=Profile.PARITY).flash_attention_mode is FlashAttention.OFF
    with pytest.raises(ConfigError, match="flash_attention is 'on': the parity profile goes without"):
        EngineConfig(path, profile=Profile.PARITY, flash_attention=FlashAttention.ON)


def test_options_go_to_the_config_that_knows_them() -> None:
    parts = split_options({"n_ctx": 512, "max_queue": 1}, EngineConfig, SchedulerConfig)
    assert parts == [{"n_ctx": 512}, {"max_queue": 1}]


def test_an_option_no_config_knows_is_refused_with_the_closest_name() -> None:
    """K33."""
    with pytest.raises(UnknownOption, match="'prefil_chunk'; did you mean 'prefill_chunk'") as caught:
        split_options({"prefil_chunk": 1}, EngineConfig, SchedulerConfig)
    assert (caught.value.name, caught.value.suggestion) == ("prefil_chunk", "prefill_chunk")
    with pytest.raises(UnknownOption) as caught:
        split_options({"qqqqq": 1}, EngineConfig)
    assert caught.value.suggestion is None
