"""``GET /props``: the model and how it is served, in llama-server's shape; ``GET /tokenizer_info``: its tokenizer, in
vLLM's. Event loop only; never waits for it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llamaserve.api.native.generation_settings import generation_settings
from llamaserve.api.native.token_bodies import TokenizerInfo
from llamaserve.engine.port import Vocabulary
from llamaserve.request import GenerationRequest
from llamaserve.service import Service

TEMPLATE_KEY = "tokenizer.chat_template"
BOS_KEY = "tokenizer.ggml.bos_token_id"
EOS_KEY = "tokenizer.ggml.eos_token_id"
PAD_KEY = "tokenizer.ggml.padding_token_id"
UNK_KEY = "tokenizer.ggml.unknown_token_id"
KIND_KEY = "tokenizer.ggml.model"


class DefaultSettings(msgspec.Struct):
    """What a request that says nothing has."""

    params: dict[str, object]
    n_ctx: int
    """Most tokens of one sequence."""


class Modalities(msgspec.Struct):
    """What the model reads beside text."""

    vision: bool = False
    audio: bool = False
    video: bool = False


class Props(msgspec.Struct):
    """The whole answer."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    """The name of the file, without its folder: where things lie on the server is nobody's business."""
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    endpoint_slots: bool
    endpoint_metrics: bool = True
    endpoint_props: bool = False
    """Whether it can be changed."""
    is_sleeping: bool = False
    modalities: Modalities = msgspec.field(default_factory=Modalities)


class PropsRoutes:
    """The routes. ``service`` gives the running service and raises EngineDown while there is none."""

    def __init__(self, service: Callable[[], Service], build_info: str, *, shows_slots: bool) -> None:
        self._service = service
        self._build_info = build_info
        self._shows_slots = shows_slots

    def routes(self) -> list[Route]:
        """The routes, for an application's list."""
        return [
            Route("/props", self.show, methods=["GET"]),
            Route("/tokenizer_info", self.show_tokenizer, methods=["GET"]),
        ]

    async def show(self, request: Request) -> Response:
        """Raises EngineDown."""
        props = self.of(self._service())
        return Response(msgspec.json.encode(props), media_type="application/json")

    async def show_tokenizer(self, request: Request) -> Response:
        """Raises EngineDown."""
        return Response(msgspec.json.encode(tokenizer_info(self._service())), media_type="application/json")

    def of(self, service: Service) -> Props:
        """What a service is."""
        info, metadata = service.info, service.info.metadata
        defaults = GenerationRequest("default", (), cache_prompt=service.cache.cache_prompt)
        return Props(
            DefaultSettings(generation_settings(defaults, is_streamed=False), info.n_ctx_seq),
            total_slots=info.n_slots,
            model_alias=service.model_name,
            model_path=service.model_path.name if service.model_path is not None else "",
            chat_template=metadata.get(TEMPLATE_KEY, ""),
            bos_token=_token_text(metadata.get(BOS_KEY), service.vocab),
            eos_token=_token_text(metadata.get(EOS_KEY), service.vocab),
            build_info=self._build_info,
            endpoint_slots=self._shows_slots,
        )


def tokenizer_info(service: Service) -> TokenizerInfo:
    """The tokenizer of a service's model."""
    metadata, vocab = service.info.metadata, service.vocab
    return TokenizerInfo(
        tokenizer_class=metadata.get(KIND_KEY, ""),
        model_max_length=service.info.n_ctx_seq,
        bos_token=_token_text(metadata.get(BOS_KEY), vocab) or None,
        eos_token=_token_text(metadata.get(EOS_KEY), vocab) or None,
        pad_token=_token_text(metadata.get(PAD_KEY), vocab) or None,
        unk_token=_token_text(metadata.get(UNK_KEY), vocab) or None,
        chat_template=metadata.get(TEMPLATE_KEY),
    )


def _token_text(token: str | None, vocab: Vocabulary) -> str:
    """What a token is written as that the model file names, if it is one."""
    if token is None or not token.isdecimal() or int(token) >= vocab.n_tokens:
        return ""
    return vocab.detokenize([int(token)], special=True).decode("utf-8", "replace")
