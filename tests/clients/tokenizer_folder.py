"""The default model's tokenizer in the form that Hugging Face's libraries read, made from the model file.

Clients that count or send tokens want such a folder. Its users have it from a hub; here none can be asked.
"""

from __future__ import annotations

import json
from pathlib import Path

from gguf import GGUFReader

CONTROL = 3
"""The kind of token, in a model file, that no text becomes."""


def write_tokenizer(model: Path, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``. The pre-tokenizer is that of SmolLM2."""
    reader = GGUFReader(model)

    def value(key: str) -> object:
        return reader.fields[f"tokenizer.ggml.{key}"].contents()

    assert value("pre") == "smollm", f"not written for the pre-tokenizer {value('pre')!r}"
    tokens = value("tokens")
    controls = [index for index, kind in enumerate(value("token_type")) if kind == CONTROL]
    added = [{"id": index, "content": tokens[index], "special": True, **_NO_TRIMMING} for index in controls]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": value("merges"),
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[value("bos_token_id")],
        "eos_token": tokens[value("eos_token_id")],
        "clean_up_tokenization_spaces": False,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


_NO_TRIMMING = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
