"""What llama-batched-bench prints is read as it stands."""

from __future__ import annotations

from bench.harness.limit import BatchedRow, parse_table

OUTPUT = """
llama_batched_bench: n_kv_max = 2048, n_batch = 2048, n_ubatch = 512, flash_attn = -1, n_threads = 2

|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|    20 |    128 |    1 |    148 |    0.032 |   621.12 |    1.176 |   108.84 |    1.208 |   122.49 |
|    20 |    128 |    8 |   1184 |    0.255 |   627.45 |    4.010 |   255.36 |    4.265 |   277.61 |

llama_perf_context_print:        load time =     123.45 ms
"""


def test_every_row_of_the_table_is_read() -> None:
    assert parse_table(OUTPUT) == [
        BatchedRow(prompt_tokens=20, generated=128, streams=1, prefill_rate=621.12, decode_rate=108.84),
        BatchedRow(prompt_tokens=20, generated=128, streams=8, prefill_rate=627.45, decode_rate=255.36),
    ]


def test_an_output_without_a_table_has_no_rows() -> None:
    assert parse_table("error: unable to load model\n| not | a | row |\n") == []
