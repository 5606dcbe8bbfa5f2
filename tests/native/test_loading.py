"""What can be wrong with a model file or the sizes of a context: one clear error each, and the process goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import llamaserve._engine as native
from llamaserve.config import EngineConfig, Profile
from llamaserve.engine.memory_check import check_context_fits
from llamaserve.engine.native import NativeEngine, read_gguf
from llamaserve.errors import ConfigError, ModelLoad
from tests.native.conftest import LoadEngine
from tests.native.greedy import generate
from tests.native.tiny_models import (
    HEAD_DIM,
    N_EMBD,
    N_FF,
    N_HEADS_KV,
    N_LAYERS,
    N_VOCAB,
    write_dense_model,
    write_encoder_model,
    write_sliding_window_model,
)


def load_model(path: Path) -> native.Model:
    return native.Model.load(
        os.fsencode(path), n_gpu_layers=0, use_mmap=False, use_mlock=False, check_tensors=False, progress=None
    )


def context_options(
    *, n_ctx: int = 512, n_slots: int = 1, n_batch: int = 256, kv_unified: bool = True
) -> native.ContextOptions:
    return native.ContextOptions(
        n_ctx=n_ctx,
        n_slots=n_slots,
        n_batch=n_batch,
        n_ubatch=256,
        n_threads=1,
        n_threads_batch=1,
        flash_attention=-1,
        kv_unified=kv_unified,
        swa_full=False,
        gathers_cells=True,
    )


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """K35."""
    with pytest.raises(ModelLoad, match=r"nowhere\.gguf: no such file"):
        NativeEngine.load(EngineConfig(tmp_path / "nowhere.gguf"))


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoad, match="is a folder"):
        NativeEngine.load(EngineConfig(tmp_path))


def test_a_text_file_is_not_a_gguf(tmp_path: Path) -> None:
    path = tmp_path / "letter.gguf"
    path.write_text("Dear reader,")
    with pytest.raises(ModelLoad, match=r"letter\.gguf is not a GGUF file: it starts with b'Dear'"):
        NativeEngine.load(EngineConfig(path))
    with pytest.raises(ModelLoad, match="is not a GGUF file"):
        read_gguf(path)


@pytest.mark.parametrize("keep", [4, 24, 400, 20_000])
def test_a_truncated_file_is_refused(tmp_path: Path, dense_model: Path, keep: int) -> None:
    """Cut in the magic's header, in the metadata and in the weights."""
    path = tmp_path / "cut.gguf"
    path.write_bytes(dense_model.read_bytes()[:keep])
    with pytest.raises(ModelLoad, match=r"cut\.gguf"):
        NativeEngine.load(EngineConfig(path))


def test_weights_cut_short_are_refused(tmp_path: Path, dense_model: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(dense_model.read_bytes()[:-1000])
    with pytest.raises(ModelLoad, match=r"short\.gguf"):
        NativeEngine.load(EngineConfig(path))


def test_an_encoder_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ModelLoad, match="it has an encoder"):
        NativeEngine.load(EngineConfig(write_encoder_model(tmp_path / "t5.gguf")))


def test_a_model_without_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoad, match="vocabulary"):
        NativeEngine.load(EngineConfig(write_dense_model(tmp_path / "mute.gguf", vocabulary=False)))


def test_a_vocabulary_with_a_token_twice_is_refused(tmp_path: Path, dense_model: Path) -> None:
    """llama.cpp aborts the process on it."""
    path = tmp_path / "twice.gguf"
    path.write_bytes(dense_model.read_bytes().replace(b"<0x41>", b"<0x42>"))
    with pytest.raises(ModelLoad, match="has the token 69 of its vocabulary, '<0x42>', twice"):
        NativeEngine.load(EngineConfig(path, n_ctx=256))


def test_a_model_without_template_has_none(tmp_path: Path) -> None:
    engine = NativeEngine.load(EngineConfig(write_dense_model(tmp_path / "base.gguf", chat_template=None), n_ctx=256))
    assert engine.chat_template is None
    engine.shutdown()


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in %}",
        "{{ " + "(" * 120_000 + " }}",
        "{{ " + "not " * 60_000 + "x }}",
        "{% if x %}" * 20_000,
        "x" * 300_000,
    ],
    ids=["unfinished", "brackets", "prefixes", "blocks", "long"],
)
def test_a_template_that_cannot_be_used_costs_the_chat_not_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, template: str
) -> None:
    """Deep ones overflow the stack of llama.cpp's parser."""
    path = write_dense_model(tmp_path / "broken.gguf", chat_template=template)
    engine = NativeEngine.load(EngineConfig(path, n_ctx=256))
    assert engine.chat_template is None
    assert "the chat template" in caplog.text
    assert "served without chat" in caplog.text
    engine.shutdown()


def test_a_template_of_nearly_the_depth_allowed_is_used(tmp_path: Path) -> None:
    nested = "{% if true %}" * 240 + "{{ " + "(" * 240 + "messages[0].content" + ")" * 240 + " }}" + "{% endif %}" * 240
    path = write_dense_model(tmp_path / "deep.gguf", chat_template=nested)
    engine = NativeEngine.load(EngineConfig(path, n_ctx=256))
    assert engine.chat_template is not None
    assert engine.chat_template.render([{"role": "user", "content": "Hi"}]).prompt == "Hi"
    engine.shutdown()


def test_a_load_can_be_stopped(dense_model: Path) -> None:
    """The progress callback says when."""
    with pytest.raises(ModelLoad, match="cancelled"):
        NativeEngine.load(EngineConfig(dense_model), progress=lambda done: False)


def test_an_exception_of_the_progress_callback_ends_the_load_as_it_is(dense_model: Path) -> None:
    """Ctrl-C during a load is not a damaged file."""

    def interrupt(done: float) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        NativeEngine.load(EngineConfig(dense_model), progress=interrupt)


def test_a_model_that_was_only_inspected_has_no_context(dense_model: Path) -> None:
    model = native.Model.inspect(os.fsencode(dense_model))
    with pytest.raises(ModelLoad, match="only inspected"):
        native.Engine(model, context_options())


@pytest.mark.parametrize(("n_slots", "n_ctx"), [(0, 256), (-1, 256), (257, 256), (1, 0), (1, 2**40)])
@pytest.mark.parametrize("unified", [True, False])
def test_the_native_engine_checks_sizes_too(dense_model: Path, n_slots: int, n_ctx: int, unified: bool) -> None:
    """K126: no caller of the module can abort the process with them."""
    options = context_options(n_ctx=n_ctx, n_slots=n_slots, kv_unified=unified)
    with pytest.raises(ModelLoad, match=r"n_slots is|n_ctx is"):
        native.Engine(load_model(dense_model), options)


def test_names_and_metadata_need_not_be_utf_8(tmp_path: Path, dense_model: Path) -> None:
    """Files come from everywhere."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.gguf"))
    path.write_bytes(dense_model.read_bytes().replace(b"tiny dense", b"tiny \xff\xfe\xc3\xe9!"))
    assert read_gguf(path).metadata["general.name"] == "tiny \ufffd\ufffd\ufffd\ufffd!"
    engine = NativeEngine.load(EngineConfig(path, n_ctx=256))
    assert engine.info.metadata["general.name"] == "tiny \ufffd\ufffd\ufffd\ufffd!"
    engine.shutdown()


def test_the_window_of_a_sliding_window_model_is_not_counted_for_every_token(tmp_path: Path) -> None:
    """Of its two layers one keeps every token, the other only the window."""
    per_token = [
        native.context_bytes_per_token(load_model(write(tmp_path / "model.gguf")), context_options())
        for write in (write_dense_model, write_sliding_window_model)
    ]
    dense, window = per_token
    assert dense == 2 * N_LAYERS * 2 * N_HEADS_KV * HEAD_DIM  # f16; K and V of every layer
    assert window == dense // 2


def test_progress_ends_at_one(dense_model: Path) -> None:
    seen: list[float] = []
    engine = NativeEngine.load(EngineConfig(dense_model, n_ctx=256), progress=lambda done: seen.append(done) is None)
    engine.shutdown()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_context_larger_than_memory_is_refused_before_it_is_allocated(dense_model: Path) -> None:
    """K18: the message names the size asked for, the memory there is and what would fit."""
    with pytest.raises(ConfigError, match=r"n_ctx is 2000000000: its KV cache needs .* GiB"):
        NativeEngine.load(EngineConfig(dense_model, n_ctx=2_000_000_000))


def test_the_check_knows_the_largest_context_that_fits() -> None:
    check_context_fits(950, 10, 10_000)
    check_context_fits(10**12, 10, None)
    with pytest.raises(ConfigError, match="at most 950 tokens fit"):
        check_context_fits(951, 10, 10_000)


@pytest.mark.parametrize(("option", "value"), [("n_ctx", 0), ("n_ctx", -1), ("n_slots", 0), ("n_slots", 257)])
def test_sizes_that_abort_llama_cpp_are_refused(dense_model: Path, option: str, value: int) -> None:
    """K18."""
    with pytest.raises(ConfigError, match=f"{option} is {value}"):
        EngineConfig(dense_model, **{option: value})  # type: ignore[arg-type]  # a wrong value on purpose


def test_a_batch_smaller_than_the_slots_is_refused(dense_model: Path) -> None:
    """llama.cpp aborts the process on it."""
    with pytest.raises(ConfigError, match="n_batch is 3: it must be at least n_slots, 4"):
        EngineConfig(dense_model, n_batch=3, n_slots=4)
    with pytest.raises(ModelLoad, match="n_batch is 3: it must be at least n_slots, 4"):
        native.Engine(load_model(dense_model), context_options(n_batch=3, n_slots=4))


@pytest.mark.parametrize("profile", list(Profile))
@pytest.mark.parametrize(("n_ctx", "n_slots"), [(1, 1), (1, 256), (300, 3), (256, 256)])
def test_a_tiny_context_works_with_any_number_of_slots(
    load: LoadEngine, dense_model: Path, n_ctx: int, n_slots: int, profile: Profile
) -> None:
    """The guard of n_batch and n_outputs_max against n_seq_max."""
    engine = load(dense_model, n_ctx=n_ctx, n_slots=n_slots, profile=profile)
    assert engine.info.n_ctx >= n_ctx
    assert engine.info.n_ctx_seq <= engine.info.n_ctx
    assert len(generate(engine, [1, 50, 60], 3, seq_id=n_slots - 1)) == 3


def test_a_header_tells_what_the_model_is(dense_model: Path, recurrent_model: Path) -> None:
    """No weights are read for it."""
    dense = read_gguf(dense_model)
    assert (dense.architecture, dense.n_ctx_train, dense.memory.value) == ("llama", 512, "kv")
    attention = N_EMBD + 2 * N_EMBD * N_EMBD + 2 * N_HEADS_KV * HEAD_DIM * N_EMBD
    feed_forward = N_EMBD + 3 * N_FF * N_EMBD
    assert dense.n_params == 2 * N_VOCAB * N_EMBD + N_EMBD + N_LAYERS * (attention + feed_forward)
    assert dense.chat_template is not None
    assert dense.metadata["llama.block_count"] == 2
    assert dense.metadata["tokenizer.ggml.tokens[]"] == 259
    assert read_gguf(recurrent_model).memory.value == "recurrent"


COUNT_THREADS = """
import os, sys
from pathlib import Path
from llamaserve.config import EngineConfig
from llamaserve.engine.native import NativeEngine

before = len(os.listdir("/proc/self/task"))
engine = NativeEngine.load(EngineConfig(Path(sys.argv[1]), n_ctx=256, n_threads=2))
print(len(os.listdir("/proc/self/task")) - before)
engine.shutdown()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_a_load_leaves_no_threads_but_the_worker_and_its_helper(default_model: Path) -> None:
    """OpenMP threads of the loading thread would let the worker's sleep at every barrier."""
    run = subprocess.run(
        [sys.executable, "-c", COUNT_THREADS, str(default_model)],
        timeout=120,
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(run.stdout) == 2
