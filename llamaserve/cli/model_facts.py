"""What is said of a model: by ``llamaserve info`` of a GGUF file, for a reader and as JSON, and by ``serve``. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from llamaserve.engine.port import MemoryKind

MEMORY = {
    MemoryKind.KV: "KV cache",
    MemoryKind.SLIDING_WINDOW: "KV cache with a sliding window",
    MemoryKind.RECURRENT: "recurrent state",
    MemoryKind.HYBRID: "KV cache and recurrent state",
}


class GgufHeader(Protocol):
    """What is known of a file without its weights; the native one is ``GgufSummary``."""

    @property
    def architecture(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def n_tensors(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def n_params(self) -> int: ...
    @property
    def n_ctx_train(self) -> int: ...
    @property
    def memory(self) -> MemoryKind: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def metadata(self) -> Mapping[str, str | int | float | bool]:
        """Scalars by key; of an array ``key`` only its length, as ``key[]``."""


def quantisation(description: str) -> str | None:
    """The part of llama.cpp's description, such as "llama 256M Q4_1", that says how the weights are stored.

    Its size is that of a table of known models, which another model may only resemble, so it is not shown.
    """
    words = description.split(maxsplit=2)
    return words[2] if len(words) == 3 else None


def parameters(n_params: int) -> str:
    """A number of parameters, as "134.5 M" or "8.0 B"."""
    return f"{n_params / 1e9:.1f} B" if n_params >= 1e9 else f"{n_params / 1e6:.1f} M"


def facts_text(path: Path, header: GgufHeader) -> str:
    """Lines for a reader; what the file does not say is left out."""
    said = header.metadata.get
    n_vocab = said(f"{header.architecture}.vocab_size", said("tokenizer.ggml.tokens[]"))
    n_characters = len(header.chat_template or "")
    facts = {
        "file": path,
        "name": said("general.name"),
        "architecture": header.architecture,
        "quantisation": quantisation(header.description),
        "parameters": f"{parameters(header.n_params)} in {header.n_tensors} tensors",
        "size": f"{header.size_bytes / 1e6:.1f} MB",
        "context": f"{header.n_ctx_train} tokens",
        "memory": MEMORY[header.memory],
        "layers": said(f"{header.architecture}.block_count"),
        "embedding": said(f"{header.architecture}.embedding_length"),
        "vocabulary": f"{n_vocab} tokens" if n_vocab else None,
        "chat template": f"{n_characters} characters (--template shows it)" if n_characters else "none",
        "license": said("general.license"),
    }
    return "\n".join(f"{label:<14}{_one_line(str(fact))}" for label, fact in facts.items() if fact is not None)


def facts_json(path: Path, header: GgufHeader) -> str:
    """Everything, the metadata as the file has it."""
    facts = {
        "path": str(path),
        "architecture": header.architecture,
        "description": header.description,
        "n_params": header.n_params,
        "n_tensors": header.n_tensors,
        "size_bytes": header.size_bytes,
        "n_ctx_train": header.n_ctx_train,
        "memory": header.memory.value,
        "chat_template": header.chat_template,
        "metadata": dict(header.metadata),
    }
    return json.dumps(facts, ensure_ascii=False, indent=2)


def _one_line(text: str) -> str:
    """A file may say anything: no control character of it reaches the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
