"""Serve GGUF models with llama.cpp. ``Server`` loads one and computes; the rest are the values it takes and raises.

The names load on first use, so that ``import llamaserve.errors`` needs no native module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llamaserve import errors as errors
    from llamaserve.completion import ChatCompletion as ChatCompletion
    from llamaserve.completion import CompletedTokens as CompletedTokens
    from llamaserve.completion import Completion as Completion
    from llamaserve.errors import LlamaServeError as LlamaServeError
    from llamaserve.request import FinishReason as FinishReason
    from llamaserve.sampling import SamplingParams as SamplingParams
    from llamaserve.server_api import Server as Server
    from llamaserve.text_stream import AsyncTextStream as AsyncTextStream
    from llamaserve.text_stream import TextStream as TextStream

    __version__: str

_HOMES = {
    "AsyncTextStream": "llamaserve.text_stream",
    "ChatCompletion": "llamaserve.completion",
    "CompletedTokens": "llamaserve.completion",
    "Completion": "llamaserve.completion",
    "FinishReason": "llamaserve.request",
    "LlamaServeError": "llamaserve.errors",
    "SamplingParams": "llamaserve.sampling",
    "Server": "llamaserve.server_api",
    "TextStream": "llamaserve.text_stream",
}

__all__ = [
    "AsyncTextStream",
    "ChatCompletion",
    "CompletedTokens",
    "Completion",
    "FinishReason",
    "LlamaServeError",
    "SamplingParams",
    "Server",
    "TextStream",
    "__version__",
    "errors",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - slow, and nearly nobody asks

        return version("llamaserve")
    if name == "errors":
        return importlib.import_module("llamaserve.errors")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
