"""The model as ``/v1/models`` shows it. Plain values; any thread."""

from __future__ import annotations

import msgspec

from llamaserve.service import Service


class ModelSizes(msgspec.Struct):
    """llama-server's field for what OpenAI has none for."""

    n_vocab: int
    n_ctx: int
    """Most tokens of one sequence."""
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    """Bytes of the weights."""


class ModelCard(msgspec.Struct):
    """One model."""

    id: str
    created: int
    """Unix time in seconds at which the server started."""
    meta: ModelSizes
    object: str = "model"
    owned_by: str = "llamaserve"

    @classmethod
    def of(cls, service: Service, created: int) -> ModelCard:
        """The model of a service."""
        info = service.info
        sizes = ModelSizes(info.n_vocab, info.n_ctx_seq, info.n_ctx_train, info.n_embd, info.n_params, info.size_bytes)
        return cls(service.model_name, created, sizes)


class ModelList(msgspec.Struct):
    """All models: the one being served."""

    data: list[ModelCard]
    object: str = "list"
