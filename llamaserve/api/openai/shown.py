"""What an answer shows besides its text, as a body asks for it. Any thread."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llamaserve.api.openai.body import ChatBody, CompletionBody, GenerationBody
from llamaserve.errors import BadRequest, shown

MAX_CHAT_TOP = 20
"""OpenAI's limit of ``top_logprobs``."""
MAX_TOP = 100
"""Of the fields without a limit of OpenAI's that other clients would miss."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What answers and chunks carry."""

    n_top: int | None = None
    """How many of the likeliest tokens come with each token drawn; None = not even its own probability."""
    n_prompt_top: int | None = None
    """The same for ``prompt_logprobs``."""
    has_echo: bool = False
    """Whether a completion begins with its prompt."""
    has_token_ids: bool = False
    has_usage_chunk: bool = False
    """Whether a stream ends with a chunk that carries the usage."""
    has_running_usage: bool = False
    has_running_timings: bool = False
    """Whether every chunk says how far the choice is."""
    has_progress: bool = False
    """Whether a stream says how far the prompt is."""
    fields: tuple[str, ...] = ()
    """Of llama-server's answers, the fields to send at the end; none = all."""

    @property
    def is_text_only(self) -> bool:
        """Whether a chunk depends on its text alone."""
        return self.n_top is None and not (self.has_token_ids or self.is_running)

    @property
    def has_logprobs(self) -> bool:
        """Whether it carries probabilities, of the text or of the prompt: they are most of an answer."""
        return self.n_top is not None or self.n_prompt_logprobs is not None

    @property
    def is_running(self) -> bool:
        """Whether chunks need to know how far prompt and text are."""
        return self.has_running_usage or self.has_running_timings

    @property
    def n_prompt_logprobs(self) -> int | None:
        """How many of the likeliest tokens are wanted of the engine for each token of the prompt."""
        wanted = [self.n_prompt_top, self.n_top if self.has_echo else None]
        return max((n for n in wanted if n is not None), default=None)


def shown_by_chat(body: ChatBody) -> Shown:
    """Raises BadRequest, under the field's name, for a number out of range and for ``top_logprobs`` without
    ``logprobs``."""
    return _shown(body, _chat_top(body))


def shown_by_completion(body: CompletionBody) -> Shown:
    """Raises BadRequest, under the field's name, for a number out of range."""
    return _shown(body, _completion_top(body), has_echo=bool(body.echo))


def shown_by_native(body: GenerationBody, logprobs: int | None, fields: tuple[str, ...]) -> Shown:
    """Of llama-server's own routes, where ``logprobs`` is another name of ``n_probs``. Raises BadRequest, under the
    field's name, for a number out of range."""
    n_top = _in_range("logprobs", logprobs or 0, MAX_TOP) if body.n_probs is None else _n_probs(body)
    return replace(_shown(body, n_top or None), n_prompt_top=None, fields=fields)


def _shown(body: GenerationBody, n_top: int | None, *, has_echo: bool = False) -> Shown:
    options = body.stream_options if body.is_streamed else None
    return Shown(
        n_top=n_top,
        n_prompt_top=_prompt_top(body),
        has_echo=has_echo,
        has_token_ids=bool(body.return_token_ids or body.return_tokens),
        has_usage_chunk=options is not None and bool(options.include_usage),
        has_running_usage=options is not None and bool(options.continuous_usage_stats),
        has_running_timings=body.is_streamed and bool(body.timings_per_token),
        has_progress=body.is_streamed and bool(body.return_progress),
    )


def _chat_top(body: ChatBody) -> int | None:
    if body.logprobs not in (None, False, True):
        raise BadRequest(f"logprobs is {shown(body.logprobs)}: in a chat it must be true or false", "logprobs")
    if body.logprobs:
        asked = _in_range("top_logprobs", body.top_logprobs or 0, MAX_CHAT_TOP)
        return max(asked, _n_probs(body))
    if body.top_logprobs:
        raise BadRequest(f"top_logprobs is {shown(body.top_logprobs)}: it needs logprobs to be true", "top_logprobs")
    return _n_probs(body) or None


def _completion_top(body: CompletionBody) -> int | None:
    if body.logprobs is True:
        raise BadRequest(f"logprobs is true: here it must be a whole number from 0 to {MAX_TOP}", "logprobs")
    if body.logprobs is None or body.logprobs is False:
        return _n_probs(body) or None
    return _in_range("logprobs", body.logprobs, MAX_TOP)


def _n_probs(body: GenerationBody) -> int:
    """llama-server's name of it; 0 is none."""
    return _in_range("n_probs", body.n_probs or 0, MAX_TOP)


def _prompt_top(body: GenerationBody) -> int | None:
    if body.prompt_logprobs is True:
        raise BadRequest(
            f"prompt_logprobs is true: it must be a whole number from 0 to {MAX_TOP}, or false", "prompt_logprobs"
        )
    if body.prompt_logprobs is None or body.prompt_logprobs is False:
        return None
    return _in_range("prompt_logprobs", body.prompt_logprobs, MAX_TOP)


def _in_range(name: str, value: int, most: int) -> int:
    if not 0 <= value <= most:
        raise BadRequest(f"{name} is {shown(value)}: it must be a whole number from 0 to {most}", name)
    return value
