"""From a request's body to what is computed and how it is answered. Preparing threads only: bodies, templates and
tokenisers take their time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llamaserve.api.caller import Caller
from llamaserve.api.openai.answer_plan import AnswerPlan, PlannedPrompt
from llamaserve.api.openai.body import ChatBody, CompletionBody, GenerationBody, decode_body
from llamaserve.api.openai.chat_prompt import chat_prompt
from llamaserve.api.openai.choices import check_choices, choice_requests, choices_per_prompt
from llamaserve.api.openai.completion_prompts import plan_prompts, split_prompts
from llamaserve.api.openai.fields import UnknownFieldLog
from llamaserve.api.openai.limits import lane, max_decode_s, min_indent, ping_interval_s, timeout_s
from llamaserve.api.openai.logprob_limits import check_logprobs
from llamaserve.api.openai.sampling import max_new_tokens, sampling_params, stop_strings, stop_tokens
from llamaserve.api.openai.shown import shown_by_chat, shown_by_completion
from llamaserve.api.openai.structured import chat_constraint, structured_constraint, wanted_grammar
from llamaserve.api.openai.tokenizing import check_fits
from llamaserve.chat.prepared import PreparedChat
from llamaserve.config import HttpConfig
from llamaserve.constraint import Constraint
from llamaserve.errors import BadRequest, ModelNotFound
from llamaserve.request import MAX_NAME_LENGTH, GenerationRequest
from llamaserve.service import Service

SESSION_HEADER = "x-session-id"
"""Names the session where the body does not: routers that keep a session on one server send it too."""


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """What a request says before its body."""

    request_id: str
    session_header: str | None
    timeout_header: str | None
    priority_header: str | None
    caller: Caller


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request body that was read, rendered and tokenised."""

    requests: tuple[GenerationRequest, ...]
    """One for each choice."""
    plan: AnswerPlan
    is_streamed: bool
    is_computed: bool
    """Whether the model has anything to do for it."""
    timeout_s: float | None
    """From the queue to the last token."""
    ping_interval_s: float


Prepare = Callable[[Service, IncomingRequest, bytes], PreparedRequest]


class Preparer:
    """Prepares requests of all endpoints that compute. Any thread."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self.unknown_fields = UnknownFieldLog()

    def completion(self, service: Service, incoming: IncomingRequest, content: bytes) -> PreparedRequest:
        """A request for ``/v1/completions``. Raises RequestError."""
        body = decode_body(content, CompletionBody, self.unknown_fields)
        check_model(body.model, service)
        shown = shown_by_completion(body)
        max_tokens = max_new_tokens(body, least=0)  # a prompt may be asked for alone
        n_per_prompt, given = choices_per_prompt(body), split_prompts(body)
        check_choices(len(given), n_per_prompt, service.most_at_once)
        prompts = plan_prompts(given, body, service.vocab, service.info.n_ctx_seq)
        plan = AnswerPlan(shown, prompts, n_per_prompt, service.vocab)
        prompt_tokens = [PreparedChat(prompt.tokens) for prompt in prompts]
        constraint = structured_constraint(body, service.grammars)
        return self.prepared(body, service, incoming, plan, prompt_tokens, max_tokens=max_tokens, constraint=constraint)

    def chat(self, service: Service, incoming: IncomingRequest, content: bytes) -> PreparedRequest:
        """A request for ``/v1/chat/completions``. Raises RequestError."""
        body = decode_body(content, ChatBody, self.unknown_fields)
        check_model(body.model, service)
        shown, n_choices = shown_by_chat(body), choices_per_prompt(body)
        check_choices(1, n_choices, service.most_at_once)
        wanted = wanted_grammar(body)
        prompt = chat_prompt(
            body,
            service.template,
            service.vocab,
            service.info.n_ctx_seq,
            wants_boundaries=service.wants_boundaries,
            wants_content_mark=wanted is not None,
        )
        check_fits(prompt.tokens, service.info.n_ctx_seq)
        planned = (PlannedPrompt(prompt.tokens),)
        plan = AnswerPlan(shown, planned, n_choices, service.vocab, prompt.make_parser)
        constraint = chat_constraint(prompt, wanted, service.grammars, service.vocab)
        return self.prepared(
            body, service, incoming, plan, [prompt], max_tokens=max_new_tokens(body), constraint=constraint
        )

    def prepared(
        self,
        body: GenerationBody,
        service: Service,
        incoming: IncomingRequest,
        plan: AnswerPlan,
        prompts: Sequence[PreparedChat],
        *,
        max_tokens: int | None,
        constraint: Constraint | None,
    ) -> PreparedRequest:
        """A request for these prompts, with what all bodies share. Raises RequestError."""
        shown = plan.shown
        # What shows its prompt only needs no model; what does not wants it to be computed, for those who come after.
        is_computed = max_tokens != 0 or shown.n_prompt_logprobs is not None or not shown.has_echo
        check_logprobs(
            shown,
            [len(prompt.tokens) for prompt in prompts],
            plan.n_per_prompt,
            max_tokens=max_tokens,
            n_ctx=service.info.n_ctx_seq,
            is_streamed=body.is_streamed,
        )
        request = GenerationRequest(
            request_id=incoming.request_id,
            prompt=(),
            max_tokens=max_tokens if is_computed else None,
            stop=stop_strings(body),
            stop_tokens=stop_tokens(body),
            sampling=sampling_params(body, service.vocab),
            cache_prompt=service.cache.cache_prompt if body.cache_prompt is None else body.cache_prompt,
            cache_salt=incoming.caller.cache_scope(body.cache_salt or ""),
            session=_session(body, incoming.session_header),
            return_progress=shown.has_progress or shown.is_running,
            priority=lane(body, incoming.priority_header, self._config.priority_header, incoming.caller.most_urgent),
            owner=incoming.caller.owner,
            logprobs=shown.n_top,
            prompt_logprobs=shown.n_prompt_logprobs,
            constraint=constraint,
            min_indent=min_indent(body),
            max_decode_s=max_decode_s(body),
        )
        return PreparedRequest(
            choice_requests([_with_prompt(request, prompt) for prompt in prompts], plan.n_per_prompt),
            plan,
            is_streamed=body.is_streamed,
            is_computed=is_computed,
            timeout_s=timeout_s(body, incoming.timeout_header),
            ping_interval_s=ping_interval_s(body, self._config.sse_ping_interval_s),
        )


def _with_prompt(request: GenerationRequest, prompt: PreparedChat) -> GenerationRequest:
    return replace(
        request,
        prompt=prompt.tokens,
        stop=tuple(dict.fromkeys(request.stop + prompt.stops)),
        boundaries=prompt.boundaries,
        visible_tokens=prompt.visible_tokens,
    )


def _session(body: GenerationBody, header: str | None) -> str | None:
    """The body's session, else the header's; an empty header is none."""
    if body.session is not None or not header:
        return body.session
    if len(header) > MAX_NAME_LENGTH:
        raise BadRequest(
            f"the header {SESSION_HEADER} has {len(header)} characters: it must have at most {MAX_NAME_LENGTH}",
            SESSION_HEADER,
        )
    return header


def check_model(name: str | None, service: Service) -> None:
    """Raise ModelNotFound for another name than that of the model that is served."""
    if name and name != service.model_name:
        raise ModelNotFound(name[:256], service.model_name)
