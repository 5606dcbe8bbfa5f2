"""The limit: what llama-batched-bench decodes, which samples nothing, has no text and no clients."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from bench.harness.peers import peer
from bench.harness.serving import Setting

TIMEOUT_S = 600.0


@dataclass(frozen=True)
class BatchedRow:
    """One row of its table; rates in tokens a second over all streams."""

    prompt_tokens: int
    generated: int
    streams: int
    prefill_rate: float
    decode_rate: float


@dataclass(frozen=True)
class Limit:
    """Takes turns with the arms."""

    name: str = "llama-batched-bench"

    def rows(
        self, setting: Setting, *, n_prompt: int, n_generated: int, streams: Sequence[int]
    ) -> dict[int, BatchedRow]:
        """Run it once; its rows by number of streams. One KV pool, as both servers have by default.

        Raises RuntimeError when it fails, or does not report every number of streams (the context was too small).
        """
        command = [str(peer(self.name)), "-m", str(setting.model), "-c", str(setting.n_ctx)]
        command += ["-t", str(setting.threads), "--kv-unified", "-npp", str(n_prompt), "-ntg", str(n_generated)]
        command += ["-npl", ",".join(map(str, streams))]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=TIMEOUT_S)
        output = run.stdout + run.stderr
        rows = {row.streams: row for row in parse_table(output)}
        missing = [n for n in streams if n not in rows]
        if run.returncode != 0 or missing:
            tail = "\n".join(output.splitlines()[-10:])
            lacks = f" without a row for {missing} streams" if missing else ""
            raise RuntimeError(f"{self.name} ended with {run.returncode}{lacks}:\n{tail}")
        return rows


def parse_table(text: str) -> list[BatchedRow]:
    """The rows in its output: ``| PP | TG | B | N_KV | T_PP | S_PP | T_TG | S_TG | T | S |``."""
    rows = []
    for line in re.findall(r"^\|((?:\s*[\d.]+ \|){10})$", text, re.MULTILINE):
        cells = [cell.strip() for cell in line.split("|")]
        rows.append(BatchedRow(int(cells[0]), int(cells[1]), int(cells[2]), float(cells[5]), float(cells[7])))
    return rows
