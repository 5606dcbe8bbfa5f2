"""Tiny GGUF models with random weights, written on demand: enough to run every path of the engine in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

N_EMBD = 64
N_FF = 96
N_HEADS = 4
N_HEADS_KV = 2
N_LAYERS = 2
N_CTX_TRAIN = 512
HEAD_DIM = N_EMBD // N_HEADS

UNKNOWN, BOS, EOS, FIRST_BYTE = 0, 1, 2, 3
N_VOCAB = FIRST_BYTE + 256

CHATML = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_dense_model(
    path: Path,
    *,
    chat_template: str | None = CHATML,
    vocabulary: bool = True,
    fim_tokens: Mapping[str, int] | None = None,
    controls: Sequence[str] = (),
) -> Path:
    """A dense transformer (llama) over single bytes, and ``controls``, more control tokens; ``fim_tokens``: ids by
    GGUF's names, pre, suf, mid, rep, sep."""
    writer = gguf.GGUFWriter(path, "llama")
    random = np.random.default_rng(7)
    _add_dense_sizes(writer, "tiny dense")
    if vocabulary:
        _add_byte_vocabulary(writer, controls)
    else:
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(N_VOCAB)
    for name, token in (fim_tokens or {}).items():
        writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", token)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    _add_dense_tensors(writer, random, N_VOCAB + len(controls))
    return _write(writer, path)


def write_byte_pair_model(path: Path, pre_tokenizer: str) -> Path:
    """A dense model with a byte-pair vocabulary of single bytes and "aa"; ``pre_tokenizer`` names how text is split."""
    writer = gguf.GGUFWriter(path, "llama")
    random = np.random.default_rng(5)
    n_vocab = 258
    _add_dense_sizes(writer, "tiny byte pairs")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list([*(_byte_letter(byte) for byte in range(256)), "aa", "<end>"])
    writer.add_token_types([*[gguf.TokenType.NORMAL] * 257, gguf.TokenType.CONTROL])
    writer.add_token_merges(["a a"])
    writer.add_eos_token_id(257)
    _add_dense_tensors(writer, random, n_vocab)
    return _write(writer, path)


def _byte_letter(byte: int) -> str:
    """The letter byte-pair vocabularies write for a byte: itself if it is printable, else one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(256 + sum(other not in printable for other in range(byte)))


def write_sliding_window_model(path: Path, *, window: int = 32) -> Path:
    """A transformer with sliding-window layers (gemma2: every other layer) over single bytes."""
    writer = gguf.GGUFWriter(path, "gemma2")
    random = np.random.default_rng(11)
    writer.add_name("tiny sliding window")
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(N_LAYERS)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_HEADS_KV)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_sliding_window(window)
    _add_byte_vocabulary(writer)
    _add_matrix(writer, random, "token_embd", N_VOCAB, N_EMBD)
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, dtype=np.float32))
    for layer in range(N_LAYERS):
        _add_attention(writer, random, f"blk.{layer}")
        _add_feed_forward(writer, random, f"blk.{layer}")
        for norm in ("post_attention_norm", "post_ffw_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(N_EMBD, dtype=np.float32))
    return _write(writer, path)


def write_recurrent_model(path: Path) -> Path:
    """A recurrent model (mamba) over single bytes."""
    d_inner, d_state, d_conv, dt_rank = 2 * N_EMBD, 8, 4, 4
    writer = gguf.GGUFWriter(path, "mamba")
    random = np.random.default_rng(13)
    writer.add_name("tiny recurrent")
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(N_LAYERS)
    writer.add_ssm_conv_kernel(d_conv)
    writer.add_ssm_inner_size(d_inner)
    writer.add_ssm_state_size(d_state)
    writer.add_ssm_time_step_rank(dt_rank)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_byte_vocabulary(writer)
    _add_matrix(writer, random, "token_embd", N_VOCAB, N_EMBD)
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, dtype=np.float32))
    for layer in range(N_LAYERS):
        block = f"blk.{layer}"
        writer.add_tensor(f"{block}.attn_norm.weight", np.ones(N_EMBD, dtype=np.float32))
        _add_matrix(writer, random, f"{block}.ssm_in", 2 * d_inner, N_EMBD)
        _add_matrix(writer, random, f"{block}.ssm_conv1d", d_inner, d_conv)
        writer.add_tensor(f"{block}.ssm_conv1d.bias", np.zeros(d_inner, dtype=np.float32))
        _add_matrix(writer, random, f"{block}.ssm_x", dt_rank + 2 * d_state, d_inner)
        _add_matrix(writer, random, f"{block}.ssm_dt", d_inner, dt_rank)
        writer.add_tensor(f"{block}.ssm_dt.bias", np.zeros(d_inner, dtype=np.float32))
        decay = -np.tile(np.arange(1, d_state + 1, dtype=np.float32), (d_inner, 1))
        writer.add_tensor(f"{block}.ssm_a", decay)
        writer.add_tensor(f"{block}.ssm_d", np.ones(d_inner, dtype=np.float32))
        _add_matrix(writer, random, f"{block}.ssm_out", N_EMBD, d_inner)
    return _write(writer, path)


def write_hybrid_model(path: Path) -> Path:
    """A hybrid model (lfm2) over single bytes: a short convolution with a state of its own, then an attention layer."""
    n_conv = 3
    heads_kv = [0, N_HEADS_KV]  # no heads: a convolution
    writer = gguf.GGUFWriter(path, "lfm2")
    random = np.random.default_rng(19)
    writer.add_name("tiny hybrid")
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(len(heads_kv))
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(heads_kv)
    writer.add_uint32("lfm2.shortconv.l_cache", n_conv)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_byte_vocabulary(writer)
    _add_matrix(writer, random, "token_embd", N_VOCAB, N_EMBD)
    writer.add_tensor("token_embd_norm.weight", np.ones(N_EMBD, dtype=np.float32))
    for layer, n_heads_kv in enumerate(heads_kv):
        block = f"blk.{layer}"
        if n_heads_kv == 0:
            writer.add_tensor(f"{block}.attn_norm.weight", np.ones(N_EMBD, dtype=np.float32))
            _add_matrix(writer, random, f"{block}.shortconv.in_proj", 3 * N_EMBD, N_EMBD)
            _add_matrix(writer, random, f"{block}.shortconv.conv", N_EMBD, n_conv)
            _add_matrix(writer, random, f"{block}.shortconv.out_proj", N_EMBD, N_EMBD)
        else:
            _add_attention(writer, random, block)
            for norm in ("attn_q_norm", "attn_k_norm"):
                writer.add_tensor(f"{block}.{norm}.weight", np.ones(HEAD_DIM, dtype=np.float32))
        _add_feed_forward(writer, random, block)
    return _write(writer, path)


def write_encoder_model(path: Path) -> Path:
    """The header of an encoder-decoder (t5): enough to be refused."""
    writer = gguf.GGUFWriter(path, "t5")
    writer.add_name("tiny encoder")
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(1)
    writer.add_head_count(N_HEADS)
    writer.add_relative_attn_buckets_count(32)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_byte_vocabulary(writer)
    random = np.random.default_rng(17)
    _add_matrix(writer, random, "token_embd", N_VOCAB, N_EMBD)
    for side in ("enc", "dec"):
        writer.add_tensor(f"{side}.output_norm.weight", np.ones(N_EMBD, dtype=np.float32))
        block = f"{side}.blk.0"
        writer.add_tensor(f"{block}.attn_norm.weight", np.ones(N_EMBD, dtype=np.float32))
        _add_matrix(writer, random, f"{block}.attn_rel_b", 32, N_HEADS)
        for name in ("attn_q", "attn_k", "attn_v", "attn_o"):
            _add_matrix(writer, random, f"{block}.{name}", N_EMBD, N_EMBD)
        writer.add_tensor(f"{block}.ffn_norm.weight", np.ones(N_EMBD, dtype=np.float32))
        _add_matrix(writer, random, f"{block}.ffn_up", N_FF, N_EMBD)
        _add_matrix(writer, random, f"{block}.ffn_down", N_EMBD, N_FF)
    for name in ("cross_attn_q", "cross_attn_k", "cross_attn_v", "cross_attn_o"):
        _add_matrix(writer, random, f"dec.blk.0.{name}", N_EMBD, N_EMBD)
    writer.add_tensor("dec.blk.0.cross_attn_norm.weight", np.ones(N_EMBD, dtype=np.float32))
    return _write(writer, path)


def _add_dense_sizes(writer: gguf.GGUFWriter, name: str) -> None:
    writer.add_name(name)
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(N_LAYERS)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_HEADS_KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)


def _add_dense_tensors(writer: gguf.GGUFWriter, random: np.random.Generator, n_vocab: int) -> None:
    _add_matrix(writer, random, "token_embd", n_vocab, N_EMBD)
    _add_matrix(writer, random, "output", n_vocab, N_EMBD)
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, dtype=np.float32))
    for layer in range(N_LAYERS):
        _add_attention(writer, random, f"blk.{layer}")
        _add_feed_forward(writer, random, f"blk.{layer}")


def _add_byte_vocabulary(writer: gguf.GGUFWriter, controls: Sequence[str] = ()) -> None:
    """A SentencePiece vocabulary that falls back to bytes for everything."""
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256]
    tokens += [control.encode() for control in controls]
    types += [gguf.TokenType.CONTROL] * len(controls)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(types)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def _add_matrix(writer: gguf.GGUFWriter, random: np.random.Generator, name: str, rows: int, columns: int) -> None:
    """Random weights, scaled so that activations keep their size."""
    values = random.standard_normal((rows, columns)) / np.sqrt(columns)
    writer.add_tensor(f"{name}.weight", values.astype(np.float32))


def _add_attention(writer: gguf.GGUFWriter, random: np.random.Generator, block: str) -> None:
    writer.add_tensor(f"{block}.attn_norm.weight", np.ones(N_EMBD, dtype=np.float32))
    _add_matrix(writer, random, f"{block}.attn_q", N_EMBD, N_EMBD)
    _add_matrix(writer, random, f"{block}.attn_k", N_HEADS_KV * HEAD_DIM, N_EMBD)
    _add_matrix(writer, random, f"{block}.attn_v", N_HEADS_KV * HEAD_DIM, N_EMBD)
    _add_matrix(writer, random, f"{block}.attn_output", N_EMBD, N_EMBD)


def _add_feed_forward(writer: gguf.GGUFWriter, random: np.random.Generator, block: str) -> None:
    writer.add_tensor(f"{block}.ffn_norm.weight", np.ones(N_EMBD, dtype=np.float32))
    _add_matrix(writer, random, f"{block}.ffn_gate", N_FF, N_EMBD)
    _add_matrix(writer, random, f"{block}.ffn_up", N_FF, N_EMBD)
    _add_matrix(writer, random, f"{block}.ffn_down", N_EMBD, N_FF)


def _write(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
