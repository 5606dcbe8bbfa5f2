"""llama-server's routes that compute: ``/completion``, ``/completions``, ``/infill``. Event loop, bodies apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llamaserve.api.drain import Drain, computing_route
from llamaserve.api.generating import Endpoint, Generating
from llamaserve.api.native.completion_bodies import InfillBody, NativeBody, NativeCompletionBody
from llamaserve.api.native.infill import infill_prompt
from llamaserve.api.native.native_answers import NativeAnswer, NativePlan, NativeStream
from llamaserve.api.native.native_prompts import native_prompt_tokens, split_native_prompts
from llamaserve.api.openai.answer_plan import AnswerPlan, PlannedPrompt
from llamaserve.api.openai.body import decode_body
from llamaserve.api.openai.choices import check_choices, choices_per_prompt
from llamaserve.api.openai.preparing import IncomingRequest, PreparedRequest, Preparer, check_model
from llamaserve.api.openai.sampler_names import without_infill
from llamaserve.api.openai.sampling import max_new_tokens
from llamaserve.api.openai.shown import shown_by_native
from llamaserve.api.openai.structured import structured_constraint
from llamaserve.chat.prepared import PreparedChat
from llamaserve.engine.port import FimTokens, Vocabulary
from llamaserve.service import Service

NO_INFILL = "the model has no tokens for filling in the middle (prefix, suffix and middle)"


NATIVE = Endpoint(
    "cmpl-",
    lambda prepared, head: NativeStream(NativePlan.of(prepared), head),
    lambda prepared: NativeAnswer(NativePlan.of(prepared)),
)


class CompletionRoutes:
    """The routes over one service. ``service`` gives the running one and raises EngineDown while there is none."""

    def __init__(
        self, service: Callable[[], Service], drain: Drain, generating: Generating, preparer: Preparer
    ) -> None:
        self._service = service
        self._drain = drain
        self._generating = generating
        self._preparer = preparer

    def routes(self) -> list[Route]:
        """The routes, for an application's list."""
        return [
            computing_route("/completion", self.complete, self._drain),
            computing_route("/completions", self.complete, self._drain),
            computing_route("/infill", self.infill, self._drain),
        ]

    async def complete(self, request: Request) -> Response:
        """``POST /completion``."""
        return await self._generating.generate(request, NATIVE, self._prepare_completion)

    async def infill(self, request: Request) -> Response:
        """``POST /infill``. Raises HTTPException 501 for a model that cannot."""
        fim = self._service().vocab.fim_tokens
        if fim is None:
            raise HTTPException(501, NO_INFILL)
        return await self._generating.generate(request, NATIVE, partial(self._prepare_infill, fim))

    def _prepare_completion(self, service: Service, incoming: IncomingRequest, content: bytes) -> PreparedRequest:
        body = decode_body(content, NativeCompletionBody, self._preparer.unknown_fields)
        check_model(body.model, service)
        prompts = split_native_prompts(body)
        n_per_prompt = choices_per_prompt(body)
        check_choices(len(prompts), n_per_prompt, service.most_at_once)
        max_tokens = max_new_tokens(body, least=0)
        vocab, n_ctx, add_special = service.vocab, service.info.n_ctx_seq, body.add_special_tokens is not False
        tokens = [native_prompt_tokens(prompt, vocab, n_ctx, add_special=add_special) for prompt in prompts]
        return self._prepared(body, service, incoming, tokens, n_per_prompt=n_per_prompt, max_tokens=max_tokens)

    def _prepare_infill(
        self, fim: FimTokens, service: Service, incoming: IncomingRequest, content: bytes
    ) -> PreparedRequest:
        body = decode_body(content, InfillBody, self._preparer.unknown_fields)
        check_model(body.model, service)
        n_per_prompt = choices_per_prompt(body)
        check_choices(1, n_per_prompt, service.most_at_once)
        if body.samplers is not None:
            body.samplers = self._without_infill(body.samplers)
        max_tokens = max_new_tokens(body, least=0)  # editors have what is around computed before it is needed
        tokens = infill_prompt(body, fim, service.vocab, service.info.n_ctx_seq, max_tokens)
        return self._prepared(body, service, incoming, [tokens], n_per_prompt=n_per_prompt, max_tokens=max_tokens)

    def _without_infill(self, samplers: str | list[str]) -> str | list[str]:
        """Editors ask for that sampler in every request of this route, and for what bounds the text beside it."""
        others = without_infill(samplers)
        if len(others) < len(samplers):
            self._preparer.unknown_fields.note_left_out("samplers", "infill")
        return others

    def _prepared(
        self,
        body: NativeBody,
        service: Service,
        incoming: IncomingRequest,
        prompts: Sequence[tuple[int, ...]],
        *,
        n_per_prompt: int,
        max_tokens: int | None,
    ) -> PreparedRequest:
        shown = shown_by_native(body, body.logprobs, tuple(body.response_fields or ()))
        planned = tuple(PlannedPrompt(prompt, text=_text(prompt, service.vocab)) for prompt in prompts)
        return self._preparer.prepared(
            body,
            service,
            incoming,
            AnswerPlan(shown, planned, n_per_prompt, service.vocab),
            [PreparedChat(prompt) for prompt in prompts],
            max_tokens=max_tokens,
            constraint=structured_constraint(body, service.grammars),
        )


def _text(prompt: Sequence[int], vocab: Vocabulary) -> str:
    return vocab.detokenize(prompt, special=True).decode("utf-8", "replace")
